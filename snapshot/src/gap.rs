//! Gaps: what a source should have told and did not. Each is counted, none is filled in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One kind of gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// A process list that the driver did not give, kept growing, or gave in entries of no known size.
    ProcessList,
    /// A listed pid that cannot be one (beyond `pid_max`).
    ImpossiblePid,
    /// The memory figures of a GPU.
    Memory,
    /// The utilization samples of a GPU's processes.
    Utilization,
    /// A utilization sample above 100 %.
    UtilizationAbove100,
    /// A utilization sample of a pid that the process list does not have.
    UtilizationUnlisted,
    /// Power, temperature, clocks, energy: an error other than "not supported".
    Telemetry,
    /// A process ended between two reads of its files.
    Vanished,
    /// A file of `/proc` that did not parse.
    Malformed,
    /// A file of `/proc` that failed otherwise.
    Unreadable,
    /// A beat in which a right was missing: for bytes read and written, for who has device files open, and for users'
    /// own folders of quotas, `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`.
    NotPermitted,
    /// Xid errors of a GPU could not be listened to.
    Xid,
    /// Who has device files open took too long to find out.
    Openers,
    /// A holder ended, and whether his memory came back could not be told, nor will it be.
    Unreturned,
    /// Not all files of quotas, or not all who use them, were looked at: there were too many, or names that are no names.
    Quotas,
    /// Not all of MPS was looked at: a daemon's answer or log was late or too long, or there were too many daemons.
    Mps,
}

impl Gap {
    /// Every kind, in the order of a page.
    pub const ALL: [Self; 16] = [
        Self::ProcessList,
        Self::ImpossiblePid,
        Self::Memory,
        Self::Utilization,
        Self::UtilizationAbove100,
        Self::UtilizationUnlisted,
        Self::Telemetry,
        Self::Vanished,
        Self::Malformed,
        Self::Unreadable,
        Self::NotPermitted,
        Self::Xid,
        Self::Openers,
        Self::Unreturned,
        Self::Quotas,
        Self::Mps,
    ];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProcessList => "process_list",
            Self::ImpossiblePid => "impossible_pid",
            Self::Memory => "memory",
            Self::Utilization => "utilization",
            Self::UtilizationAbove100 => "utilization_above_100",
            Self::UtilizationUnlisted => "utilization_unlisted",
            Self::Telemetry => "telemetry",
            Self::Vanished => "vanished",
            Self::Malformed => "malformed",
            Self::Unreadable => "unreadable",
            Self::NotPermitted => "not_permitted",
            Self::Xid => "xid",
            Self::Openers => "openers",
            Self::Unreturned => "unreturned",
            Self::Quotas => "quotas",
            Self::Mps => "mps",
        }
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
