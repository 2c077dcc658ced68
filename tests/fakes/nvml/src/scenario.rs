//! A scenario as written in the file, field by field. [`crate::machine`] interprets it.

mod accounting;
mod faults;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

pub(crate) use self::accounting::{Accounted, Accounting};
pub(crate) use self::faults::{DriverFaults, Faults, Garbage, Grow, Hang, Lost, Slow};
use crate::clock::Clock;
use crate::units::{Bytes, Micros, Millijoules, Milliwatts};

/// The whole file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scenario {
    /// Version of the driver.
    pub(crate) driver: String,
    /// Version of the library.
    pub(crate) nvml: String,
    /// Newest CUDA version that the driver supports, as CUDA encodes it: 13000 is 13.0.
    pub(crate) cuda: i32,
    /// Result of `nvmlInit`: `ok`, the name of an error, or `hang`.
    pub(crate) init: String,
    /// Epoch of the driver's timestamps.
    pub(crate) clock: Clock,
    /// How often the driver records the utilization of its devices and processes.
    pub(crate) sampling_period: Micros,
    /// Number of samples of a device that the driver keeps.
    pub(crate) ring: u32,
    /// Size of an entry in the `_v3` process lists: 16, 24, 32 or 40.
    pub(crate) entry_bytes: usize,
    /// Number of metrics in the driver's `nvmlGpmMetricsGet_t`. Those that the caller did not ask for are overwritten.
    pub(crate) gpm_metrics: u32,
    /// How long the file's content is cached; with 0us it is read at every call.
    pub(crate) recheck: Micros,
    /// Functions that this driver does not export.
    pub(crate) missing: Vec<String>,
    /// Faults of the driver as a whole.
    pub(crate) faults: DriverFaults,
    /// Devices, in the order of their indexes.
    pub(crate) gpus: Vec<Gpu>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            driver: "580.95.05".to_owned(),
            nvml: "13.580.95.05".to_owned(),
            cuda: 13000,
            init: "ok".to_owned(),
            clock: Clock::Wall,
            sampling_period: Micros(167_000),
            ring: 120,
            entry_bytes: 24,
            gpm_metrics: 0,
            recheck: Micros(1_000),
            missing: Vec::new(),
            faults: DriverFaults::default(),
            gpus: Vec::new(),
        }
    }
}

/// One device, or `count` identical devices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gpu {
    pub(crate) count: u32,
    pub(crate) name: String,
    /// Made up from the index if absent.
    pub(crate) uuid: Option<String>,
    /// Major and minor version.
    pub(crate) compute_capability: (i32, i32),
    pub(crate) memory: Memory,
    /// Memory limits by path of the cgroup. If absent, the driver is too old for limits.
    pub(crate) memory_limits: Option<BTreeMap<PathBuf, MemoryLimit>>,
    pub(crate) utilization: Utilization,
    pub(crate) power: Milliwatts,
    pub(crate) power_limit: Milliwatts,
    /// Value of the counter at the first query.
    pub(crate) energy: Millijoules,
    /// Whether the counter then grows with the power.
    pub(crate) energy_grows: bool,
    pub(crate) temperature: u32,
    /// Fan speed in percent. If absent, the device has no fan.
    pub(crate) fan: Option<u32>,
    pub(crate) clocks: Clocks,
    /// Performance state; 0 is the fastest.
    pub(crate) performance_state: u32,
    /// Bits of `nvmlClocksEventReasons`.
    pub(crate) throttle_reasons: u64,
    pub(crate) ecc: Ecc,
    /// Number of the recovery action. If absent, the driver does not report it.
    pub(crate) recovery_action: Option<u32>,
    /// If absent, the device does not remap rows.
    pub(crate) remapped_rows: Option<RemappedRows>,
    /// If absent, the device does not retire pages.
    pub(crate) retired_pages: Option<Ecc>,
    /// Answers of fields (`NVML_FI_*`) in place of the usual ones.
    pub(crate) fields: BTreeMap<u32, Field>,
    pub(crate) compute_mode: ComputeMode,
    pub(crate) persistence: bool,
    pub(crate) processes: Vec<Process>,
    /// Instances of the device. If this key is present, even with an empty list, MIG is on.
    pub(crate) mig: Option<Vec<Instance>>,
    pub(crate) faults: Faults,
    /// Errors that are delivered to an event set registered for the device, each once, in this order.
    pub(crate) xid: Vec<u64>,
    /// Number of changes of the MIG instances that are reported to an event set registered for them.
    pub(crate) mig_changes: u64,
    /// Metrics of GPM by number. If absent, the device does not measure activity.
    pub(crate) gpm: Option<BTreeMap<u32, Metric>>,
    pub(crate) accounting: Accounting,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            count: 1,
            name: "NVIDIA H200".to_owned(),
            uuid: None,
            compute_capability: (9, 0),
            memory: Memory::default(),
            memory_limits: None,
            utilization: Utilization::default(),
            power: Milliwatts(120_000),
            power_limit: Milliwatts(700_000),
            energy: Millijoules(1_000_000),
            energy_grows: false,
            temperature: 40,
            fan: None,
            clocks: Clocks::default(),
            performance_state: 0,
            throttle_reasons: 0,
            ecc: Ecc::default(),
            recovery_action: Some(0),
            remapped_rows: Some(RemappedRows::default()),
            retired_pages: None,
            fields: BTreeMap::new(),
            compute_mode: ComputeMode::Default,
            persistence: true,
            processes: Vec::new(),
            mig: None,
            faults: Faults::default(),
            xid: Vec::new(),
            mig_changes: 0,
            gpm: None,
            accounting: Accounting::default(),
        }
    }
}

