//! The report: the data of `--json`, of saved reports and of the text. Unknown values are omitted.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::lease::Ticket;
use bailiff_snapshot::utilization::IDLE_AT_MOST_PERCENT;
use bailiff_snapshot::{
    CgroupMemory, ComputeMode, DeviceProcess, DeviceProcesses, EnergyParts, Fault, MemoryUnknown,
    PidNamespace, RecoveryAction, Role, State, Stuck, Why, Word, millis, wire,
};
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::collect::{Collected, SeenBy};
use super::lease_state::{LeaseInfo, PoolView};

/// The version of the JSON format.
pub(crate) const VERSION: u32 = 1;
/// The tag of a report without `--tag`.
pub(crate) const DEFAULT_TAG: &str = "default";

/// A report of all GPUs.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InfoReport {
    pub(crate) version: u32,
    pub(crate) tag: String,
    /// The time of the sample, in milliseconds since the Unix epoch.
    pub(crate) wall_ms: u64,
    pub(crate) seen_by: SeenBy,
    /// The age of the sample when the report was made.
    pub(crate) age_ms: u64,
    /// Sampling interval in milliseconds.
    pub(crate) interval_ms: u64,
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: Word<PidNamespace>,
    pub(crate) sources: BTreeMap<String, wire::Source>,
    /// The driver's error message.
    #[serde(rename = "words")]
    pub(crate) driver_message: Option<String>,
    /// The error of the lease pool.
    pub(crate) error: Option<String>,
    /// The waiting lease requests; `None` without a pool.
    pub(crate) queue: Option<Vec<Ticket>>,
    pub(crate) gpus: Vec<GpuReport>,
    /// The number of processes whose open files could not be read; `None` without a scan.
    pub(crate) unreadable: Option<u64>,
    /// Age of the scan of open files in milliseconds.
    pub(crate) device_processes_age_ms: Option<u64>,
    /// Whether a scan of open files was requested and failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) device_processes_failed: bool,
}

/// A GPU or MIG instance.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct GpuReport {
    pub(crate) index: String,
    pub(crate) uuid: Option<String>,
    pub(crate) parent_uuid: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) compute_capability: Option<(i32, i32)>,
    /// Why the GPU cannot be read.
    pub(crate) fault: Option<Word<Fault>>,
    pub(crate) mig: bool,
    /// Number of MIG instances of the GPU; processes are listed under the instances.
    pub(crate) instances: Option<u64>,
    pub(crate) memory: Option<Memory>,
    /// Why the driver's memory figures are not used.
    pub(crate) memory_unknown: Option<Word<MemoryUnknown>>,
    /// Utilization in percent.
    pub(crate) utilization: Option<u32>,
    /// Activity of each engine in the last interval, from 0 to 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) activity: BTreeMap<String, f64>,
    pub(crate) compute_mode: Option<Word<ComputeMode>>,
    /// What the GPU needs to work again.
    pub(crate) recovery_action: Option<Word<RecoveryAction>>,
    /// Number of Xid errors since the exporter started, by Xid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) xids: BTreeMap<u64, u64>,
    /// Limits and memory of the cgroups whose processes hold memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cgroups: Vec<CgroupMemory>,
    /// Energy since the driver was loaded, in millijoules.
    pub(crate) energy_mj: Option<u64>,
    /// Energy by part, in millijoules, since the exporter, or this command, started.
    pub(crate) energy_parts_mj: Option<EnergyParts>,
    /// Lease state of the GPU; `None` if it is not in a pool.
    pub(crate) lease: Option<LeaseInfo>,
    /// Holders of the GPU, by descending memory; `None` if the driver did not list them.
    pub(crate) holders: Option<Vec<Holder>>,
    /// The processes with an open device file; `None` without a scan.
    pub(crate) device_processes: Option<Vec<DeviceProcess>>,
}

/// The breakdown of memory: `total = free + reserved + computing + graphics + dead_pids + other_namespaces +
/// unaccounted`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// What the snapshot contains.
    #[serde(flatten)]
    pub(crate) observed: wire::Memory,
    /// Memory of compute processes, including those that also do graphics.
    pub(crate) computing: Option<u64>,
    /// Memory of graphics-only processes: display servers, compositors, browsers.
    pub(crate) graphics: Option<u64>,
}

