//! A scenario as it is written, field for field; what it means is for [`crate::machine`] to find out.

mod faults;

use serde::Deserialize;

pub(crate) use self::faults::{DriverFaults, Faults, Garbage, Grow, Hang, Lost, Slow};
use crate::clock::Clock;
use crate::units::{Bytes, Micros, Millijoules, Milliwatts};

/// The whole file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scenario {
    /// The driver's version.
    pub(crate) driver: String,
    /// The library's version.
    pub(crate) nvml: String,
    /// The newest CUDA version that the driver supports, as CUDA writes it: 13000 is 13.0.
    pub(crate) cuda: i32,
    /// What `nvmlInit` answers: `ok`, the name of an error, or `hang`.
    pub(crate) init: String,
    /// What the driver's time stamps count from.
    pub(crate) clock: Clock,
    /// How often the driver records what its devices and processes do.
    pub(crate) sampling_period: Micros,
    /// How many samples of a device the driver keeps.
    pub(crate) ring: u32,
    /// The size of an entry in the `_v3` process lists: 16, 24, 32 or 40.
    pub(crate) entry_bytes: usize,
    /// How long a reading of the file is valid; 0us reads it at every call.
    pub(crate) recheck: Micros,
    /// Functions that this driver is too old to have.
    pub(crate) missing: Vec<String>,
    /// What is wrong with the driver as a whole.
    pub(crate) faults: DriverFaults,
    /// The devices, in the order of their indexes.
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
            recheck: Micros(1_000),
            missing: Vec::new(),
            faults: DriverFaults::default(),
            gpus: Vec::new(),
        }
    }
}

/// One device, or `count` devices alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gpu {
    pub(crate) count: u32,
    pub(crate) name: String,
    /// Made up from the index where it is not given.
    pub(crate) uuid: Option<String>,
    /// Major and minor.
    pub(crate) compute_capability: (i32, i32),
    pub(crate) memory: Memory,
    pub(crate) utilization: Utilization,
    pub(crate) power: Milliwatts,
    pub(crate) power_limit: Milliwatts,
    /// The counter's value when a process first asks for it.
    pub(crate) energy: Millijoules,
    /// Whether the counter then grows by the power drawn.
    pub(crate) energy_grows: bool,
    pub(crate) temperature: u32,
    /// In percent; without it the device has no fan.
    pub(crate) fan: Option<u32>,
    pub(crate) clocks: Clocks,
    /// 0 is the fastest.
    pub(crate) performance_state: u32,
    /// The bits of `nvmlClocksEventReasons`.
    pub(crate) throttle_reasons: u64,
    pub(crate) ecc: Ecc,
    pub(crate) compute_mode: ComputeMode,
    pub(crate) persistence: bool,
    pub(crate) processes: Vec<Process>,
    /// The device's instances; with this key, even empty, MIG is on.
    pub(crate) mig: Option<Vec<Instance>>,
    pub(crate) faults: Faults,
    /// Errors delivered to an event set registered for the device, each once, in this order.
    pub(crate) xid: Vec<u64>,
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
            compute_mode: ComputeMode::Default,
            persistence: true,
            processes: Vec::new(),
            mig: None,
            faults: Faults::default(),
            xid: Vec::new(),
            accounting: Accounting::default(),
        }
    }
}

/// Used is what the holders hold plus what is unaccounted; free is what is left of the total after that and the
/// reserve.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Memory {
    pub(crate) total: Bytes,
    /// The driver's own, part of `used` in the first version of the call and apart from it in the second.
    pub(crate) reserved: Bytes,
    /// Used, and held by no process in the lists.
    pub(crate) unaccounted: Bytes,
}

impl Default for Memory {
    fn default() -> Self {
        Self { total: Bytes(143_771 << 20), reserved: Bytes(600 << 20), unaccounted: Bytes(0) }
    }
}

/// What the device does, in percent; what is not written is the greatest among its processes.
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

/// In MHz.
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

/// Counted errors of the memory, the same since the driver was loaded and for ever.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ecc {
    pub(crate) corrected: u64,
    pub(crate) uncorrected: u64,
}

/// Which processes may use the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ComputeMode {
    /// Everybody.
    Default,
    /// None.
    Prohibited,
    /// One process at a time.
    ExclusiveProcess,
}

/// A process that holds memory of the device, or `count` of them with successive pids.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    #[serde(default = "one")]
    pub(crate) count: u32,
    /// Increment of the pid on each further device of an entry for several.
    #[serde(default)]
    pub(crate) pid_step: u32,
    /// `null` is memory that is not available.
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
    /// How much older its newest sample is than the driver's newest.
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

/// A part of a device that appears as a device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    /// Its index among the device's instances; its place in the list where it is not given.
    pub(crate) index: Option<u32>,
    pub(crate) gi: u32,
    #[serde(default)]
    pub(crate) ci: u32,
    /// Such as `1g.18gb`.
    pub(crate) profile: String,
    /// Made up from the device's index and the instance's where it is not given.
    pub(crate) uuid: Option<String>,
    pub(crate) memory: InstanceMemory,
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
}

/// As with a device, but an instance has no size that could go without saying.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstanceMemory {
    pub(crate) total: Bytes,
    #[serde(default)]
    pub(crate) reserved: Bytes,
    #[serde(default)]
    pub(crate) unaccounted: Bytes,
}

/// What the driver remembers of processes, ended ones too.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Accounting {
    pub(crate) enabled: bool,
    pub(crate) processes: Vec<Accounted>,
}

/// One process remembered.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Accounted {
    pub(crate) pid: u32,
    #[serde(default)]
    pub(crate) max_memory: Bytes,
    #[serde(default)]
    pub(crate) gpu: u32,
    #[serde(default)]
    pub(crate) memory: u32,
    /// Run time; 0 while it is running, as from the driver.
    #[serde(default)]
    pub(crate) time: Micros,
    #[serde(default)]
    pub(crate) running: bool,
}
