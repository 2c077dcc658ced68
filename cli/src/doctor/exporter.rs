//! The exporter: whether it sends snapshots, how old they are, and which sources it lacks.

use std::time::Duration;

use bailiff_snapshot::wire::Snapshot;
use bailiff_snapshot::{PidNamespace, Word};

use super::Doctor;
use super::check::Check;
use super::driver::own_cgroup;
use crate::info::{age, is_stale};
use crate::stream::{self, StreamError};

/// The deadline of the first snapshot, which the exporter sends immediately.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(3);
const NAME: &str = "exporter";

/// Checks the newest snapshot of the exporter's stream.
pub(super) fn checks(flags: &Doctor) -> Vec<Check> {
    let path = flags.exporter.stream.display();
    match stream::newest(&flags.exporter.stream, SNAPSHOT_DEADLINE.min(flags.deadline)) {
        Ok(snapshot) => of_snapshot(&snapshot, age(&snapshot)),
        Err(StreamError::NotListening) => {
            let hint =
                format!("start bailiff-exporter --stream={path}; bailiff info then also shows idle times");
            vec![Check::skip(NAME, format!("not running: no process listens on {path}"), Some(&hint))]
        }
        Err(StreamError::Denied) => {
            let hint = format!("join the group of the socket: ls -l {path}");
            vec![Check::skip(NAME, format!("this user has no permission to read {path}"), Some(&hint))]
        }
        Err(error) => {
            let hint = match error {
                StreamError::Invalid(_) => {
                    "install all programs from the same release, and restart the exporter"
                }
                _ => "check journalctl -u bailiff-exporter, and restart it",
            };
            vec![Check::fail(NAME, format!("{path}: {error}"), hint)]
        }
    }
}

fn of_snapshot(snapshot: &Snapshot, age: Duration) -> Vec<Check> {
    let interval = Duration::from_millis(snapshot.interval_ms);
    let newest = format!("sample {}, {:.1} s ago, interval {interval:?}", snapshot.seq, age.as_secs_f64());
    let mut checks = Vec::new();
    if is_stale(age, interval) {
        let hint = "the exporter hangs: check journalctl -u bailiff-exporter, and restart it";
        checks.push(Check::fail(NAME, format!("the newest snapshot is stale: {newest}"), hint));
    } else {
        checks.push(Check::ok(NAME, newest));
    }
    for (source, state) in snapshot.sources.iter().filter(|(_, state)| !state.up) {
        let fault = state.fault.as_deref().unwrap_or("unknown").replace('_', " ");
        let hint = "see the other checks for this data source, or check journalctl -u bailiff-exporter";
        checks.push(Check::fail(NAME, format!("the exporter cannot read {source}: {fault}"), hint));
    }
    if snapshot.pid_namespace != PidNamespace::Host {
        let hint = "set hostPID: true in Kubernetes or --pid=host in Docker, or use --trust-pid-namespace";
        checks.push(Check::fail(
            NAME,
            "the exporter is not in the host's PID namespace, so it cannot identify processes",
            hint,
        ));
    }
    for gpu in &snapshot.gpus {
        let why = gpu.memory_unknown.as_ref().and_then(Word::known);
        checks.extend(why.map(|why| own_cgroup(&gpu.index, why, "the exporter")));
    }
    let unread = |process: &&bailiff_snapshot::wire::Process| {
        process.facts.as_ref().is_some_and(|facts| facts.io_bytes.is_none())
    };
    let unread = snapshot.processes.iter().filter(unread).count();
    if unread > 0 {
        let hint = "set AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH in its unit (needed for rules with io_rate)";
        checks.push(Check::warn(
            NAME,
            format!("the exporter has no permission to read the I/O counters of {unread} holders"),
            hint,
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::MemoryUnknown;
    use bailiff_snapshot::wire::Gpu;
    use snapshot_fixtures::stream::{facts, gpu, process, snapshot, source};

    use super::super::check::State;
    use super::*;

    #[test]
    fn exporter_that_lacks_data_is_reported() {
        let complete = || Snapshot { interval_ms: 1000, ..snapshot(7, vec![], vec![]) };
        let states = |snapshot: &Snapshot, age: u64| -> Vec<State> {
            of_snapshot(snapshot, Duration::from_secs(age)).iter().map(|check| check.state).collect()
        };
        assert_eq!(states(&complete(), 2), [State::Ok]);
        assert_eq!(states(&complete(), 9), [State::Fail], "stale after three intervals plus five seconds");
        let mut down = complete();
        down.sources.insert("nvml".into(), source(false));
        assert_eq!(states(&down, 0), [State::Ok, State::Fail]);
        let other = Snapshot { pid_namespace: PidNamespace::Other.into(), ..complete() };
        assert_eq!(states(&other, 0), [State::Ok, State::Fail]);
        let limited =
            Gpu { memory_unknown: Some(MemoryUnknown::OwnCgroupLimited.into()), ..gpu("0", vec![]) };
        let limited = of_snapshot(&Snapshot { gpus: vec![limited], ..complete() }, Duration::ZERO);
        assert!(limited[1].state == State::Warn && limited[1].hint.is_some(), "{limited:?}");
        let unreadable = Snapshot { processes: vec![process(1, 1, facts("x"))], ..complete() };
        assert_eq!(states(&unreadable, 0), [State::Ok, State::Warn]);
    }
}
