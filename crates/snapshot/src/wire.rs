//! Format of the snapshot stream, version 1: one JSON object per line. Fields and enum values may be added
//! within a version. A reader ignores unknown fields, keeps unknown enum values as [`Word::Other`], and refuses other
//! versions.

mod of;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{
    CgroupMemory, Claim, ClockEvent, ComputeMode, DeviceProcesses, EnergyParts, Fault, Leases, LostGpu,
    MemoryUnknown, Mps, PidNamespace, Place, PodGpus, ProcessKey, Quota, RecoveryAction, Role, SlurmNode,
    State, Stuck, Why, Word,
};

/// Version that is written, and the only one that is accepted.
pub const VERSION: u32 = 1;

/// Why a line is not a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The line is not JSON of this shape.
    #[error("not a snapshot: {0}")]
    Shape(#[from] serde_json::Error),
    /// The line has another version.
    #[error(
        "the snapshot has version {found}, but this program reads version {VERSION}; update the older program"
    )]
    Version {
        /// Version in the line.
        found: u32,
    },
}

/// One line of the stream.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// Sequence number; rises by one each interval. A jump means that lines were missed.
    pub seq: u64,
    /// Id of the boot; `None` if it could not be read.
    pub boot_id: Option<String>,
    /// Start of the sample, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Start of the sample, in milliseconds since boot, including suspend.
    pub boot_ms: u64,
    /// Sampling interval in milliseconds.
    pub interval_ms: u64,
    /// Whether the driver's pids are those of the exporter's `/proc`. Only with `host` are they attributed to processes.
    pub pid_namespace: Word<PidNamespace>,
    /// State of each source by name: `nvml`, `proc`, `redis` if there is a lease pool, `quota` if there is a
    /// quota directory, `mps` if MPS is running, `slurm` if its hooks have run, `pod_resources` if the kubelet
    /// is asked.
    pub sources: BTreeMap<String, Source>,
    /// GPUs and MIG instances.
    pub gpus: Vec<Gpu>,
    /// GPUs that are lost or that the driver no longer lists, with the processes that held them before. They
    /// are remembered, not observed. If a lost GPU is missing here, the processes that hold it are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostGpu>,
    /// Processes that the driver lists on a GPU; each pid occurs once.
    pub processes: Vec<Process>,
    /// Processes with open device files; `None` without a scan.
    pub device_processes: Option<DeviceProcesses>,
    /// Processes without GPU memory in the workloads of holders; `None` if they were not searched for.
    pub relatives: Option<Vec<Relative>>,
    /// Group names of the owners of `relatives`, by uid. For the owners of holders, see [`Facts::groups`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<u32, Vec<String>>,
    /// State of the lease pool; `None` if there is no pool, or it did not respond (`sources` shows the reason).
    pub leases: Option<Leases>,
    /// Shared quota files; `None` if there is no quota directory or it could not be read.
    pub quotas: Option<Vec<Quota>>,
    /// State of MPS; `None` if no part of it was found.
    pub mps: Option<Mps>,
    /// GPUs allocated by Slurm; `None` if its hooks have not run, or their directory could not be read.
    pub slurm: Option<SlurmNode>,
    /// GPUs that are allocated to pods; `None` if the kubelet was not asked, or did not answer (`sources` shows the reason).
    pub pods: Option<PodGpus>,
}

/// A process without GPU memory that belongs to the workload of a holder.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Relative {
    /// Pid in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Parent's pid.
    pub ppid: u32,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Owner's name.
    pub user: Option<String>,
    /// Name (`comm`).
    pub comm: String,
    /// Process state.
    pub state: Word<State>,
    /// Workload that it belongs to, as in [`Facts::workload`].
    pub workload: String,
    /// Container, pod, job and unit that it runs in.
    pub place: Arc<Place>,
    /// Path of its program, if readable.
    pub exe: Option<String>,
    /// Owner of the program's file, if readable; `u32::MAX` if there is no program or its owner is hidden.
    pub exe_uid: Option<u32>,
    /// Command line without secrets, if command lines are read.
    pub command: Option<String>,
    /// CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of its reaped children, in seconds.
    pub reaped_cpu_seconds: f64,
}

/// State of a source.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Whether the source answered.
    pub up: bool,
    /// Why the source did not answer.
    pub fault: Option<Word<Fault>>,
}

