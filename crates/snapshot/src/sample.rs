//! One sample of all sources.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    BootId, Gaps, GpuSample, Leases, Moment, Mps, PidNamespace, Quota, Relative, Seen, Source, SourceState,
};

/// Versions reported by the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Driver release.
    pub version: Option<String>,
    /// NVML release.
    pub nvml: Option<String>,
    /// The newest CUDA that the driver serves, major and minor.
    pub cuda: Option<(i32, i32)>,
}

/// A process that has a device file of a GPU open, whether the driver lists it or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// Its pid.
    pub pid: u32,
    /// Start time in clock ticks since boot: with the pid, its identity; none from an older program.
    #[serde(default)]
    pub start_ticks: Option<u64>,
    /// Its name.
    pub comm: String,
    /// Its owner.
    pub uid: Option<u32>,
    /// Minor numbers: N of each `/dev/nvidiaN`.
    pub minors: Vec<u32>,
}

/// Processes with open device files at some moment: expensive to find, so scanned seldom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcesses {
    /// When it was looked for.
    pub at: Moment,
    /// The processes.
    #[serde(rename = "who")]
    pub processes: Vec<DeviceProcess>,
    /// Processes whose descriptors could not be read: the list is complete only if this is 0.
    pub unreadable: u64,
}

/// Everything that was read in one interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Counts up by one an interval.
    pub seq: u64,
    /// When the interval began.
    pub at: Moment,
    /// How long it took.
    pub took: Duration,
    /// The interval's period.
    pub interval: Duration,
    /// Which boot; `None` where it could not be read.
    pub boot_id: Option<BootId>,
    /// Whether pids can be attributed.
    pub namespace: PidNamespace,
    /// How each source did.
    pub sources: BTreeMap<Source, SourceState>,
    /// Versions.
    pub driver: Driver,
    /// GPUs and MIG instances, in the driver's order.
    pub gpus: Vec<GpuSample>,
    /// What `/proc` says of each listed pid.
    pub processes: BTreeMap<u32, Seen>,
    /// Members of their workloads without memory; `None` if not all processes could be read.
    pub relatives: Option<Vec<Relative>>,
    /// Names of their owners' groups, by uid, as far as the name service has answered.
    pub groups: BTreeMap<u32, Vec<String>>,
    /// Processes with open device files, from the latest scan.
    pub device_processes: Option<DeviceProcesses>,
    /// The pool of leases; `None` where there is none, or it did not answer.
    pub leases: Option<Leases>,
    /// Files of shared quotas; `None` where there is no directory of them, or it could not be read.
    pub quotas: Option<Vec<Quota>>,
    /// MPS; `None` where nothing of it was seen.
    pub mps: Option<Mps>,
    /// What could not be read.
    pub gaps: Gaps,
    /// Sampling workers that hung and could not be ended.
    pub workers_hung: u32,
}
