//! Attributes of leases.

use super::{Attribute, seconds};
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};
use bailiff_snapshot::Truth;

pub(super) static HOLDER_ALIVE: Attribute = Attribute {
    name: "holder_alive",
    of: &[Kind::Lease],
    unit: Unit::Flag,
    help: "The process that took the lease is running, by the knowledge of its own host.",
    source: "leases",
    read: holder_alive,
};

fn holder_alive(target: &Target, view: &View) -> Value {
    match view.held(target).map(|held| held.alive) {
        Some(Truth::True) => Value::Flag(true),
        Some(Truth::False) => Value::Flag(false),
        Some(Truth::Unknown) => {
            Value::Unknown("it is of another host or PID namespace, or outlives its holder")
        }
        None => Value::Unknown("the server of leases does not answer"),
    }
}

pub(super) static HEARTBEAT_AGE: Attribute = Attribute {
    name: "heartbeat_age",
    of: &[Kind::Lease],
    unit: Unit::Duration,
    help: "Time since its holder last renewed the lease himself.",
    source: "leases",
    read: heartbeat_age,
};

fn heartbeat_age(target: &Target, view: &View) -> Value {
    view.held(target)
        .and_then(|held| held.silent_ms)
        .map_or(Value::Unknown("its holder was not heard of"), |silent| Value::Number(seconds(silent)))
}

pub(super) static ATTACHED_PROCESSES: Attribute = Attribute {
    name: "attached_processes",
    of: &[Kind::Lease],
    unit: Unit::Count,
    help: "Processes of the lease's holder that hold memory on its GPUs.",
    source: "leases",
    read: attached_processes,
};

fn attached_processes(target: &Target, view: &View) -> Value {
    let Some(leased) = target.lease.filter(|_| view.held(target).is_some()) else {
        return Value::Unknown("the server of leases does not answer");
    };
    #[expect(clippy::cast_precision_loss, reason = "processes are counted in thousands")]
    let attached = target.processes.len() as f64;
    if leased.whole { Value::Number(attached) } else { Value::AtLeast(attached) }
}