/// A process on a GPU.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// The start time, which identifies the process together with pid and boot; `None` if `/proc` does not
    /// show it.
    pub(crate) start_ticks: Option<u64>,
    /// Types of its GPU contexts (compute, graphics, MPS client): `C`, `G`, `M+C`, `C+G`.
    pub(crate) kinds: String,
    pub(crate) memory: Option<u64>,
    /// Utilization of the busiest engine in percent, between the last two samples.
    pub(crate) utilization: Option<u32>,
    /// Why the utilization is unknown.
    pub(crate) unknown: Option<Why>,
    /// The observed idle time since the process was last busy, in milliseconds; unobserved time does not
    /// count.
    pub(crate) idle_ms: Option<u64>,
    /// Number of Xid errors on the GPU that the kernel log attributes to the process, by Xid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) xids: BTreeMap<u64, u64>,
    pub(crate) state: Word<State>,
    /// Pid of the parent process.
    pub(crate) ppid: Option<u32>,
    pub(crate) orphaned: Option<bool>,
    /// How the process is stuck, if it is.
    pub(crate) stuck: Option<Word<Stuck>>,
    pub(crate) user: Option<String>,
    pub(crate) uid: Option<u32>,
    pub(crate) comm: Option<String>,
    /// Notebook of a Jupyter kernel, as its environment names it.
    pub(crate) notebook: Option<String>,
    /// `mps_server` or `mps_control`, for a process of MPS.
    pub(crate) role: Option<Word<Role>>,
    pub(crate) container: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) slurm_job: Option<String>,
    pub(crate) unit: Option<String>,
    pub(crate) workload: Option<String>,
    /// Whether the process has a lease on the GPU; `None` if unknown.
    pub(crate) leased: Option<bool>,
}

/// Processes and lease pool of a snapshot.
struct HostView<'a> {
    processes: BTreeMap<u32, &'a wire::Process>,
    pool: PoolView<'a>,
}

impl InfoReport {
    pub(crate) fn new(collected: &Collected, tag: &str) -> Self {
        let snapshot = &collected.snapshot;
        let host = HostView {
            processes: snapshot.processes.iter().map(|process| (process.pid, process)).collect(),
            pool: PoolView::of(snapshot),
        };
        Self {
            version: VERSION,
            tag: tag.to_owned(),
            wall_ms: snapshot.wall_ms,
            seen_by: collected.by,
            age_ms: millis(collected.age),
            interval_ms: snapshot.interval_ms,
            boot_id: snapshot.boot_id.clone(),
            pid_namespace: snapshot.pid_namespace.clone(),
            sources: snapshot.sources.clone(),
            driver_message: collected.driver_message.clone(),
            error: collected.error.clone(),
            queue: host.pool.queue(),
            gpus: snapshot.gpus.iter().map(|gpu| GpuReport::of(gpu, &host)).collect(),
            unreadable: None,
            device_processes_age_ms: None,
            device_processes_failed: false,
        }
    }

    /// Keeps only the named GPUs with their MIG instances; fails for an unknown name.
    pub(crate) fn select(&mut self, names: &[String]) -> Result<(), String> {
        if names.is_empty() {
            return Ok(());
        }
        let missing = names.iter().find(|name| !self.gpus.iter().any(|gpu| gpu.has_name(name)));
        if let Some(name) = missing {
            return Err(format!("--gpu: this machine has no GPU with index or UUID {name:?}"));
        }
        self.filter(names);
        Ok(())
    }

    /// Keeps the named GPUs that exist; all if there are no names.
    pub(crate) fn filter(&mut self, names: &[String]) {
        self.gpus.retain(|gpu| names.is_empty() || names.iter().any(|name| gpu.has_name(name)));
    }

    /// Adds the processes with an open device file, from a scan of this age. The GPUs' device minors are taken
    /// from the snapshot.
    pub(crate) fn add_device_processes(
        &mut self,
        device_processes: &DeviceProcesses,
        age: Duration,
        snapshot: &wire::Snapshot,
    ) {
        self.unreadable = Some(device_processes.unreadable);
        self.device_processes_age_ms = Some(millis(age));
        for gpu in &mut self.gpus {
            let minor =
                snapshot.gpus.iter().find(|found| found.index == gpu.index).and_then(|found| found.minor);
            gpu.device_processes = minor.map(|minor| {
                device_processes
                    .processes
                    .iter()
                    .filter(|device_process| device_process.minors.contains(&minor))
                    .cloned()
                    .collect()
            });
        }
    }

    /// Returns the sources that failed, with the reason.
    pub(crate) fn down(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sources.iter().filter_map(|(name, source)| Some((name.as_str(), source.fault.as_deref()?)))
    }

    /// Returns why no GPU could be read, if none could.
    pub(crate) fn total_failure(&self) -> Option<&str> {
        let nvml = self.sources.get("nvml")?;
        let any = self.gpus.iter().any(|gpu| gpu.fault.is_none());
        nvml.fault.as_deref().filter(|_| !any)
    }
}

