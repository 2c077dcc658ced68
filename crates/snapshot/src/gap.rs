//! Gaps: what a source should have reported and did not. Each is counted, none is filled in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

crate::label_values! {
/// One kind of gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// A process list that the driver did not give, kept growing, or gave in entries of no known size.
    ProcessList = "process_list",
    /// A listed pid that cannot be one (beyond `pid_max`).
    ImpossiblePid = "impossible_pid",
    /// The memory figures of a GPU: an error other than "not supported".
    Memory = "memory",
    /// The utilization samples of a GPU's processes: an error other than "not supported".
    Utilization = "utilization",
    /// A utilization sample above 100 %.
    UtilizationAbove100 = "utilization_above_100",
    /// A utilization sample of a pid that the process list does not have.
    UtilizationUnlisted = "utilization_unlisted",
    /// A figure of the driver that cannot be true: a temperature above 200 °C, more memory than the GPU has, and so on.
    Implausible = "implausible",
    /// Power, temperature, clocks, energy: an error other than "not supported".
    Telemetry = "telemetry",
    /// A process ended between two reads of its files.
    Vanished = "vanished",
    /// A file of `/proc` that did not parse.
    Malformed = "malformed",
    /// A file of `/proc` that failed otherwise.
    Unreadable = "unreadable",
    /// A sample without a needed permission: for I/O bytes, open device files, and users'
    /// own directories of quotas, `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`.
    NotPermitted = "not_permitted",
    /// Xid errors of a GPU could not be listened to.
    Xid = "xid",
    /// The scan of open device files took too long.
    DeviceProcesses = "device_processes",
    /// A holder exited, and whether its memory was released is unknown and will stay so.
    Unreleased = "unreleased",
    /// Not all quota files, or not all processes that use them, were read: there were too many, or names that are invalid.
    Quotas = "quotas",
    /// Not all of MPS was looked at: a daemon's answer or log was late or too long, or there were too many daemons.
    Mps = "mps",
}
}

/// How many gaps of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps(BTreeMap<Gap, u64>);

impl Gaps {
    /// Counts one.
    pub fn count(&mut self, gap: Gap) {
        *self.0.entry(gap).or_default() += 1;
    }

    /// Adds another count to this one.
    pub fn add(&mut self, other: &Self) {
        for (gap, count) in &other.0 {
            *self.0.entry(*gap).or_default() += count;
        }
    }

    /// How many of this kind.
    #[must_use]
    pub fn of(&self, gap: Gap) -> u64 {
        self.0.get(&gap).copied().unwrap_or_default()
    }
}
