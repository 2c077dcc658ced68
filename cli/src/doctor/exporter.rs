//! The exporter: whether it tells, whether that is new, and what it misses itself.

use std::time::Duration;

use bailiff_snapshot::wire::Snapshot;

use super::check::Check;
use super::flags::Doctor;
use crate::info::{age, is_stale};
use crate::stream::{self, StreamError};

/// It sends its newest snapshot at once.
const PATIENCE: Duration = Duration::from_secs(3);
const NAME: &str = "exporter";

/// What comes over its stream.
pub(super) fn checks(flags: &Doctor) -> Vec<Check> {
    let path = flags.exporter.stream.display();
    match stream::newest(&flags.exporter.stream, PATIENCE.min(flags.deadline)) {
        Ok(snapshot) => of_snapshot(&snapshot, age(&snapshot)),
        Err(StreamError::Nobody) => {
            let hint =
                format!("bailiff-exporter --stream={path}; bailiff info then knows who is idle since when");
            vec![Check::skip(NAME, format!("nobody listens on {path}"), Some(&hint))]
        }
        Err(StreamError::Denied) => {
            let hint = format!("ls -l {path}: be its owner, or in its group");
            vec![Check::skip(NAME, format!("{path} is not for us to read"), Some(&hint))]
        }
        Err(silence @ StreamError::Strange(_)) => {
            vec![Check::fail(
                NAME,
                format!("{path}: {silence}"),
                "install programs of one release, and restart it",
            )]
        }
        Err(silence @ (StreamError::Late | StreamError::Failed(_))) => {
            vec![Check::fail(
                NAME,
                format!("{path}: {silence}"),
                "journalctl -u bailiff-exporter; restart it",
            )]
        }
    }
}

fn of_snapshot(snapshot: &Snapshot, age: Duration) -> Vec<Check> {
    let interval = Duration::from_millis(snapshot.interval_ms);
    let told = format!("look {}, {:.1} s ago, an interval of {interval:?}", snapshot.seq, age.as_secs_f64());
    let mut checks = Vec::new();
    if is_stale(age, interval) {
        let hint = "it hangs: journalctl -u bailiff-exporter; restart it";
        checks.push(Check::fail(NAME, format!("it tells nothing new: {told}"), hint));
    } else {
        checks.push(Check::ok(NAME, told));
    }
    for (source, state) in snapshot.sources.iter().filter(|(_, state)| !state.up) {
        let fault = state.fault.as_deref().unwrap_or("unknown").replace('_', " ");
        let hint = "the checks of this source, here, tell the way out; else journalctl -u bailiff-exporter";
        checks.push(Check::fail(NAME, format!("it does not see {source}: {fault}"), hint));
    }
    if snapshot.pid_namespace != "host" {
        let hint = "hostPID: true in Kubernetes, --pid=host with docker, or --trust-pid-namespace";
        checks.push(Check::fail(NAME, "it is not in the host's PID namespace, and names nobody", hint));
    }
    let unread = |process: &&bailiff_snapshot::wire::Process| {
        process.facts.as_ref().is_some_and(|facts| facts.io_bytes.is_none())
    };
    let unread = snapshot.processes.iter().filter(unread).count();
    if unread > 0 {
        let hint =
            "AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH in its unit; rules with io_rate need it";
        checks.push(Check::warn(NAME, format!("it may not look into {unread} holders"), hint));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn what_it_misses_is_told() {
        let snapshot = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut line = serde_json::json!({
                "version": 1, "seq": 7, "wall_ms": 0, "boot_ms": 0, "interval_ms": 1000, "pid_namespace": "host",
                "sources": {"nvml": {"up": true}}, "gpus": [], "processes": [],
            });
            change(&mut line);
            serde_json::from_value::<Snapshot>(line).unwrap()
        };
        let states = |snapshot: &Snapshot, age: u64| -> Vec<State> {
            of_snapshot(snapshot, Duration::from_secs(age)).iter().map(|check| check.state).collect()
        };
        let whole = snapshot(&|_| {});
        assert_eq!(states(&whole, 2), [State::Ok]);
        assert_eq!(states(&whole, 9), [State::Fail], "three intervals, and five seconds");
        let down =
            snapshot(&|line| line["sources"]["nvml"] = serde_json::json!({"up": false, "fault": "timeout"}));
        assert_eq!(states(&down, 0), [State::Ok, State::Fail]);
        assert_eq!(
            states(&snapshot(&|line| line["pid_namespace"] = "other".into()), 0),
            [State::Ok, State::Fail]
        );
        let facts = serde_json::json!({"comm": "x", "ppid": 1, "cpu_seconds": 0.0, "place": bailiff_snapshot::Place::default()});
        let poor = snapshot(&|line| {
            line["processes"] =
                serde_json::json!([{"pid": 1, "start_ticks": 1, "state": "sleeping", "facts": facts}]);
        });
        assert_eq!(states(&poor, 0), [State::Ok, State::Warn]);
    }
}