/// A GPU or MIG instance.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's index: `0`, or `0:1` for a MIG instance.
    pub index: String,
    /// UUID.
    pub uuid: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// UUID of the GPU that contains the MIG instance.
    pub parent_uuid: Option<String>,
    /// Minor number: N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// CUDA compute capability, major and minor.
    pub compute_capability: Option<(i32, i32)>,
    /// Why the GPU could not be read.
    pub fault: Option<Word<Fault>>,
    /// Whether MIG mode is on, or this is a MIG instance.
    pub mig: bool,
    /// Memory in bytes.
    pub memory: Option<Memory>,
    /// Why the driver's memory figures are not used.
    pub memory_unknown: Option<Word<MemoryUnknown>>,
    /// Utilization of the device, in percent.
    pub utilization: Option<u32>,
    /// Activity of each engine in the last interval, from 0 to 1, if the exporter reads it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub activity: BTreeMap<String, f64>,
    /// Which processes may create a context.
    pub compute_mode: Option<Word<ComputeMode>>,
    /// What the GPU needs to work again.
    pub recovery_action: Option<Word<RecoveryAction>>,
    /// Whether a memory row will be remapped at the next reset.
    pub row_remap_pending: Option<bool>,
    /// Whether a memory row could not be remapped.
    pub row_remap_failed: Option<bool>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Why the clocks are reduced, other than by settings or because the GPU is idle.
    pub clock_events: Option<Vec<Word<ClockEvent>>>,
    /// Number of Xid errors since the exporter started, by Xid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xids: BTreeMap<u64, u64>,
    /// Limits and memory of the cgroups whose processes are listed on the GPU or its MIG instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<CgroupMemory>,
    /// Energy since the driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// Energy since the exporter started by part, in millijoules; `None` until an increase was observed.
    pub energy_parts_mj: Option<EnergyParts>,
    /// Number of entries in the driver's process list; `None` without a list (`holders` is then meaningless).
    pub listed: Option<u64>,
    /// Number of MIG instances, if MIG is on and all are known. The driver then lists processes by instance.
    pub instances: Option<u64>,
    /// Number of processes that have its device file open but are in no driver list; `None` if unknown.
    pub unlisted_processes: Option<u64>,
    /// Processes that the driver lists on the GPU.
    pub holders: Vec<Holder>,
    /// Kind of each stuck holder by pid. It is set after the required number of consecutive samples.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stuck: BTreeMap<u32, Word<Stuck>>,
}

/// Memory of a GPU in bytes.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Total memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// Used memory.
    pub used: u64,
    /// Reserved by driver and firmware; `None` if the driver does not report it separately.
    pub reserved: Option<u64>,
    /// Held by listed pids that do not exist in `/proc`; `None` if a part of the breakdown is unknown.
    pub dead_pids: Option<u64>,
    /// Held in PID namespaces not visible to the exporter; `None` if a part of the breakdown is unknown.
    pub other_namespaces: Option<u64>,
    /// Held by no listed process; `None` if a part of the breakdown is unknown.
    pub unaccounted: Option<i64>,
    /// Memory not released after its holders exited; `None` if unknown.
    pub unreleased: Option<u64>,
}

/// One process on one GPU.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Pid of a process in [`Snapshot::processes`].
    pub pid: u32,
    /// Kinds of context: `C`, `G`, `M+C`, `C+G`.
    pub kinds: String,
    /// Bytes held.
    pub memory: Option<u64>,
    /// Utilization of the busiest engine in the last window, in percent; `None` if not observed.
    pub utilization: Option<u32>,
    /// Why the utilization was not observed.
    pub unknown: Option<Why>,
    /// Milliseconds observed idle since last observed busy.
    pub idle_ms: u64,
    /// Number of Xid errors on the GPU that the kernel log attributes to the process, by Xid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xids: BTreeMap<u64, u64>,
}

/// A process that holds GPU memory.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Pid in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot; identifies the process together with the pid and the boot id. `None`
    /// if `/proc` does not show the process, which must then never be signalled.
    pub start_ticks: Option<u64>,
    /// Number of the first snapshot that listed it, for a process without start time.
    pub first_seq: Option<u64>,
    /// Process state.
    pub state: Word<State>,
    /// Facts from `/proc`.
    pub facts: Option<Facts>,
}

impl Process {
    /// Returns the identity; `None` if `/proc` did not confirm the process.
    pub fn key(&self) -> Option<ProcessKey> {
        Some(ProcessKey { pid: self.pid, start_ticks: self.start_ticks? })
    }
}

