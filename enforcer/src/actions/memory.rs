//! Check whether the memory of exited holders was released, by comparing two snapshots: their pids must have
//! left the driver's list, and unaccounted memory must not have risen. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::{ProcessKey, wire};

/// Tolerated rise of unaccounted memory: this many bytes, or one `PART`th of what the holders held. Readings
/// are not atomic, and the driver keeps a little.
const SLACK: u64 = 16 << 20;
const PART: u64 = 16;

/// Result of comparing two snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Back {
    /// The memory was released.
    Yes {
        /// Released bytes.
        bytes: u64,
        /// Bytes by which unaccounted memory rose, perhaps by coincidence.
        left: u64,
    },
    /// The memory is still listed.
    No {
        why: String,
        /// Bytes that are still held.
        left: u64,
    },
    /// The release cannot be determined.
    Unknown(String),
}

/// Memory in bytes of each holder of a GPU, by pid and start time, if known.
type Holders = BTreeMap<(u32, Option<u64>), Option<u64>>;

/// GPU memory in a snapshot, kept instead of the whole snapshot.
#[derive(Debug)]
pub(super) struct Memory(Vec<OfGpu>);

#[derive(Debug)]
struct OfGpu {
    index: String,
    uuid: Option<String>,
    /// Whether the driver reported the holders.
    reported: bool,
    holders: Holders,
    /// Unaccounted memory in bytes.
    unaccounted: Option<i64>,
}

impl Memory {
    pub(super) fn of(snapshot: &wire::Snapshot) -> Self {
        let starts: BTreeMap<u32, Option<u64>> =
            snapshot.processes.iter().map(|process| (process.pid, process.start_ticks)).collect();
        let key = |pid: u32| (pid, starts.get(&pid).copied().flatten());
        let of_gpu = |gpu: &wire::Gpu| OfGpu {
            index: gpu.index.clone(),
            uuid: gpu.uuid.clone(),
            reported: gpu.fault.is_none() && gpu.listed.is_some(),
            holders: gpu.holders.iter().map(|holder| (key(holder.pid), holder.memory)).collect(),
            unaccounted: gpu.memory.as_ref().and_then(|memory| memory.unaccounted),
        };
        Self(snapshot.gpus.iter().map(of_gpu).collect())
    }

    /// Returns the bytes that the driver listed for these processes.
    pub(super) fn held_by(&self, keys: &BTreeSet<ProcessKey>) -> u64 {
        let ours = |(pid, start): (u32, Option<u64>)| {
            keys.iter()
                .any(|key| key.pid == pid && start.is_none_or(|start_ticks| start_ticks == key.start_ticks))
        };
        let holders = self.0.iter().flat_map(|gpu| &gpu.holders);
        holders.filter(|(key, _)| ours(**key)).filter_map(|(_, bytes)| *bytes).sum()
    }
}

/// Compares two snapshots; `ended` are the exited holders.
pub(super) fn back(before: &Memory, after: &Memory, ended: &BTreeSet<ProcessKey>) -> Back {
    let mut back: Option<(u64, u64)> = None;
    let mut unknown = None;
    for gpu in &before.0 {
        let held: Holders = gpu.holders.iter().filter(|(key, _)| is_of(**key, ended)).map(copied).collect();
        if held.is_empty() {
            continue;
        }
        match on_one(gpu, after, ended, &held) {
            Back::Yes { bytes, left } => {
                let (before, stayed) = back.unwrap_or_default();
                back = Some((before.saturating_add(bytes), stayed.saturating_add(left)));
            }
            Back::Unknown(why) => unknown = Some(why),
            no @ Back::No { .. } => return no,
        }
    }
    match (unknown, back) {
        (Some(why), _) => Back::Unknown(why),
        (None, Some((bytes, left))) => Back::Yes { bytes, left },
        (None, None) => {
            Back::Unknown("the driver did not list these processes in the previous snapshot".to_owned())
        }
    }
}

fn on_one(gpu: &OfGpu, after: &Memory, ended: &BTreeSet<ProcessKey>, held: &Holders) -> Back {
    let same = |other: &&OfGpu| other.uuid == gpu.uuid && other.index == gpu.index;
    let Some(now) = after.0.iter().find(same).filter(|now| now.reported) else {
        return Back::Unknown(format!("the driver returned no process list for GPU {}", gpu.index));
    };
    // The driver may still list a pid that has exited, for which /proc has no start time.
    let still = now
        .holders
        .keys()
        .find(|key| is_of(**key, ended) || (key.1.is_none() && held.keys().any(|(pid, _)| *pid == key.0)));
    if let Some(key) = still {
        let why = format!("the driver still lists process {} on GPU {}", key.0, gpu.index);
        return Back::No { why, left: now.holders.get(key).copied().flatten().unwrap_or_default() };
    }
    let Some(bytes) = held.values().copied().sum::<Option<u64>>() else {
        return Back::Unknown(format!("the memory that the target held on GPU {} is unknown", gpu.index));
    };
    let (Some(was), Some(is)) = (gpu.unaccounted, now.unaccounted) else {
        return Back::Unknown(format!("the unaccounted memory of GPU {} is unknown", gpu.index));
    };
    let others: Holders = gpu.holders.iter().filter(|(key, _)| !is_of(**key, ended)).map(copied).collect();
    let rise = u64::try_from(is.saturating_sub(was)).unwrap_or_default();
    if changed(&others, &now.holders, bytes) {
        Back::Unknown(format!("other processes changed their memory on GPU {} in the meantime", gpu.index))
    } else if rise > 0 && rise >= (bytes / PART).max(SLACK).min(bytes.div_ceil(2)) {
        // Other users can hold memory that the driver does not list, such as managed memory.
        Back::Unknown(format!("{rise} bytes on GPU {} are now unaccounted for, perhaps of others", gpu.index))
    } else {
        Back::Yes { bytes: bytes.saturating_sub(rise), left: rise }
    }
}

