//! The stream's form, version 1: one JSON object a line. Its types are its own, so that what this program
//! holds inside may change without a reader noticing. Fields may be added within a version; a reader
//! ignores what it does not know, and refuses another version.

mod of;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Claim, Leases, LostGpu, Mps, Place, ProcessKey, Quota};

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// Why a line is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It is not JSON of this shape.
    #[error("not a snapshot: {0}")]
    Shape(#[from] serde_json::Error),
    /// It is of another version.
    #[error(
        "a snapshot of version {found}, and this program reads version {VERSION}; update the older of the two"
    )]
    Version {
        /// What the line says.
        found: u32,
    },
}

/// One line of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// Counts up by one an interval; a jump is a missed line.
    pub seq: u64,
    /// Which boot; none if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Milliseconds since boot, suspend included.
    pub boot_ms: u64,
    /// The interval's period in milliseconds.
    pub interval_ms: u64,
    /// `host`, `other` or `unknown`; nothing is attributed but in `host`.
    pub pid_namespace: String,
    /// By name: `nvml`, `proc`, `redis` where there is a pool of leases, `quota` where there is a directory of quotas, `mps` where MPS runs.
    pub sources: BTreeMap<String, Source>,
    /// GPUs and MIG instances.
    pub gpus: Vec<Gpu>,
    /// GPUs that are lost or that the driver no longer lists, and which processes held them before: a memory, no
    /// observation. Of a lost GPU that is not here it is not known which processes hold it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostGpu>,
    /// Every process that holds a part of a GPU; a pid stands here once.
    pub processes: Vec<Process>,
    /// Processes with open device files, if they were scanned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_processes: Option<DeviceProcesses>,
    /// Processes without GPU memory that belong to the workload of a holder; none if they
    /// were not searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relatives: Option<Vec<Relative>>,
    /// Names of the groups of owners of `relatives`, by uid; those of holders' owners are in [`Facts::groups`] as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<u32, Vec<String>>,
    /// The pool of leases; none if there is none, or it did not answer: then `sources` has `redis`, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Leases>,
    /// Files of shared quotas; none if there is no directory of them, or it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Vec<Quota>>,
    /// MPS; none if nothing of it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<Mps>,
}

/// A process that holds no GPU memory and belongs to a workload that does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Relative {
    /// Pid in the host's namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Parent.
    pub ppid: u32,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Owner's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name.
    pub comm: String,
    /// `sleeping`, `zombie` and so on.
    pub state: String,
    /// The workload that it belongs to, as in [`Facts::workload`].
    pub workload: String,
    /// Container, pod, job, unit.
    pub place: Arc<Place>,
    /// Path of its program, where we may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// Command line, redacted, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// CPU time used, seconds.
    pub cpu_seconds: f64,
    /// CPU time of its children that have ended and were waited for, seconds.
    pub reaped_cpu_seconds: f64,
}

/// The state of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// It answered.
    pub up: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A GPU or MIG instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// `0`, or `0:1` for a MIG instance.
    pub index: String,
    /// UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Product name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// UUID of the GPU that this is an instance of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_uuid: Option<String>,
    /// N of `/dev/nvidiaN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// CUDA compute capability, major and minor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<(i32, i32)>,
    /// Why nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// MIG is on.
    pub mig: bool,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Device utilization, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
    /// Which processes may create a context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<String>,
    /// Entries of the driver's lists; none if it gave no list, and then `holders` says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<u64>,
    /// Number of instances, if MIG is on and the driver gave all of them: the processes are in their lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// Processes that have its device file open and are in none of the driver's lists; none without a scan, or if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted_processes: Option<u64>,
    /// Its holders.
    pub holders: Vec<Holder>,
    /// Which of them are stuck, and how: `zombie_leader`, `zombie`, `disk_sleep`, `left_behind` or `gone`, by pid; seen so at
    /// the number of consecutive samples that this requires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stuck: BTreeMap<u32, String>,
}

