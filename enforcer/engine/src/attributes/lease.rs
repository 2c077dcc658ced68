//! Attributes of leases.

use super::seconds;
use crate::value::Value;
use crate::view::{Target, View};
use bailiff_snapshot::Truth;

pub(super) fn holder_alive(target: &Target, view: &View) -> Value {
    match view.held(target).map(|held| held.alive) {
        Some(Truth::True) => Value::Flag(true),
        Some(Truth::False) => Value::Flag(false),
        Some(Truth::Unknown) => Value::Unknown(
            "the holder is on another host or in another PID namespace, or the lease outlives its holder",
        ),
        None => Value::Unknown("the lease server does not respond"),
    }
}

pub(super) fn heartbeat_age(target: &Target, view: &View) -> Value {
    view.held(target)
        .and_then(|held| held.silent_ms)
        .map_or(Value::Unknown("there is no renewal by the holder on record"), |silent| {
            Value::Number(seconds(silent))
        })
}

pub(super) fn attached_processes(target: &Target, view: &View) -> Value {
    let Some(leased) = target.lease.filter(|_| view.held(target).is_some()) else {
        return Value::Unknown("the lease server does not respond");
    };
    #[expect(clippy::cast_precision_loss, reason = "processes are counted in thousands")]
    let attached = target.processes.len() as f64;
    if leased.whole { Value::Number(attached) } else { Value::AtLeast(attached) }
}
