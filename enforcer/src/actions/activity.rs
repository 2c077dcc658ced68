//! Whether those who were asked to end are still at work: writing a checkpoint takes longer than some graces.
//! Pure: snapshots in.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::{ProcessKey, wire};

/// More of a GPU than this is work.
const PERCENT: u32 = 1;
/// More bytes than this from one snapshot to the next.
const BYTES: u64 = 1 << 20;
/// More of one core than this.
const CORE: f64 = 0.05;

/// What the last snapshots showed of some processes.
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
    /// Looks at a snapshot.
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

    /// The newest snapshot showed work.
    pub(super) const fn busy(&self) -> bool {
        self.busy
    }

    /// What was seen so far is of before.
    pub(super) const fn forgotten(mut self) -> Self {
        self.busy = false;
        self
    }
}

fn computes(snapshot: &wire::Snapshot, members: &BTreeSet<ProcessKey>) -> bool {
    let ours: BTreeSet<u32> = snapshot
        .processes
        .iter()
        .filter(|process| {
            let key = process.start_ticks.map(|start_ticks| ProcessKey { pid: process.pid, start_ticks });
            key.is_some_and(|key| members.contains(&key))
        })
        .map(|process| process.pid)
        .collect();
    let holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
    holders.filter(|holder| ours.contains(&holder.pid)).any(|holder| holder.utilization > Some(PERCENT))
}

fn counters(snapshot: &wire::Snapshot, members: &BTreeSet<ProcessKey>) -> BTreeMap<ProcessKey, Counters> {
    let holders = snapshot.processes.iter().filter_map(|process| {
        let key = ProcessKey { pid: process.pid, start_ticks: process.start_ticks? };
        let facts = process.facts.as_ref()?;
        Some((key, Counters { cpu_seconds: facts.cpu_seconds, io_bytes: facts.io_bytes }))
    });
    let relatives = snapshot.relatives.iter().flatten().map(|relative| {
        let key = ProcessKey { pid: relative.pid, start_ticks: relative.start_ticks };
        (key, Counters { cpu_seconds: relative.cpu_seconds, io_bytes: None })
    });
    holders.chain(relatives).filter(|(key, _)| members.contains(key)).collect()
}
