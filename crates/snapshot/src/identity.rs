//! Identity of a process: never a pid alone, because pids are reused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A process of this boot: its pid and the clock tick it started at (`/proc/PID/stat`, field 22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The pid in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessKey {
    /// When it started, since boot: `USER_HZ` is 100.
    #[must_use]
    pub const fn started(&self) -> Duration {
        Duration::from_millis(self.start_ticks.saturating_mul(10))
    }
}

/// The name of a holder's process: confirmed by `/proc`, or only listed by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessId {
    /// `/proc` confirmed it.
    Live(ProcessKey),
    /// The driver lists the pid and `/proc` does not show it. It can be shown and flagged, never signalled.
    Unconfirmed {
        /// The pid as the driver gave it.
        pid: u32,
        /// The snapshot that first listed it; two of the same pid at different times are different.
        first_seq: u64,
    },
}

impl ProcessId {
    /// The pid, for a label; not an identity.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        match self {
            Self::Live(key) => key.pid,
            Self::Unconfirmed { pid, .. } => *pid,
        }
    }
}

/// `/proc/sys/kernel/random/boot_id`: start ticks mean nothing across boots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootId(pub String);

/// When something was seen, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Moment {
    /// Since the Unix epoch (`CLOCK_REALTIME`); may step.
    pub wall: Duration,
    /// Since boot, suspend included (`CLOCK_BOOTTIME`); never steps back. Intervals come from it.
    pub boot: Duration,
}

/// Whether the pids that the driver gives can be looked up in our `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PidNamespace {
    /// The host's own (`/proc/self/ns/pid` is the initial namespace), or declared to be as good.
    Host,
    /// Another one: pids of the driver may name other processes here, so none is attributed.
    Other,
    /// `/proc/self/ns/pid` could not be read: as `Other`.
    Unknown,
}

impl PidNamespace {
    /// The initial PID namespace: its inode number is fixed (`PROC_PID_INIT_INO`, `linux/proc_ns.h`).
    pub const INITIAL: &'static str = "pid:[4026531836]";

    /// Understands the target of the link `/proc/self/ns/pid`.
    #[must_use]
    pub fn of_link(target: &str) -> Self {
        if target == Self::INITIAL { Self::Host } else { Self::Other }
    }

    /// Its name on the wire and as a label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }

    /// Whether processes may be attributed.
    #[must_use]
    pub fn attributes(self) -> bool {
        self == Self::Host
    }
}
