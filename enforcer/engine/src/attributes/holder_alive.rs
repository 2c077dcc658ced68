//! `holder_alive`: whether the holder of a lease lives.

use bailiff_snapshot::Truth;

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static HOLDER_ALIVE: Attribute = Attribute {
    name: "holder_alive",
    of: &[Kind::Lease],
    unit: Unit::Flag,
    help: "The process that took the lease is running, by the knowledge of its own host.",
    source: "leases",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    match view.held(target).map(|held| held.alive) {
        Some(Truth::True) => Value::Flag(true),
        Some(Truth::False) => Value::Flag(false),
        Some(Truth::Unknown) => {
            Value::Unknown("it is of another host or PID namespace, or outlives its holder")
        }
        None => Value::Unknown("the server of leases does not answer"),
    }
}
