//! Faults in a scenario, field by field.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::units::Micros;

/// Faults of the driver as a whole.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DriverFaults {
    pub(crate) hang: Hang,
    pub(crate) slow: Slow,
    pub(crate) errors: BTreeMap<String, String>,
}

/// Faults of a device.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Faults {
    pub(crate) lost: Lost,
    pub(crate) hang: Hang,
    pub(crate) slow: Slow,
    /// The error that each function returns; `"*"` means all functions.
    pub(crate) errors: BTreeMap<String, String>,
    pub(crate) grow: Grow,
    /// By how much reported sizes are too large, as if this many processes exited before the next call.
    pub(crate) shrink: u32,
    pub(crate) garbage: Garbage,
}

/// Whether the device has fallen off the bus.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Lost {
    /// The device is lost, and its handle cannot be obtained.
    Now(bool),
    /// The device was lost after its handle was obtained.
    Late(Late),
}

/// The word `late`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Late {
    Late,
}

impl Default for Lost {
    fn default() -> Self {
        Self::Now(false)
    }
}

/// Calls that do not return until the scenario changes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Hang {
    All(bool),
    Some(Vec<String>),
}

impl Default for Hang {
    fn default() -> Self {
        Self::All(false)
    }
}

/// How long calls take.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Slow {
    All(Micros),
    Some(BTreeMap<String, Micros>),
}

impl Default for Slow {
    fn default() -> Self {
        Self::Some(BTreeMap::new())
    }
}

/// By how much the compute list grows each time that a caller's buffer is too small for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Grow {
    Always(u32),
    Times(GrowTimes),
}

/// A list that grows a limited number of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrowTimes {
    pub(crate) by: u32,
    pub(crate) times: u32,
}

impl Default for Grow {
    fn default() -> Self {
        Self::Always(0)
    }
}

/// Invalid data that a correct driver would not return.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Garbage {
    /// An additional sample of the first process, with 250 percent for every engine.
    pub(crate) utilization_above_100: bool,
    /// An entry in the compute list and a sample, both with pid 0.
    pub(crate) pid_zero: bool,
    /// A sample with a pid that is not in any process list.
    pub(crate) unlisted_pid: bool,
    /// Twice the total is used, by the device and by the first process in the compute list.
    pub(crate) memory_above_total: bool,
}