impl GpuReport {
    fn of(gpu: &wire::Gpu, host: &HostView<'_>) -> Self {
        let as_holder = |holder: &wire::Holder| {
            let process = host.processes.get(&holder.pid).copied();
            let stuck = gpu.stuck.get(&holder.pid).cloned();
            Holder { leased: host.pool.has_lease(process, gpu), stuck, ..Holder::of(holder, process) }
        };
        let holders = gpu.listed.map(|_| {
            let mut holders: Vec<Holder> = gpu.holders.iter().map(as_holder).collect();
            holders.sort_by_key(|holder| (std::cmp::Reverse(holder.memory), holder.pid));
            holders
        });
        Self {
            index: gpu.index.clone(),
            uuid: gpu.uuid.clone(),
            parent_uuid: gpu.parent_uuid.clone(),
            name: gpu.name.clone(),
            compute_capability: gpu.compute_capability,
            fault: gpu.fault.clone(),
            mig: gpu.mig,
            instances: gpu.instances,
            memory: gpu.memory.as_ref().map(|memory| Memory::of(memory, holders.as_deref())),
            memory_unknown: gpu.memory_unknown.clone(),
            utilization: gpu.utilization,
            activity: gpu.activity.clone(),
            compute_mode: gpu.compute_mode.clone(),
            recovery_action: gpu.recovery_action.clone(),
            xids: gpu.xids.clone(),
            cgroups: gpu.cgroups.clone(),
            energy_mj: gpu.energy_mj,
            energy_parts_mj: gpu.energy_parts_mj.clone(),
            lease: host.pool.gpu(gpu),
            holders,
            device_processes: None,
        }
    }

    /// Returns what the GPU needs to work again; `None` if nothing is known to be needed.
    pub(crate) fn needs(&self) -> Option<String> {
        let action = self.recovery_action.as_ref()?;
        let words = action.known().unwrap_or(RecoveryAction::Other).words()?;
        Some(words.replace("-i GPU", &format!("-i {}", self.index)))
    }

    /// Returns why the memory is unknown, if the cgroup of the sampling program is the cause.
    pub(crate) fn memory_unknown(&self) -> Option<&'static str> {
        Some(self.memory_unknown.as_ref()?.known()?.words())
    }

    fn has_name(&self, name: &str) -> bool {
        let is_parent = self.index.split(':').next() == Some(name);
        is_parent || self.index == name || [&self.uuid, &self.parent_uuid].contains(&&Some(name.to_owned()))
    }
}

impl Memory {
    fn of(memory: &wire::Memory, holders: Option<&[Holder]>) -> Self {
        let sum = |graphics_only: bool| {
            let alive = holders?
                .iter()
                .filter(|holder| holder.state != State::Gone && (holder.kinds == "G") == graphics_only);
            alive.map(|holder| holder.memory).sum::<Option<u64>>()
        };
        Self { observed: memory.clone(), computing: sum(false), graphics: sum(true) }
    }
}

impl Holder {
    fn of(holder: &wire::Holder, process: Option<&wire::Process>) -> Self {
        let facts = process.and_then(|process| process.facts.as_ref());
        let place = facts.map(|facts| &facts.place);
        // The idle time is known only if the process was observed, now or earlier.
        let observed = holder.utilization.is_some() || holder.idle_ms > 0;
        Self {
            pid: holder.pid,
            start_ticks: process.and_then(|process| process.start_ticks),
            kinds: holder.kinds.clone(),
            memory: holder.memory,
            utilization: holder.utilization,
            unknown: holder.unknown,
            idle_ms: observed.then_some(holder.idle_ms),
            xids: holder.xids.clone(),
            state: process.map(|process| process.state.clone()).unwrap_or_default(),
            ppid: facts.map(|facts| facts.ppid),
            orphaned: facts.and_then(|facts| facts.orphaned),
            stuck: None,
            user: facts.and_then(|facts| facts.user.clone()),
            uid: facts.and_then(|facts| facts.uid),
            comm: facts.map(|facts| facts.comm.clone()),
            notebook: facts.and_then(|facts| facts.notebook.clone()),
            role: facts.and_then(|facts| facts.role.clone()),
            container: place.and_then(|place| place.container.clone()),
            pod: place.and_then(|place| place.pod.clone().or_else(|| place.pod_uid.clone())),
            namespace: place.and_then(|place| place.namespace.clone()),
            slurm_job: place.and_then(|place| place.slurm_job.clone()),
            unit: place.and_then(|place| place.unit.clone()),
            workload: facts.and_then(|facts| facts.workload.clone()),
            leased: None,
        }
    }

    /// Returns the user name of the process owner, or the UID.
    pub(crate) fn owner(&self) -> Option<String> {
        self.user.clone().or_else(|| self.uid.map(|uid| uid.to_string()))
    }

    /// Returns how the process is stuck; `None` if it is not, or if that is unknown.
    pub(crate) fn stuck(&self) -> Option<Stuck> {
        self.stuck.as_ref()?.known()
    }

    /// Returns whether the process was observed idle between the last two samples.
    pub(crate) fn is_idle(&self) -> bool {
        self.utilization.is_some_and(|percent| percent <= IDLE_AT_MOST_PERCENT)
    }
}
