//! One sample of all sources.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    BootId, Gaps, GpuSample, KernelLog, Leases, Moment, Mps, PidNamespace, PodResources, Quota, Relative,
    Seen, SlurmSample, Source, SourceState,
};

/// Versions reported by the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Version of the driver.
    pub version: Option<String>,
    /// Version of NVML.
    pub nvml: Option<String>,
    /// Newest CUDA version that the driver supports: major, minor.
    pub cuda: Option<(i32, i32)>,
}

/// A process that has a device file of a GPU open, whether the driver lists it or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// Pid.
    pub pid: u32,
    /// Start time in clock ticks since boot; identifies it together with the pid. `None` from older versions.
    pub start_ticks: Option<u64>,
    /// Name (`comm`).
    pub comm: String,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Minor numbers: N of each `/dev/nvidiaN` that is open.
    pub minors: Vec<u32>,
}

/// Processes with open device files. The scan is expensive, and therefore less frequent than samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcesses {
    /// Time of the scan, in milliseconds since boot.
    pub boot_ms: u64,
    /// Processes that were found.
    #[serde(rename = "who")]
    pub processes: Vec<DeviceProcess>,
    /// Number of processes whose descriptors could not be read. The list is complete only if this is 0.
    pub unreadable: u64,
}

impl DeviceProcesses {
    /// Returns the time of the scan, since boot.
    pub const fn at(&self) -> Duration {
        Duration::from_millis(self.boot_ms)
    }
}

/// All data read in one interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Sequence number; rises by one each interval.
    pub seq: u64,
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
    /// GPUs and MIG instances, in the driver's order.
    pub gpus: Vec<GpuSample>,
    /// Result of reading each listed pid from `/proc`.
    pub processes: BTreeMap<u32, Seen>,
    /// Processes without GPU memory in the workloads of holders; `None` if not all processes could be read.
    pub relatives: Option<Vec<Relative>>,
    /// Group names of the processes' owners by uid, as far as the name service has answered.
    pub groups: BTreeMap<u32, Vec<String>>,
    /// Processes with open device files, from the latest scan.
    pub device_processes: Option<DeviceProcesses>,
    /// State of the lease pool; `None` if there is no pool or it did not respond.
    pub leases: Option<Leases>,
    /// Shared quota files; `None` if there is no quota directory or it could not be read.
    pub quotas: Option<Vec<Quota>>,
    /// State of MPS; `None` if no part of it was found.
    pub mps: Option<Mps>,
    /// What Slurm's hooks left; `None` if they have not run, or their directory could not be read.
    pub slurm: Option<SlurmSample>,
    /// Devices that the kubelet has allocated; `None` if it was not asked, or did not answer.
    pub pod_resources: Option<PodResources>,
    /// Xid errors in the kernel log; `None` if it was not read.
    pub kernel_log: Option<KernelLog>,
    /// Number of gaps: data that could not be read.
    pub gaps: Gaps,
    /// Number of sampling workers that hung and could not be terminated.
    pub workers_hung: u32,
}
