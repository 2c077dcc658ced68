//! Shared quota files: their content, which is a claim of the users who write them, and the driver's figures for the
//! processes that use them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Gpu, Process, ProcessId, ProcessKey, Snapshot, Truth};

/// Why a file says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvalidQuota {
    /// It cannot be opened or read.
    Unreadable,
    /// It is a FIFO, a link, a device.
    NoFile,
    /// It ends before it should.
    Short,
    /// It begins with something else.
    NoQuota,
    /// Of a version that is not known here.
    Version,
}

impl InvalidQuota {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::NoFile => "no_file",
            Self::Short => "short",
            Self::NoQuota => "no_quota",
            Self::Version => "version",
        }
    }
}

/// One file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Its path below the directory of quotas.
    pub name: String,
    /// Why it says nothing.
    pub invalid: Option<InvalidQuota>,
    /// GPUs that have a row in it, each once.
    pub gpus: Vec<QuotaGpu>,
    /// Processes that have a place in it.
    pub processes: Vec<QuotaProcess>,
    /// Faults of the library: it could not share the quota, or not write something down.
    pub faults: u64,
    /// Calls that were let through without being counted in bytes.
    pub uncounted: u64,
    /// Functions of the driver that the library should know and does not.
    pub hooks_missing: u64,
}

/// A GPU in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaGpu {
    /// Its UUID without `GPU-` or `MIG-`.
    pub uuid: String,
    /// Bytes that all together may have; none if there is no limit.
    pub limit: Option<u64>,
    /// Bytes that all together have.
    pub used: u64,
    /// The most that they ever had.
    pub peak: u64,
    /// Refused requests.
    pub denied: u64,
    /// Bytes that those asked for.
    pub denied_bytes: u64,
    /// Bytes that the driver says the quota's processes hold; none if it did not say so of each.
    pub held: Option<u64>,
    /// The same with the other processes of their container.
    pub held_around: Option<u64>,
}

/// A process in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaProcess {
    /// Its identity on this node; only of a process that has the file mapped, because any user can write a pid.
    pub process: Option<ProcessKey>,
    /// Whether the one that the file means lives.
    pub alive: Truth,
    /// Pid and start tick as the file has them, in a namespace of pids of this number.
    pub claim: (u32, u64, u64),
    /// Bytes of each GPU, in the order of [`Quota::gpus`].
    pub used: Vec<u64>,
    /// Refused requests.
    pub denied: u64,
    /// Those of them since the snapshot before.
    pub denied_since: Option<u64>,
}

impl QuotaGpu {
    /// Whether it is this GPU or MIG instance.
    #[must_use]
    pub fn is(&self, id: &str) -> bool {
        id.split_once('-').is_some_and(|(_, uuid)| uuid.eq_ignore_ascii_case(&self.uuid))
    }

    /// Its GPU or MIG instance among those of a node.
    #[must_use]
    pub fn among<'a>(&self, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
        gpus.iter().find(|gpu| gpu.about.id.as_ref().is_some_and(|id| self.is(&id.0)))
    }

    /// What the processes hold by the driver's account, as a part of the limit.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    pub fn ratio(&self) -> Option<f64> {
        let limit = self.limit.filter(|limit| *limit > 0)?;
        Some(self.held? as f64 / limit as f64)
    }
}

impl Quota {
    /// The place that a process has in it.
    #[must_use]
    pub fn place(&self, key: ProcessKey) -> Option<&QuotaProcess> {
        self.processes.iter().find(|process| process.process == Some(key))
    }

    /// The processes that use it, as far as they hold memory.
    pub fn users(&self) -> impl Iterator<Item = ProcessKey> {
        self.processes.iter().filter_map(|process| process.process)
    }

    /// Bytes of a GPU allocated by processes that are not known to have exited.
    #[must_use]
    pub fn used_by_the_living(&self, gpu: usize) -> u64 {
        let living = self.processes.iter().filter(|process| process.alive != Truth::False);
        living.filter_map(|process| process.used.get(gpu)).fold(0, |sum, used| sum.saturating_add(*used))
    }
}

/// Adds what two samples and the driver show of the files.
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

/// What the driver and `/proc` showed in the same sample.
pub(crate) struct QuotaInput<'a> {
    pub(crate) gpus: &'a [Gpu],
    pub(crate) processes: &'a BTreeMap<ProcessId, Process>,
}

impl QuotaInput<'_> {
    /// A quota's processes, and the others in a container with one, if no other quota has a process there: so allocations that
    /// bypassed the library are visible, though not by which process.
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

    /// Memory of the members on a GPU; none if a process with memory there cannot be found, or the driver does not report it.
    fn held(&self, quota: &Quota, place: usize, members: &BTreeSet<ProcessId>) -> Option<u64> {
        let row = quota.gpus.get(place)?;
        let gpu = row.among(self.gpus)?;
        if gpu.fault.is_some() || gpu.listed != Some(gpu.holders.len() as u64) {
            return None;
        }
        let lost = |process: &crate::QuotaProcess| {
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