/// Used memory is the memory of the holders plus unaccounted memory. Free memory is the total minus used and
/// reserved memory.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Memory {
    pub(crate) total: Bytes,
    /// Memory reserved by the driver. The first version of the call includes it in `used`, the second reports
    /// it separately.
    pub(crate) reserved: Bytes,
    /// Used memory that is not held by a listed process.
    pub(crate) unaccounted: Bytes,
}

impl Default for Memory {
    fn default() -> Self {
        Self { total: Bytes(143_771 << 20), reserved: Bytes(600 << 20), unaccounted: Bytes(0) }
    }
}

/// Limit of a cgroup's memory on a device. Cgroups below that have no entry have the same limit and use.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MemoryLimit {
    pub(crate) soft: Bytes,
    /// If absent, there is no hard limit.
    pub(crate) hard: Option<Bytes>,
    pub(crate) used: Bytes,
}

/// Utilization of the device in percent. An absent value is the highest among its processes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Utilization {
    pub(crate) gpu: Option<u32>,
    pub(crate) memory: Option<u32>,
    pub(crate) encoder: Option<u32>,
    pub(crate) decoder: Option<u32>,
    pub(crate) jpg: Option<u32>,
    pub(crate) ofa: Option<u32>,
}

/// Clocks in MHz.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Clocks {
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) sm_max: u32,
    pub(crate) memory_max: u32,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { sm: 345, memory: 2619, sm_max: 1980, memory_max: 3201 }
    }
}

/// Memory errors. The count since the driver was loaded and the lifetime count are the same.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ecc {
    pub(crate) corrected: u64,
    pub(crate) uncorrected: u64,
}

/// Memory rows that the device replaced, by cause.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RemappedRows {
    pub(crate) corrected: u32,
    pub(crate) uncorrected: u32,
    /// Whether a row will be replaced at the next reset.
    pub(crate) pending: bool,
    /// Whether a row could not be replaced.
    pub(crate) failed: bool,
}

/// Answer of a field.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Field {
    /// The driver leaves the caller's structure unchanged.
    Unknown(()),
    /// Name of an error.
    Error(String),
    /// Type (`nvmlValueType_t`) and bits of the value.
    Value(u32, u64),
}

/// Metric of GPM.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Metric {
    /// The value that the driver returns, in percent.
    Percent(f64),
    /// Name of an error, or `nan`.
    Error(String),
}

/// Which processes can use the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ComputeMode {
    /// All processes.
    Default,
    /// No process.
    Prohibited,
    /// One process at a time.
    ExclusiveProcess,
}

/// A process that holds the device's memory, or `count` processes with successive pids.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    #[serde(default = "one")]
    pub(crate) count: u32,
    /// Increment of the pids on each further device if the entry describes several devices.
    #[serde(default)]
    pub(crate) pid_step: u32,
    /// `null` means that the value is not available.
    #[serde(default = "nothing")]
    pub(crate) used: Option<Bytes>,
    #[serde(default)]
    pub(crate) kind: OneOrMore<Kind>,
    #[serde(default)]
    pub(crate) sm: u32,
    #[serde(default)]
    pub(crate) memory: u32,
    #[serde(default)]
    pub(crate) encoder: u32,
    #[serde(default)]
    pub(crate) decoder: u32,
    #[serde(default)]
    pub(crate) jpg: u32,
    #[serde(default)]
    pub(crate) ofa: u32,
    /// By how much the process's newest sample is older than the driver's newest sample.
    #[serde(default)]
    pub(crate) sample_age: Micros,
}

fn one() -> u32 {
    1
}

#[expect(clippy::unnecessary_wraps, reason = "a default has the type of its field")]
fn nothing() -> Option<Bytes> {
    Some(Bytes(0))
}

/// The list that a process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The compute list.
    #[default]
    Compute,
    /// The graphics list.
    Graphics,
    /// The list of clients of an MPS server.
    Mps,
}

/// A word, or a list of words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T: Default> Default for OneOrMore<T> {
    fn default() -> Self {
        Self::One(T::default())
    }
}

impl<T: PartialEq> OneOrMore<T> {
    pub(crate) fn has(&self, wanted: &T) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::More(more) => more.contains(wanted),
        }
    }
}

/// A MIG instance.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    /// Index among the device's instances. If absent, the position in the list.
    pub(crate) index: Option<u32>,
    pub(crate) gi: u32,
    #[serde(default)]
    pub(crate) ci: u32,
    /// Profile, such as `1g.18gb`.
    pub(crate) profile: String,
    /// Made up from the indexes of the device and the instance if absent.
    pub(crate) uuid: Option<String>,
    pub(crate) memory: InstanceMemory,
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    /// As of the device.
    #[serde(default)]
    pub(crate) gpm: Option<BTreeMap<u32, Metric>>,
}

/// Memory of an instance. Unlike that of a device, its total has no default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstanceMemory {
    pub(crate) total: Bytes,
    #[serde(default)]
    pub(crate) reserved: Bytes,
    #[serde(default)]
    pub(crate) unaccounted: Bytes,
}
