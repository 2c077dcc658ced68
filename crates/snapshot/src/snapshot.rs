//! A snapshot: a sample joined with the previous snapshot. [`Snapshot::between`] joins them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::Names;
use crate::listed::ListedPids;
use crate::pod_resources::{AllocationKey, PodGpus, StateSeconds};
use crate::utilization::Window;
use crate::{
    About, BootId, CgroupMemory, DeviceProcesses, Driver, Energy, EnergyParts, Facts, Fault, Gaps, GpuId,
    Holder, KernelLogState, Leases, LostGpu, Memory, MemoryUnknown, Moment, Mps, Parts, PidNamespace,
    Process, ProcessId, ProcessKey, Quota, QuotaGpu, Reading, Relative, SlurmNode, Source, SourceState,
    Stuck, Telemetry, Truth, Unreleased, Why,
};

/// State of a node in one interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Sequence number of the sample.
    pub seq: u64,
    /// Processes that CRIU restored, since the exporter started. A process may be missing from a snapshot in between.
    pub restored: BTreeSet<ProcessKey>,
    /// Start of the sample.
    pub at: Moment,
    /// Duration of the sample.
    pub took: Duration,
    /// Sampling interval.
    pub interval: Duration,
    /// Id of the boot; `None` if it could not be read.
    pub boot_id: Option<BootId>,
    /// Whether the driver's pids can be attributed to processes.
    pub namespace: PidNamespace,
    /// State of each source.
    pub sources: BTreeMap<Source, SourceState>,
    /// Versions of driver, NVML and CUDA.
    pub driver: Driver,
    /// GPUs and MIG instances.
    pub gpus: Vec<Gpu>,
    /// GPUs that are lost or no longer listed, with the processes that last held them.
    pub lost: Vec<LostGpu>,
    /// Processes that the driver lists on a GPU.
    pub processes: BTreeMap<ProcessId, Process>,
    /// Pids that each GPU lists, by UUID, or by index without one. They are kept while a GPU is missing.
    pub(crate) listed_pids: BTreeMap<String, ListedPids>,
    /// Processes without GPU memory in the workloads of holders; `None` if not all processes could be read.
    pub relatives: Option<Vec<Relative>>,
    /// Group names of the processes' owners, by uid.
    pub groups: BTreeMap<u32, Vec<String>>,
    /// GPU time of each user so far, by name, or by uid if there is no name.
    pub users: BTreeMap<String, UserTotals>,
    /// Energy of each GPU with a known UUID so far.
    pub energy: BTreeMap<GpuId, Energy>,
    /// Processes with open device files, from the latest scan.
    pub device_processes: Option<DeviceProcesses>,
    /// State of the lease pool; `None` if there is no pool or it did not respond.
    pub leases: Option<Leases>,
    /// Shared quota files; `None` if there is no quota directory or it could not be read.
    pub quotas: Option<Vec<Quota>>,
    /// State of MPS; `None` if no part of it was found.
    pub mps: Option<Mps>,
    /// GPUs allocated by Slurm; `None` if its hooks have not run, or their directory could not be read.
    pub slurm: Option<SlurmNode>,
    /// GPUs that are allocated to pods; `None` if the kubelet was not asked, or did not answer.
    pub pods: Option<PodGpus>,
    /// Time of each allocation to a container in each state. It is kept while the kubelet does not answer.
    pub pod_seconds: BTreeMap<AllocationKey, StateSeconds>,
    /// What is kept of the kernel log; `None` if it was never read.
    pub kernel_log: Option<KernelLogState>,
    /// Number of all gaps so far.
    pub gaps: Gaps,
    /// Number of sampling workers that hung and could not be terminated.
    pub workers_hung: u32,
}

