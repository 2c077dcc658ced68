//! `attached_processes`: how many processes use a lease's GPUs under it.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static ATTACHED_PROCESSES: Attribute = Attribute {
    name: "attached_processes",
    of: &[Kind::Lease],
    unit: Unit::Count,
    help: "Processes of the lease's holder that hold memory on its GPUs.",
    source: "leases",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("leases are not in the snapshot")
}
