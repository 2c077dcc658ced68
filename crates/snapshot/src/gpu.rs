//! One GPU or MIG instance, as reported by the driver.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Activity, CgroupMemory, Fault, Health, Memory, MemoryUnknown, Reading};

/// UUID of a GPU or MIG device: its only name that stays the same after a reboot or a renumbering.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuId(pub String);

/// Properties of a GPU that do not change while the driver is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The driver's index. A MIG instance has its parent's index and its own: `0:1`.
    pub index: String,
    /// UUID; `None` if the GPU was lost or hung before the driver reported it.
    pub id: Option<GpuId>,
    /// Product name.
    pub name: Option<String>,
    /// PCI bus id, such as `00000000:17:00.0`.
    pub pci_bus_id: Option<String>,
    /// Minor number: N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// CUDA compute capability: major, minor.
    pub compute_capability: Option<(i32, i32)>,
    /// Ids of a MIG instance; `None` for a whole GPU.
    pub mig: Option<MigIds>,
}

impl About {
    /// Returns a GPU of which only the index is known.
    pub fn unnamed(index: u32) -> Self {
        Self { index: index.to_string(), ..Self::default() }
    }
}

/// Ids of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigIds {
    /// UUID of the GPU that contains the instance.
    pub parent: Option<GpuId>,
    /// GPU instance id.
    pub gpu_instance: Option<u32>,
    /// Compute instance id.
    pub compute_instance: Option<u32>,
}

crate::label_values! {
/// Which processes may create a context (`nvmlComputeMode_t`).
pub enum ComputeMode {
    /// Any number of contexts.
    Default = "default",
    /// One context per device and thread (deprecated).
    ExclusiveThread = "exclusive_thread",
    /// No contexts.
    Prohibited = "prohibited",
    /// Contexts of one process only: the recommended mode for MPS.
    ExclusiveProcess = "exclusive_process",
}
}

/// Readings of the device as a whole; `None` if not reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Percent of the last sampling period in which a kernel ran.
    pub utilization: Option<u32>,
    /// Percent of the last sampling period in which memory was read or written.
    pub memory_utilization: Option<u32>,
    /// Power draw in milliwatts.
    pub power: Option<u32>,
    /// Energy in millijoules since the driver was loaded.
    pub energy: Option<u64>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Clock frequencies in MHz, by name: `sm`, `memory`, `graphics`, `video`.
    pub clocks: BTreeMap<String, u32>,
    /// Which processes may create a context.
    pub compute_mode: Option<ComputeMode>,
    /// Whether MIG mode is on.
    pub mig_enabled: Option<bool>,
    /// Whether accounting mode is on.
    pub accounting: Option<bool>,
    /// Health of the device.
    pub health: Health,
    /// Activity of the engines since the previous sample.
    pub activity: Activity,
}

/// Kinds of context that a process has on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// Listed as a compute process.
    pub compute: bool,
    /// Listed as a graphics process.
    pub graphics: bool,
    /// Listed as an MPS client.
    pub mps: bool,
}

impl Kinds {
    /// Returns the kinds as `nvidia-smi` writes them: `C`, `G`, `M+C`, `C+G`.
    pub const fn letters(self) -> &'static str {
        match (self.compute, self.graphics, self.mps) {
            (_, false, true) => "M+C",
            (_, true, true) => "M+C+G",
            (true, true, false) => "C+G",
            (true, false, false) => "C",
            (false, true, false) => "G",
            (false, false, false) => "",
        }
    }

    /// Returns the kinds that either value contains.
    pub const fn union(self, other: Self) -> Self {
        Self {
            compute: self.compute || other.compute,
            graphics: self.graphics || other.graphics,
            mps: self.mps || other.mps,
        }
    }
}

/// One process in the driver's lists for a GPU. The three lists are merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Pid as reported by the driver; 0 is a process that the driver cannot name in this PID namespace.
    pub pid: u32,
    /// Bytes, the largest value of the lists; `None` if the driver reports "not available".
    pub memory: Option<u64>,
    /// Lists that contain the process.
    pub kinds: Kinds,
    /// Largest amount of memory that the process ever held, in bytes; `None` unless accounting mode is on.
    pub peak: Option<u64>,
}

/// State of one GPU in one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Names and ids of the GPU.
    pub about: About,
    /// Why the GPU could not be read; all fields below are then empty.
    pub fault: Option<Fault>,
    /// Memory use of the device.
    pub memory: Option<Memory>,
    /// Why the driver's memory figures are not used; `memory` is then `None`.
    pub memory_unknown: Option<MemoryUnknown>,
    /// Power, clocks and other readings.
    pub telemetry: Telemetry,
    /// Processes listed by the driver; `None` if the list could not be read.
    pub entries: Option<Vec<Entry>>,
    /// When that list was read, since boot.
    pub entries_at: Duration,
    /// Number of MIG instances, if MIG is on and all are known. The driver then lists processes by instance.
    pub instances: Option<u64>,
    /// Utilization samples of the device and its processes.
    pub reading: Reading,
    /// Xid errors since the previous sample.
    pub xids: Vec<u64>,
    /// Limits and memory of the cgroups whose processes are listed.
    pub cgroups: Vec<CgroupMemory>,
}

impl GpuSample {
    /// Returns a GPU that could not be read.
    pub fn faulty(about: About, fault: Fault) -> Self {
        Self {
            about,
            fault: Some(fault),
            memory: None,
            memory_unknown: None,
            telemetry: Telemetry::default(),
            entries: None,
            entries_at: Duration::ZERO,
            instances: None,
            reading: Reading::default(),
            xids: Vec::new(),
            cgroups: Vec::new(),
        }
    }
}