/// Returns whether other holders came or went, or their memory changed too much compared with `bytes`.
fn changed(before: &Holders, after: &Holders, bytes: u64) -> bool {
    if !before.keys().eq(after.keys()) {
        return true;
    }
    let pairs = before.values().zip(after.values());
    let moved = pairs.map(|(was, is)| Some(was.as_ref()?.abs_diff(*is.as_ref()?))).sum::<Option<u64>>();
    moved.is_none_or(|moved| moved > bytes / 4)
}

fn is_of((pid, start): (u32, Option<u64>), ended: &BTreeSet<ProcessKey>) -> bool {
    start.is_some_and(|start_ticks| ended.contains(&ProcessKey { pid, start_ticks }))
}

fn copied((key, held): (&(u32, Option<u64>), &Option<u64>)) -> ((u32, Option<u64>), Option<u64>) {
    (*key, *held)
}

#[cfg(test)]
mod tests {
    use snapshot_fixtures::stream as fixtures;

    use super::*;

    const OURS: ProcessKey = ProcessKey { pid: 10, start_ticks: 1 };
    /// Pid, start time and memory in bytes.
    type Row = (u32, Option<u64>, Option<u64>);

    fn snapshot(unaccounted: Option<i64>, rows: &[Row]) -> wire::Snapshot {
        let holders = rows.iter().map(|(pid, _, memory)| fixtures::holder(*pid, *memory, None));
        let memory = wire::Memory { total: 1000, unaccounted, ..wire::Memory::default() };
        let gpu = wire::Gpu {
            uuid: Some("GPU-1".into()),
            memory: Some(memory),
            ..fixtures::gpu("0", holders.collect())
        };
        let processes = rows.iter().map(|(pid, start_ticks, _)| wire::Process {
            pid: *pid,
            start_ticks: *start_ticks,
            ..wire::Process::default()
        });
        fixtures::snapshot(1, vec![gpu], processes.collect())
    }

    fn memory(unaccounted: Option<i64>, rows: &[Row]) -> Memory {
        Memory::of(&snapshot(unaccounted, rows))
    }

    fn name(back: &Back) -> &'static str {
        match back {
            Back::Yes { .. } => "yes",
            Back::No { .. } => "no",
            Back::Unknown(_) => "unknown",
        }
    }

    #[test]
    fn two_snapshots_show_whether_memory_was_released() {
        let ours: Row = (10, Some(1), Some(100));
        let other: Row = (20, Some(5), Some(300));
        let before = memory(Some(0), &[ours, other]);
        let cases: [(Option<i64>, &[Row], &str, &str); 12] = [
            (Some(0), &[other], "yes", "it left, and nothing rose"),
            (Some(-20), &[other], "yes", "reads are not atomic"),
            (Some(49), &[other], "yes", "a little may be anybody's"),
            (Some(50), &[other], "unknown", "half of it is unaccounted, or memory of others"),
            (Some(0), &[ours, other], "no", "it is listed"),
            (Some(0), &[(10, None, Some(100)), other], "no", "listed, and gone from /proc"),
            (Some(0), &[(10, Some(9), Some(100)), other], "unknown", "another with its pid came"),
            (Some(0), &[], "unknown", "another went"),
            (Some(0), &[(20, Some(5), Some(400))], "unknown", "another grew by as much"),
            (Some(100), &[(20, Some(5), Some(200))], "unknown", "or shrank by it"),
            (Some(0), &[(20, Some(5), Some(310))], "yes", "another grew by little"),
            (None, &[other], "unknown", "unaccounted memory is unknown"),
        ];
        for (unaccounted, rows, expected, why) in cases {
            let reported = back(&before, &memory(unaccounted, rows), &BTreeSet::from([OURS]));
            assert_eq!(name(&reported), expected, "{why}: {reported:?}");
        }
    }

    #[test]
    fn memory_still_held_is_not_reported_as_released() {
        const GIB: u64 = 1 << 30;
        let before = memory(Some(0), &[(10, Some(1), Some(40 * GIB))]);
        let reported = |unaccounted: u64| {
            let after = memory(Some(i64::try_from(unaccounted).unwrap()), &[]);
            back(&before, &after, &BTreeSet::from([OURS]))
        };
        assert_eq!(reported(2 * GIB), Back::Yes { bytes: 38 * GIB, left: 2 * GIB });
        assert_eq!(name(&reported(19 * GIB)), "unknown", "the memory may be that of others");
    }

    #[test]
    fn unobserved_release_is_unknown() {
        let all = BTreeSet::from([OURS]);
        let ours: Row = (10, Some(1), Some(100));
        let before = memory(Some(0), &[ours]);
        assert_eq!(back(&before, &memory(Some(0), &[]), &all), Back::Yes { bytes: 100, left: 0 });
        let mut lost = snapshot(Some(0), &[]);
        lost.gpus[0].fault = Some("lost".into());
        let mut unlisted = snapshot(Some(0), &[]);
        unlisted.gpus[0].listed = None;
        let mut removed = snapshot(Some(0), &[]);
        removed.gpus.clear();
        for after in [lost, unlisted, removed].map(|after| Memory::of(&after)) {
            assert_eq!(name(&back(&before, &after, &all)), "unknown");
        }
        let unknown = memory(Some(0), &[(10, Some(1), None)]);
        assert_eq!(name(&back(&unknown, &memory(Some(0), &[]), &all)), "unknown", "what it held");
        assert_eq!(name(&back(&memory(Some(0), &[]), &before, &all)), "unknown", "it was not listed before");
    }
}
