//! One GPU, or one MIG instance, as reported by the driver.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Fault, Memory, Reading};

/// A GPU's UUID, or a MIG device's: the only name that survives a reboot and a renumbering.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuId(pub String);

/// What does not change while the driver is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The driver's index; a MIG instance has its parent's and its own, `0:1`.
    pub index: String,
    /// UUID; `None` for a GPU that was lost or hung before it reported it.
    pub id: Option<GpuId>,
    /// Product name.
    pub name: Option<String>,
    /// PCI bus id, `00000000:17:00.0`.
    pub pci_bus_id: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// CUDA compute capability.
    pub compute_capability: Option<(i32, i32)>,
    /// For a MIG instance.
    pub mig: Option<MigIds>,
}

impl About {
    /// A GPU of which only the index is known.
    #[must_use]
    pub fn unnamed(index: u32) -> Self {
        Self { index: index.to_string(), ..Self::default() }
    }
}

/// The ids of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigIds {
    /// The GPU that it is a part of.
    pub parent: Option<GpuId>,
    /// GPU instance id.
    pub gpu_instance: Option<u32>,
    /// Compute instance id.
    pub compute_instance: Option<u32>,
}

/// `nvmlComputeMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of contexts.
    Default,
    /// One context per device and thread (deprecated).
    ExclusiveThread,
    /// No contexts.
    Prohibited,
    /// One process; the mode that MPS asks for.
    ExclusiveProcess,
}

impl ComputeMode {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::ExclusiveThread => "exclusive_thread",
            Self::Prohibited => "prohibited",
            Self::ExclusiveProcess => "exclusive_process",
        }
    }
}

/// Figures of the device as a whole; `None` if not reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Percent of the last sampling period in which a kernel ran.
    pub utilization: Option<u32>,
    /// Percent of the last sampling period in which memory was read or written.
    pub memory_utilization: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    /// Millijoules since the driver was loaded.
    pub energy: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// MHz by clock: `sm`, `memory`, `graphics`, `video`.
    pub clocks: BTreeMap<String, u32>,
    /// Which processes may create a context.
    pub compute_mode: Option<ComputeMode>,
    /// MIG mode is on.
    pub mig_enabled: Option<bool>,
    /// Accounting mode is on.
    pub accounting: Option<bool>,
}

/// The kinds of context that a process has on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// In the compute list.
    pub compute: bool,
    /// In the graphics list.
    pub graphics: bool,
    /// In the list of MPS clients.
    pub mps: bool,
}

impl Kinds {
    /// As `nvidia-smi` writes them: `C`, `G`, `M+C`, `C+G`.
    #[must_use]
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

    /// In either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            compute: self.compute || other.compute,
            graphics: self.graphics || other.graphics,
            mps: self.mps || other.mps,
        }
    }
}

/// One pid of a GPU's process lists, the three lists merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// As the driver gave it; 0 is a process that the driver cannot name in this namespace.
    pub pid: u32,
    /// Bytes; `None` is the driver's "not available". In several lists it is the same memory: the largest.
    pub memory: Option<u64>,
    /// The lists it was in.
    pub kinds: Kinds,
    /// The most memory it ever held, where accounting is on.
    pub peak: Option<u64>,
}

/// One GPU in one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Its names.
    pub about: About,
    /// Why nothing could be read; then all below is empty.
    pub fault: Option<Fault>,
    /// Memory.
    pub memory: Option<Memory>,
    /// Power, clocks and the like.
    pub telemetry: Telemetry,
    /// Its holders; `None` if the list could not be read.
    pub entries: Option<Vec<Entry>>,
    /// Number of instances, if MIG is on and the driver gave all of them: the processes are in their lists.
    pub instances: Option<u64>,
    /// The driver's evidence on its processes' utilization.
    pub reading: Reading,
    /// Xid errors since the sample before.
    pub xids: Vec<u64>,
}

impl GpuSample {
    /// A GPU that gave nothing.
    #[must_use]
    pub fn faulty(about: About, fault: Fault) -> Self {
        Self {
            about,
            fault: Some(fault),
            memory: None,
            telemetry: Telemetry::default(),
            entries: None,
            instances: None,
            reading: Reading::default(),
            xids: Vec::new(),
        }
    }
}
