//! Attributes Xid errors of the kernel log to processes.

use std::collections::BTreeMap;

use crate::{
    Gap, Gaps, Gpu, GpuId, Holder, KernelLog, KernelLogState, LoggedXid, PidNamespace, Process, ProcessId,
    ProcessKey, Role,
};

/// Maximum number of processes that are remembered while not all processes are known.
const MOST_REMEMBERED: usize = 4096;

type Processes = BTreeMap<ProcessId, Process>;

/// Adds the errors of processes up to the previous snapshot, and those in the records that were read since. Counts a
/// gap if records were missed, because the worker was replaced or could not read the log meanwhile.
pub(crate) fn join(
    (before, read): (Option<&KernelLogState>, Option<&KernelLog>),
    (gpus, processes): (&mut [Gpu], &Processes),
    namespace: PidNamespace,
    gaps: &mut Gaps,
) -> Option<KernelLogState> {
    let mut state = before.cloned().or(read.map(|_| KernelLogState::NONE))?;
    for (key, holder) in holders(gpus) {
        holder.xids = state.counts.get(&key).cloned().unwrap_or_default();
    }
    if let Some(log) = read {
        if before.is_some_and(|before| before.until < log.from) {
            gaps.count(Gap::KernelLog);
        }
        state.until = log.until;
        state.sequence = count((state.sequence, log), (gpus, processes), namespace);
    }
    let all_listed = !gpus.is_empty() && gpus.iter().all(Gpu::lists_processes);
    if all_listed || state.counts.len() > MOST_REMEMBERED {
        state.counts.retain(|(key, _), _| processes.contains_key(&ProcessId::Live(*key)));
    }
    let counted = holders(gpus).filter(|(_, holder)| !holder.xids.is_empty());
    state.counts.extend(counted.map(|(key, holder)| (key, holder.xids.clone())));
    Some(state)
}

/// Returns the holders whose process and GPU have an identity.
fn holders(gpus: &mut [Gpu]) -> impl Iterator<Item = ((ProcessKey, GpuId), &mut Holder)> {
    gpus.iter_mut().flat_map(|gpu| {
        let id = gpu.about.id.clone();
        gpu.holders.iter_mut().filter_map(move |holder| match holder.process {
            ProcessId::Live(key) => Some(((key, id.clone()?), holder)),
            ProcessId::Unconfirmed { .. } => None,
        })
    })
}

/// Counts each error at the process that caused it, if that is certain. Returns the sequence number of the last error.
fn count(
    (mut last, log): (Option<u64>, &KernelLog),
    (gpus, processes): (&mut [Gpu], &Processes),
    namespace: PidNamespace,
) -> Option<u64> {
    for xid in &log.xids {
        if last.is_some_and(|last| xid.sequence <= last) {
            continue;
        }
        last = Some(xid.sequence);
        let found = namespace.attributes().then(|| holder(xid, log, (gpus, processes))).flatten();
        if let Some(holder) = found {
            *holder.xids.entry(xid.xid).or_default() += 1;
        }
    }
    last
}

/// Returns whether the driver's events contain more such errors of the GPU than are counted for its processes: users can
/// influence what the kernel prints.
fn is_reported(xid: &LoggedXid, gpus: &[Gpu]) -> bool {
    let in_slot = || gpus.iter().filter(|gpu| xid.is_in_slot_of(&gpu.about));
    let counts = |xids: &BTreeMap<u64, u64>| xids.get(&xid.xid).copied().unwrap_or_default();
    let events: u64 = in_slot().map(|gpu| counts(&gpu.xids)).sum();
    let lines: u64 = in_slot().flat_map(|gpu| &gpu.holders).map(|holder| counts(&holder.xids)).sum();
    lines < events
}

/// Returns the process that caused an error; `None` unless there is exactly one candidate.
fn holder<'g>(
    xid: &LoggedXid,
    log: &KernelLog,
    (gpus, processes): (&'g mut [Gpu], &Processes),
) -> Option<&'g mut Holder> {
    if !is_reported(xid, gpus) {
        return None;
    }
    let on_gpu = gpus.iter_mut().filter(|gpu| xid.is_on(&gpu.about)).flat_map(|gpu| &mut gpu.holders);
    let mut found =
        on_gpu.filter(|holder| holder.process.pid() == xid.pid && !holder.reused_pid).filter(|holder| {
            let facts = processes.get(&holder.process).and_then(|process| process.facts.as_ref());
            facts.is_some_and(|facts| {
                // An MPS server creates the channels of its clients, so the line does not show which client it was.
                let is_mps = holder.kinds.mps || facts.role.is_some() || facts.comm == Role::COMM;
                !is_mps && xid.is_of(&facts.key, &facts.comm, log.from)
            })
        });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}
