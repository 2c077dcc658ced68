//! Number of consecutive windows in which an orphaned process and its whole workload did nothing. The whole
//! workload counts, because a launcher that waits for its ranks is in use as long as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Gpu, Process, ProcessId, ProcessKey, Relative, Snapshot};

/// Fraction of one core that an idle workload may use.
const IDLE_CPU: f64 = 0.01;
/// Error of the kernel's CPU time accounting, in seconds.
const TICK: f64 = 0.011;

pub(crate) struct Evidence<'a> {
    pub(crate) previous: Option<&'a Snapshot>,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) relatives: Option<&'a [Relative]>,
    pub(crate) window: Duration,
}

/// CPU seconds of each member of a workload; `None` if not all are known.
type Used = Option<BTreeMap<ProcessKey, f64>>;

/// Sets `still` of each orphaned process whose workload did nothing in this window.
pub(crate) fn count(processes: &mut BTreeMap<ProcessId, Process>, evidence: &Evidence<'_>) {
    for (id, windows) in windows(processes, evidence) {
        processes.entry(id).and_modify(|process| process.still = windows);
    }
}

fn windows(processes: &BTreeMap<ProcessId, Process>, evidence: &Evidence<'_>) -> Vec<(ProcessId, u32)> {
    let left: Vec<(ProcessId, &str)> = processes
        .iter()
        .filter_map(|(id, process)| {
            let facts = process.facts.as_ref()?;
            let is_left = facts.orphaned == Some(true) && !facts.unread_relatives;
            let facts = Some(facts).filter(|_| is_left)?;
            Some((*id, facts.workload.as_deref()?))
        })
        .collect();
    let (Some(previous), false) = (evidence.previous, left.is_empty()) else { return Vec::new() };
    let wanted: BTreeSet<&str> = left.iter().map(|(_, workload)| *workload).collect();
    let before = used(&previous.processes, previous.relatives.as_deref(), &wanted);
    let now = used(processes, evidence.relatives, &wanted);
    let (Some(before), Some(now)) = (before, now) else { return Vec::new() };
    let busy = busy(processes, evidence.gpus);
    let still = |workload: &str| {
        let pair = before.get(workload).zip(now.get(workload));
        !busy.contains(workload)
            && pair.is_some_and(|(before, now)| did_nothing(before, now, evidence.window))
    };
    let windows = |id| previous.processes.get(&id).map_or(0, |before| before.still.saturating_add(1));
    left.iter().filter(|(_, workload)| still(workload)).map(|(id, _)| (*id, windows(*id))).collect()
}

/// Returns the CPU seconds by workload; `None` if not all processes were read.
fn used<'w>(
    processes: &BTreeMap<ProcessId, Process>,
    relatives: Option<&[Relative]>,
    wanted: &BTreeSet<&'w str>,
) -> Option<BTreeMap<&'w str, Used>> {
    let holders = processes.values().filter_map(|process| process.facts.as_ref()).filter_map(|facts| {
        let seconds = facts.reaped_cpu_seconds.map(|reaped| facts.cpu_seconds + reaped);
        Some((facts.workload.as_deref()?, facts.key, seconds))
    });
    let relatives = relatives?.iter().map(|relative| {
        let seconds = relative.cpu_seconds + relative.reaped_cpu_seconds;
        (relative.workload.as_str(), relative.key, Some(seconds))
    });
    let mut found: BTreeMap<&str, Used> = wanted.iter().map(|name| (*name, Some(BTreeMap::new()))).collect();
    for (workload, key, seconds) in holders.chain(relatives) {
        let Some(used) = found.get_mut(workload) else { continue };
        *used = used.take().zip(seconds).map(|(mut used, seconds)| {
            used.insert(key, seconds);
            used
        });
    }
    Some(found)
}

/// Returns whether no process started or exited, and all together used almost no CPU time.
fn did_nothing(before: &Used, now: &Used, window: Duration) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return false };
    let spent: f64 = now.values().sum::<f64>() - before.values().sum::<f64>();
    before.keys().eq(now.keys()) && spent <= IDLE_CPU * window.as_secs_f64() + TICK
}

/// Returns the workloads with a process that was not observed idle on a GPU that it holds.
fn busy<'a>(processes: &'a BTreeMap<ProcessId, Process>, gpus: &[Gpu]) -> BTreeSet<&'a str> {
    let holders = gpus.iter().flat_map(|gpu| &gpu.holders);
    holders
        .filter(|holder| holder.utilization.idle() != Some(true))
        .filter_map(|holder| processes.get(&holder.process)?.facts.as_ref()?.workload.as_deref())
        .collect()
}
