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

#[cfg(test)]
mod tests {
    use bailiff_snapshot::{Claim, wire};
    use serde_json::json;
    use snapshot_fixtures::stream as fixtures;

    use super::*;

    #[test]
    fn process_with_a_reused_pid_makes_the_number_uncertain() {
        for (reused_pid, expected) in [(false, "Number(1.0)"), (true, "AtLeast(0.0)")] {
            let claim = Claim::Lease("a".to_owned());
            let facts = wire::Facts { reused_pid, claim, ..fixtures::facts("python3") };
            let gpu = fixtures::gpu("0", vec![fixtures::holder(41, None, None)]);
            let mut snapshot = fixtures::snapshot(1, vec![gpu], vec![fixtures::process(41, 7, facts)]);
            let leases = json!({
                "boot_ms": snapshot.boot_ms, "queue": [],
                "gpus": [{"id": "0", "state": "leased", "lease": "a"}],
                "held": [{"lease": "a", "token": 1, "gpus": ["0"], "left_ms": 9, "alive": "true"}],
            });
            snapshot.leases = Some(serde_json::from_value(leases).expect("leases"));
            let view = View::between(None, snapshot);
            let lease = view.targets.iter().find(|target| target.lease.is_some()).expect("a lease");
            assert_eq!(format!("{:?}", attached_processes(lease, &view)), expected, "{reused_pid}");
        }
    }
}
