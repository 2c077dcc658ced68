//! What a scenario says is wrong, field for field.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::units::Micros;

/// What is wrong with the driver as a whole.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DriverFaults {
    pub(crate) hang: Hang,
    pub(crate) slow: Slow,
    pub(crate) errors: BTreeMap<String, String>,
}

/// What is wrong with a device.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Faults {
    pub(crate) lost: Lost,
    pub(crate) hang: Hang,
    pub(crate) slow: Slow,
    /// Functions, or `"*"` for all, and the error that they answer.
    pub(crate) errors: BTreeMap<String, String>,
    pub(crate) grow: Grow,
    /// How much a reported size is too large, as if this many processes had exited since.
    pub(crate) shrink: u32,
    pub(crate) garbage: Garbage,
}

/// Whether the device fell off the bus.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Lost {
    /// No handle is given out for a lost device.
    Now(bool),
    /// It was lost after its handle was given out.
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

/// Which calls do not return until the scenario no longer says so.
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

/// By how much the compute list is longer after each time that a caller's room for it was too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Grow {
    Always(u32),
    Times(GrowTimes),
}

/// A list that grows only so often.
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

/// Entries that no sane driver would answer.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Garbage {
    /// A further sample of the first process, with every figure at 250 percent.
    pub(crate) utilization_above_100: bool,
    /// An entry in the compute list and a sample, both of pid 0.
    pub(crate) pid_zero: bool,
    /// A sample of a pid that is in no list.
    pub(crate) unlisted_pid: bool,
    /// Twice the total used, and as much by the first process in the compute list.
    pub(crate) memory_above_total: bool,
}
