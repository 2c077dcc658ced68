//! Completes the quotas read from the quota files with data from the driver, `/proc` and the previous snapshot.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Gpu, Process, ProcessId, Quota, QuotaProcess, Snapshot, Truth};

/// Adds the figures from the previous snapshot and from the driver to the quotas.
pub(crate) fn join(quotas: &mut [Quota], before: Option<&Snapshot>, seen: &QuotaInput<'_>) {
    let around: Vec<BTreeSet<ProcessId>> =
        (0..quotas.len()).map(|place| seen.around(quotas, place)).collect();
    let earlier = before.and_then(|before| before.quotas.as_deref()).unwrap_or_default();
    for (quota, around) in quotas.iter_mut().zip(around) {
        let past = earlier.iter().find(|past| past.name == quota.name);
        for process in &mut quota.processes {
            let past = past.and_then(|past| past.processes.iter().find(|past| past.claim == process.claim));
            process.denied_since = past.and_then(|past| process.denied.checked_sub(past.denied));
        }
        let own: BTreeSet<ProcessId> = quota.users().map(ProcessId::Live).collect();
        for place in 0..quota.gpus.len() {
            let held = [&own, &around].map(|members| seen.held(quota, place, members));
            if let Some(gpu) = quota.gpus.get_mut(place) {
                [gpu.held, gpu.held_around] = held;
            }
        }
    }
}

pub(crate) struct QuotaInput<'a> {
    pub(crate) gpus: &'a [Gpu],
    pub(crate) processes: &'a BTreeMap<ProcessId, Process>,
}

impl QuotaInput<'_> {
    /// Returns the quota's processes, and all other processes in their containers if no other quota has a process
    /// there. This shows allocations that bypassed the library, but not which process made them.
    fn around(&self, quotas: &[Quota], place: usize) -> BTreeSet<ProcessId> {
        let containers = |quota: &Quota| -> BTreeSet<&str> {
            quota.users().filter_map(|key| self.container(ProcessId::Live(key))).collect()
        };
        let Some(quota) = quotas.get(place) else { return BTreeSet::new() };
        let mut whole = containers(quota);
        for (_, other) in quotas.iter().enumerate().filter(|(other, _)| *other != place) {
            for container in containers(other) {
                whole.remove(container);
            }
        }
        let beside = self.processes.keys().copied();
        let beside = beside.filter(|id| self.container(*id).is_some_and(|name| whole.contains(name)));
        quota.users().map(ProcessId::Live).chain(beside).collect()
    }

    fn container(&self, id: ProcessId) -> Option<&str> {
        self.processes.get(&id)?.facts.as_ref()?.place.container.as_deref()
    }

    /// Returns the memory of the members on a GPU; `None` if a process with memory there was not found, or
    /// the driver does not report all memory.
    fn held(&self, quota: &Quota, place: usize, members: &BTreeSet<ProcessId>) -> Option<u64> {
        let row = quota.gpus.get(place)?;
        let gpu = row.among(self.gpus)?;
        if gpu.fault.is_some() || gpu.listed != Some(gpu.holders.len() as u64) {
            return None;
        }
        let lost = |process: &QuotaProcess| {
            let has = process.used.get(place).is_some_and(|used| *used > 0);
            has && process.process.is_none() && process.alive != Truth::False
        };
        if quota.processes.iter().any(lost) {
            return None;
        }
        let holders = gpu.holders.iter().filter(|holder| members.contains(&holder.process));
        holders.map(|holder| holder.memory).try_fold(0_u64, |sum, memory| sum.checked_add(memory?))
    }
}
