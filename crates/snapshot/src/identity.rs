//! Identity of processes: never a pid alone, because pids are reused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds per clock tick of `start_ticks`: `USER_HZ` of `include/uapi/asm-generic/param.h` is 100 on x86-64
/// and aarch64.
pub const MILLIS_PER_TICK: u64 = 10;

/// Identity of a process within one boot: its pid and its start time (`/proc/PID/stat`, field 22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The pid in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessKey {
    /// Returns the start time since boot.
    pub const fn started(&self) -> Duration {
        Duration::from_millis(self.start_ticks.saturating_mul(MILLIS_PER_TICK))
    }
}

/// Identity of a process that holds GPU memory: confirmed by `/proc`, or only listed by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessId {
    /// The process exists in `/proc`.
    Live(ProcessKey),
    /// The driver lists the pid, but `/proc` does not show it. It is reported, but never signalled.
    Unconfirmed {
        /// Pid as reported by the driver.
        pid: u32,
        /// Number of the snapshot that first listed the pid. The same pid at another time is another process.
        first_seq: u64,
    },
}

impl ProcessId {
    /// Returns the pid. It is suitable as a label, but not as an identity.
    pub const fn pid(&self) -> u32 {
        match self {
            Self::Live(key) => key.pid,
            Self::Unconfirmed { pid, .. } => *pid,
        }
    }
}

/// Id of a boot (`/proc/sys/kernel/random/boot_id`). Start ticks of different boots are not comparable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootId(pub String);

/// A point in time, on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Moment {
    /// Time since the Unix epoch (`CLOCK_REALTIME`). It can step, so it is not used for intervals.
    pub wall: Duration,
    /// Time since boot, including suspend (`CLOCK_BOOTTIME`). It never steps back and is used for intervals.
    pub boot: Duration,
}

/// Returns a duration in whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

crate::label_values! {
/// Whether the driver's pids are those of our `/proc`.
pub enum PidNamespace (default Unknown) {
    /// The initial PID namespace according to `/proc/self/ns/pid`, or a namespace configured as equivalent.
    Host = "host",
    /// Another namespace. The driver's pids may belong to other processes here, so no pid is attributed.
    Other = "other",
    /// `/proc/self/ns/pid` could not be read; treated like `Other`.
    Unknown = "unknown",
}
}

impl PidNamespace {
    /// Link target of the initial PID namespace; the inode is fixed (`PROC_PID_INIT_INO`, `linux/proc_ns.h`).
    pub const INITIAL: &'static str = "pid:[4026531836]";

    /// Parses the target of the link `/proc/self/ns/pid`.
    pub fn of_link(target: &str) -> Self {
        if target == Self::INITIAL { Self::Host } else { Self::Other }
    }

    /// Returns whether the driver's pids may be attributed to processes.
    pub fn attributes(self) -> bool {
        self == Self::Host
    }
}