/// One GPU or MIG instance in a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Names and ids of the GPU.
    pub about: About,
    /// Why the GPU could not be read.
    pub fault: Option<Fault>,
    /// Memory use of the device.
    pub memory: Option<Memory>,
    /// Why the driver's memory figures are not used; `memory` is then `None`.
    pub memory_unknown: Option<MemoryUnknown>,
    /// Breakdown of the memory; `None` if a part is unknown.
    pub parts: Option<Parts>,
    /// Power, clocks and other readings.
    pub telemetry: Telemetry,
    /// Number of entries in the driver's process list; `None` if there is no list.
    pub listed: Option<u64>,
    /// Number of MIG instances, if MIG is on and all are known. The driver then lists processes by instance.
    pub instances: Option<u64>,
    /// Processes that the driver lists on the GPU.
    pub holders: Vec<Holder>,
    /// Memory not released after its holders exited.
    pub unreleased: Unreleased,
    /// Number of Xid errors so far, by Xid.
    pub xids: BTreeMap<u64, u64>,
    /// Limits and memory of the cgroups whose processes are listed.
    pub cgroups: Vec<CgroupMemory>,
    /// Whether nothing computed on the GPU in the last window.
    pub idle: Truth,
    /// Utilization samples, kept for the next window.
    pub reading: Reading,
}

impl Snapshot {
    /// Returns how a holder is stuck; `None` if it is not stuck or that is unknown.
    pub fn stuck(&self, holder: &Holder) -> Option<Stuck> {
        // With a reused pid, the driver may mean another process.
        Stuck::of(self.processes.get(&holder.process).filter(|_| !holder.reused_pid)?)
    }

    /// Returns the energy of a GPU by part; `None` if no increase of its counter was observed.
    pub fn energy_parts(&self, gpu: &Gpu) -> Option<&EnergyParts> {
        self.energy.get(gpu.about.id.as_ref()?)?.parts.as_ref()
    }

    /// Returns the GPU with the same UUID, or with the same index if a UUID is unknown.
    pub fn gpu(&self, about: &About) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| match (&gpu.about.id, &about.id) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => gpu.about.index == about.index,
        })
    }
}

impl Gpu {
    /// Returns whether MIG mode is on, or this is a MIG instance.
    pub fn mig(&self) -> bool {
        self.about.mig.is_some() || self.telemetry.mig_enabled == Some(true)
    }

    /// Returns whether the driver may mean an exited process with a pid that it lists, because another one has that pid.
    pub fn has_reused_pid(&self) -> bool {
        self.holders.iter().any(|holder| holder.reused_pid)
    }

    /// Returns whether the driver listed the GPU's processes, in one list or by MIG instance.
    pub fn lists_processes(&self) -> bool {
        self.listed.is_some() || self.instances.is_some()
    }

    /// Returns the largest utilization of the device since the previous snapshot, in percent, by any process.
    ///
    /// # Errors
    /// If the driver has no valid utilization samples of the device.
    pub fn used_since(&self, before: Option<&Self>) -> Result<u32, Why> {
        let before = before.filter(|gpu| gpu.fault.is_none()).map(|gpu| &gpu.reading);
        let sampled = Window { before, now: &self.reading, mig: self.mig(), instance: None }.device()?;
        Ok(self.telemetry.utilization.map_or(sampled, |now| now.max(sampled)))
    }
}

impl<'a> From<&'a Gpu> for Names<'a> {
    fn from(gpu: &'a Gpu) -> Self {
        let parent = gpu.about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        Self {
            index: &gpu.about.index,
            uuid: gpu.about.id.as_ref().map(|id| id.0.as_str()),
            parent: parent.map(|id| id.0.as_str()),
        }
    }
}

impl QuotaGpu {
    /// Returns the GPU or MIG instance of this row.
    pub fn among<'a>(&self, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
        gpus.iter().find(|gpu| gpu.about.id.as_ref().is_some_and(|id| self.is(&id.0)))
    }
}

/// GPU time of one user so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct UserTotals {
    /// GPU-seconds in which the user had at least one process on the GPU.
    pub held_seconds: f64,
    /// Part of `held_seconds` in which all of the user's processes on the GPU were observed idle.
    pub idle_seconds: f64,
    /// Part of `held_seconds` in which none of the user's processes on the GPU was observed busy, and at least one was
    /// not observed.
    #[serde(default)]
    pub unknown_seconds: f64,
}

/// Returns the label of a process's owner: the name if known, else the uid.
pub fn user_label(facts: &Facts) -> Option<String> {
    facts.user.clone().or_else(|| facts.uid.map(|uid| uid.to_string()))
}