impl Relative {
    /// Returns the identity.
    pub const fn key(&self) -> ProcessKey {
        ProcessKey { pid: self.pid, start_ticks: self.start_ticks }
    }
}

/// Facts about a process, from `/proc`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Name (`comm`).
    pub comm: String,
    /// Parent's pid.
    pub ppid: u32,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Owner's name.
    pub user: Option<String>,
    /// Container, pod, job and unit that it runs in.
    pub place: Arc<Place>,
    /// Command line without secrets, if command lines are read.
    pub command: Option<String>,
    /// CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// Bytes read from and written to storage.
    pub io_bytes: Option<u64>,
    /// Whether its session, job or container has ended.
    pub orphaned: Option<bool>,
    /// CPU time of its reaped children, in seconds.
    pub reaped_cpu_seconds: Option<f64>,
    /// Workload: `slurm:PATH`, `container:PATH`, `pod:PATH` or `unit:PATH` with the cgroup path up to and
    /// including the name, or `tree:PID@TICKS`; `None` if unknown.
    pub workload: Option<String>,
    /// Path of its program, if readable.
    pub exe: Option<String>,
    /// Owner of the program's file, if readable; `u32::MAX` if there is no program or its owner is hidden.
    pub exe_uid: Option<u32>,
    /// Group names of its owner, once the name service has answered.
    pub groups: Option<Vec<String>>,
    /// Role in MPS.
    pub role: Option<Word<Role>>,
    /// Lease named in its environment: `nothing`, or `{"lease": NAME}`; omitted if it was not read.
    #[serde(default, skip_serializing_if = "Claim::is_unread")]
    pub claim: Claim,
    /// Notebook of a Jupyter kernel, named in its environment, if notebooks are read.
    pub notebook: Option<String>,
    /// Pid and start tick of each ancestor, up to the first process; `None` if one is unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "pairs")]
    pub ancestors: Option<Vec<ProcessKey>>,
    /// Whether CRIU is or was its ancestor; omitted if that is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// Whether the driver lists its pid on a GPU, but may mean a process that has exited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reused_pid: bool,
    /// Whether a process of its workload, or one that descends from it, could not be read in time, so that its relatives
    /// are unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread_relatives: bool,
}

/// Parses one line.
///
/// # Errors
/// If the line is not a snapshot of this version.
pub fn parse(line: &[u8]) -> Result<Snapshot, WireError> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    // Checking UTF-8 once is faster than for each string. Invalid UTF-8 is reported with its position.
    let parsed = match std::str::from_utf8(line) {
        Ok(text) => serde_json::from_str::<Snapshot>(text),
        Err(_) => serde_json::from_slice(line),
    };
    // A snapshot of another version may not parse, so only its version is read.
    let found = match &parsed {
        Ok(snapshot) => snapshot.version,
        Err(_) => serde_json::from_slice::<Head>(line)?.version,
    };
    if found != VERSION {
        return Err(WireError::Version { found });
    }
    Ok(parsed?)
}

/// Returns one line, including its newline.
///
/// # Errors
/// Never in practice, because every type here has a JSON form.
pub fn write(snapshot: &crate::Snapshot) -> Result<Vec<u8>, WireError> {
    let mut line = serde_json::to_vec(&Snapshot::from(snapshot))?;
    line.push(b'\n');
    Ok(line)
}

/// Serialization of each process as a pair of numbers, because there are many.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::ProcessKey;

    #[expect(clippy::ref_option, reason = "serde asks for this form")]
    pub(super) fn serialize<S: Serializer>(
        keys: &Option<Vec<ProcessKey>>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        let pairs = keys.as_ref().map(|keys| keys.iter().map(|key| (key.pid, key.start_ticks)).collect());
        Option::<Vec<(u32, u64)>>::serialize(&pairs, out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        line: D,
    ) -> Result<Option<Vec<ProcessKey>>, D::Error> {
        let pairs = Option::<Vec<(u32, u64)>>::deserialize(line)?;
        let key = |(pid, start_ticks)| ProcessKey { pid, start_ticks };
        Ok(pairs.map(|pairs| pairs.into_iter().map(key).collect()))
    }
}

impl<'a> From<&'a Gpu> for crate::lease::Names<'a> {
    fn from(gpu: &'a Gpu) -> Self {
        Self { index: &gpu.index, uuid: gpu.uuid.as_deref(), parent: gpu.parent_uuid.as_deref() }
    }
}
