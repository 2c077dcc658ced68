//! `holder_alive`: whether the holder of a lease lives.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static HOLDER_ALIVE: Attribute = Attribute {
    name: "holder_alive",
    of: &[Kind::Lease],
    unit: Unit::Flag,
    help: "The process that took the lease exists, as far as its own host can tell.",
    source: "leases",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("leases are not in the snapshot")
}
