//! Whether the memory of those who ended came back, judged by two snapshots: their pids have left the driver's
//! list, and memory of nobody has not risen by what they held. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::{ProcessKey, wire};

/// What two snapshots tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Back {
    /// All of it is back.
    Yes {
        /// So many bytes.
        bytes: u64,
    },
    /// It is still held.
    No(String),
    /// Nobody can tell.
    Untold(String),
}

/// One GPU's holders: who, and how much; a pid without start time is known by the pid alone.
type Holders = BTreeMap<(u32, Option<u64>), Option<u64>>;

/// Compares; `ended` are those who held.
pub(super) fn back(before: &wire::Snapshot, after: &wire::Snapshot, ended: &BTreeSet<ProcessKey>) -> Back {
    let mut bytes = None;
    let mut untold = None;
    for gpu in &before.gpus {
        let theirs = holders(before, gpu);
        let held: Holders = theirs.iter().filter(|(who, _)| is_of(**who, ended)).map(copied).collect();
        if held.is_empty() {
            continue;
        }
        match on_one(gpu, (before, after), ended, &held) {
            Back::Yes { bytes: more } => bytes = Some(bytes.unwrap_or(0_u64).saturating_add(more)),
            Back::Untold(why) => untold = Some(why),
            no @ Back::No(_) => return no,
        }
    }
    match (untold, bytes) {
        (Some(why), _) => Back::Untold(why),
        (None, Some(bytes)) => Back::Yes { bytes },
        (None, None) => Back::Untold("the driver listed none of them before".to_owned()),
    }
}

fn on_one(
    gpu: &wire::Gpu,
    (before, after): (&wire::Snapshot, &wire::Snapshot),
    ended: &BTreeSet<ProcessKey>,
    held: &Holders,
) -> Back {
    let same = |other: &&wire::Gpu| other.uuid == gpu.uuid && other.index == gpu.index;
    let Some(now) = after.gpus.iter().find(same).filter(|now| now.fault.is_none() && now.listed.is_some())
    else {
        return Back::Untold(format!("GPU {} told nothing", gpu.index));
    };
    let listed = holders(after, now);
    // The driver may list a pid that has ended, and then /proc gives it no start time.
    let still = listed
        .keys()
        .find(|who| is_of(**who, ended) || (who.1.is_none() && held.keys().any(|(pid, _)| *pid == who.0)));
    if let Some((pid, _)) = still {
        return Back::No(format!("the driver still lists {pid} on GPU {}", gpu.index));
    }
    let Some(bytes) = held.values().copied().sum::<Option<u64>>() else {
        return Back::Untold(format!("nobody knows what it held on GPU {}", gpu.index));
    };
    let unaccounted = |gpu: &wire::Gpu| gpu.memory.as_ref().and_then(|memory| memory.unaccounted);
    let (Some(was), Some(is)) = (unaccounted(gpu), unaccounted(now)) else {
        return Back::Untold(format!("memory of nobody is not known on GPU {}", gpu.index));
    };
    let others: Holders = holders(before, gpu).into_iter().filter(|(who, _)| !is_of(*who, ended)).collect();
    let rise = u64::try_from(is.saturating_sub(was)).unwrap_or_default();
    if changed(&others, &listed, bytes) {
        Back::Untold(format!("others came, went or grew on GPU {} meanwhile", gpu.index))
    } else if bytes > 0 && rise >= bytes.div_ceil(2) {
        Back::No(format!("{rise} bytes on GPU {} are now of nobody", gpu.index))
    } else {
        Back::Yes { bytes }
    }
}

/// Others are no longer who they were, or what they hold has changed so much that it matters beside `bytes`.
fn changed(before: &Holders, after: &Holders, bytes: u64) -> bool {
    if !before.keys().eq(after.keys()) {
        return true;
    }
    let pairs = before.values().zip(after.values());
    let moved = pairs.map(|(was, is)| Some(was.as_ref()?.abs_diff(*is.as_ref()?))).sum::<Option<u64>>();
    moved.is_none_or(|moved| moved > bytes / 4)
}

fn holders(snapshot: &wire::Snapshot, gpu: &wire::Gpu) -> Holders {
    let starts: BTreeMap<u32, Option<u64>> =
        snapshot.processes.iter().map(|process| (process.pid, process.start_ticks)).collect();
    let named = gpu.holders.iter().map(|holder| {
        let start = starts.get(&holder.pid).copied().flatten();
        ((holder.pid, start), holder.memory)
    });
    named.collect()
}

fn is_of((pid, start): (u32, Option<u64>), ended: &BTreeSet<ProcessKey>) -> bool {
    start.is_some_and(|start_ticks| ended.contains(&ProcessKey { pid, start_ticks }))
}

fn copied((who, held): (&(u32, Option<u64>), &Option<u64>)) -> ((u32, Option<u64>), Option<u64>) {
    (*who, *held)
}
