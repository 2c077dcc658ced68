//! Detection of processes that are busy after SIGTERM, for example writing a checkpoint. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::{ProcessKey, wire};

/// GPU utilization in percent above which a process is busy.
const PERCENT: u32 = 1;
/// I/O in bytes between two snapshots above which a process is busy.
const BYTES: u64 = 1 << 20;
/// CPU utilization, as a share of one core, above which a process is busy.
const CORE: f64 = 0.05;

/// Activity of some processes in the last snapshots.
#[derive(Debug, Default)]
pub(super) struct Activity {
    last: BTreeMap<ProcessKey, Counters>,
    boot_ms: u64,
    busy: bool,
}

#[derive(Debug, Clone, Copy)]
struct Counters {
    cpu_seconds: f64,
    io_bytes: Option<u64>,
}

impl Activity {
    /// Evaluates a snapshot: compares it with the previous one.
    pub(super) fn see(&mut self, snapshot: &wire::Snapshot, members: &BTreeSet<ProcessKey>) {
        let now = counters(snapshot, members);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since boot are far below 2^53")]
        let seconds = snapshot.boot_ms.saturating_sub(self.boot_ms) as f64 / 1000.0;
        let grew = now.iter().any(|(key, now)| {
            self.last.get(key).is_some_and(|before| {
                let io = now.io_bytes.zip(before.io_bytes);
                io.is_some_and(|(now, before)| now.saturating_sub(before) > BYTES)
                    || now.cpu_seconds - before.cpu_seconds > CORE * seconds
            })
        });
        self.busy = grew || computes(snapshot, members);
        self.last = now;
        self.boot_ms = snapshot.boot_ms;
    }

    /// Returns whether the newest snapshot showed activity.
    pub(super) const fn busy(&self) -> bool {
        self.busy
    }

    /// Discards activity that was observed before SIGTERM.
    pub(super) const fn forgotten(mut self) -> Self {
        self.busy = false;
        self
    }
}

fn computes(snapshot: &wire::Snapshot, members: &BTreeSet<ProcessKey>) -> bool {
    let ours: BTreeSet<u32> = snapshot
        .processes
        .iter()
        .filter(|process| process.key().is_some_and(|key| members.contains(&key)))
        .map(|process| process.pid)
        .collect();
    let holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
    holders.filter(|holder| ours.contains(&holder.pid)).any(|holder| holder.utilization > Some(PERCENT))
}

fn counters(snapshot: &wire::Snapshot, members: &BTreeSet<ProcessKey>) -> BTreeMap<ProcessKey, Counters> {
    let holders = snapshot.processes.iter().filter_map(|process| {
        let facts = process.facts.as_ref()?;
        Some((process.key()?, Counters { cpu_seconds: facts.cpu_seconds, io_bytes: facts.io_bytes }))
    });
    let relatives = snapshot
        .relatives
        .iter()
        .flatten()
        .map(|relative| (relative.key(), Counters { cpu_seconds: relative.cpu_seconds, io_bytes: None }));
    holders.chain(relatives).filter(|(key, _)| members.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use snapshot_fixtures::stream as fixtures;

    use super::*;

    const OURS: ProcessKey = ProcessKey { pid: 10, start_ticks: 1 };

    /// Returns a snapshot at this second, with GPU utilization, CPU seconds and I/O bytes of our process.
    fn snapshot(second: u64, (utilization, cpu, io): (Option<u32>, f64, Option<u64>)) -> wire::Snapshot {
        let facts = wire::Facts { cpu_seconds: cpu, io_bytes: io, ..fixtures::facts("x") };
        let holders = vec![fixtures::holder(10, None, utilization), fixtures::holder(20, None, Some(100))];
        let processes = vec![
            fixtures::process(10, 1, facts),
            wire::Process { pid: 20, start_ticks: Some(1), ..wire::Process::default() },
        ];
        wire::Snapshot {
            boot_ms: second * 1000,
            interval_ms: 1000,
            ..fixtures::snapshot(second, vec![fixtures::gpu("0", holders)], processes)
        }
    }

    #[test]
    fn only_what_was_seen_of_the_members_is_work() {
        const IDLE: (Option<u32>, f64, Option<u64>) = (Some(0), 1.0, Some(0));
        let cases = [
            (IDLE, IDLE, false),
            (IDLE, (Some(1), 1.0, Some(0)), false),
            (IDLE, (Some(2), 1.0, Some(0)), true),
            (IDLE, (None, 1.0, Some(0)), false),
            (IDLE, (Some(0), 1.04, Some(0)), false),
            (IDLE, (Some(0), 1.1, Some(0)), true),
            (IDLE, (Some(0), 1.0, Some(2 << 20)), true),
            (IDLE, (Some(0), 1.0, None), false),
            ((Some(0), 1.0, None), (Some(0), 1.0, Some(9 << 20)), false),
            (IDLE, (Some(0), 0.0, Some(0)), false),
        ];
        for (before, now, busy) in cases {
            let mut activity = Activity::default();
            activity.see(&snapshot(1, before), &BTreeSet::from([OURS]));
            let mut activity = activity.forgotten();
            assert!(!activity.busy(), "of before");
            activity.see(&snapshot(2, now), &BTreeSet::from([OURS]));
            assert_eq!(activity.busy(), busy, "{before:?} then {now:?}");
            activity.see(&snapshot(3, now), &BTreeSet::from([OURS]));
            assert_eq!(activity.busy(), now.0 > Some(1), "only growth counts");
        }
    }
}
