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
    help: "The process that took the lease is running, according to its own host.",
    source: "leases",
    read: holder_alive,
};

fn holder_alive(target: &Target, view: &View) -> Value {
    match view.held(target).map(|held| held.alive) {
        Some(Truth::True) => Value::Flag(true),
        Some(Truth::False) => Value::Flag(false),
        Some(Truth::Unknown) => Value::Unknown(
            "the holder is on another host or in another PID namespace, or the lease outlives its holder",
        ),
        None => Value::Unknown("the lease server does not respond"),
    }
}

pub(super) static HEARTBEAT_AGE: Attribute = Attribute {
    name: "heartbeat_age",
    of: &[Kind::Lease],
    unit: Unit::Duration,
    help: "Time since the holder itself last renewed the lease.",
    source: "leases",
    read: heartbeat_age,
};

fn heartbeat_age(target: &Target, view: &View) -> Value {
    view.held(target)
        .and_then(|held| held.silent_ms)
        .map_or(Value::Unknown("there is no renewal by the holder on record"), |silent| {
            Value::Number(seconds(silent))
        })
}

pub(super) static ATTACHED_PROCESSES: Attribute = Attribute {
    name: "attached_processes",
    of: &[Kind::Lease],
    unit: Unit::Count,
    help: "Processes of the lease's holder that hold memory on the leased GPUs.",
    source: "leases",
    read: attached_processes,
};

fn attached_processes(target: &Target, view: &View) -> Value {
    let Some(leased) = target.lease.filter(|_| view.held(target).is_some()) else {
        return Value::Unknown("the lease server does not respond");
    };
    #[expect(clippy::cast_precision_loss, reason = "processes are counted in thousands")]
    let attached = target.processes.len() as f64;
    if leased.whole { Value::Number(attached) } else { Value::AtLeast(attached) }
}