/// Memory of a GPU in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Used.
    pub used: u64,
    /// Reserved by driver and firmware; none if the driver does not report it separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
    /// Held by pids that the driver lists and `/proc` does not have; none if a part of the sum is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_pids: Option<u64>,
    /// Held by processes of PID namespaces that cannot be seen from the exporter; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_namespaces: Option<u64>,
    /// Of no listed process; none if a part of the sum is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaccounted: Option<i64>,
    /// Memory not released after its holders exited; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreleased: Option<u64>,
}

/// One process on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Of a process in `processes`.
    pub pid: u32,
    /// `C`, `G`, `M+C`, `C+G`.
    pub kinds: String,
    /// Bytes held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Percent of the busiest engine in the last window; none if it was not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<crate::Why>,
    /// Milliseconds observed idle since last observed busy.
    pub idle_ms: u64,
}

/// A process that holds GPU memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Pid in the host's namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot: with the pid and the boot id, the identity. None if `/proc` does not show the process: then it must never be signalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// For a process without start time: the first snapshot that listed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seq: Option<u64>,
    /// `sleeping`, `zombie_leader`, `gone` and so on.
    pub state: String,
    /// What `/proc` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
}

/// What `/proc` says of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Name.
    pub comm: String,
    /// Parent.
    pub ppid: u32,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Owner's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Container, pod, job, unit.
    pub place: Arc<Place>,
    /// Command line, redacted, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// CPU time used, seconds.
    pub cpu_seconds: f64,
    /// Bytes to and from storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_bytes: Option<u64>,
    /// Left behind by its session, job or container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphaned: Option<bool>,
    /// CPU time of its children that have ended and were waited for, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaped_cpu_seconds: Option<f64>,
    /// The workload: `slurm:PATH`, `container:PATH`, `pod:PATH`, `unit:PATH` of the cgroup, up to and including the name of the
    /// job or container; `tree:PID@TICKS`; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Path of its program, where we may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// Names of its owner's groups, once the name service has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// `mps_server` or `mps_control`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The lease that its environment names: `nothing`, or `{"lease": NAME}`; left out where that was not read.
    #[serde(default, skip_serializing_if = "Claim::is_unread")]
    pub claim: Claim,
    /// Pid and start tick of its parent, and so on up to the first process; none if one could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "pairs")]
    pub ancestors: Option<Vec<ProcessKey>>,
}

/// Processes with open device files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcesses {
    /// When it was looked for, milliseconds since boot.
    pub boot_ms: u64,
    /// The processes.
    #[serde(rename = "who")]
    pub processes: Vec<crate::DeviceProcess>,
    /// Processes that could not be read: the list is complete only if this is 0.
    pub unreadable: u64,
}

/// Understands one line.
///
/// # Errors
/// If the line is not a snapshot of this version.
pub fn parse(line: &[u8]) -> Result<Snapshot, WireError> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    // Once for the whole line is faster than for each string in it. Invalid UTF-8 is reported with its position.
    let parsed = match std::str::from_utf8(line) {
        Ok(text) => serde_json::from_str::<Snapshot>(text),
        Err(_) => serde_json::from_slice(line),
    };
    // A snapshot of another version may well have another form.
    let found = match &parsed {
        Ok(snapshot) => snapshot.version,
        Err(_) => serde_json::from_slice::<Head>(line)?.version,
    };
    if found != VERSION {
        return Err(WireError::Version { found });
    }
    Ok(parsed?)
}

/// Writes one line, its newline included.
///
/// # Errors
/// Never in practice: every type here has a JSON form.
pub fn write(snapshot: &crate::Snapshot) -> Result<Vec<u8>, WireError> {
    let mut line = serde_json::to_vec(&Snapshot::from(snapshot))?;
    line.push(b'\n');
    Ok(line)
}

/// Many processes in two numbers each.
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
