//! `attached_processes`: how many processes use a lease's GPUs under it.

use super::Attribute;
use crate::Kind;
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

fn read(target: &Target, view: &View) -> Value {
    let Some(leased) = target.lease.filter(|_| view.held(target).is_some()) else {
        return Value::Unknown("the server of leases does not answer");
    };
    #[expect(clippy::cast_precision_loss, reason = "processes are counted in thousands")]
    let attached = target.processes.len() as f64;
    if leased.whole { Value::Number(attached) } else { Value::AtLeast(attached) }
}
