//! The clocks. Deadlines use one that stops during suspend, so that no process is killed for time in which it could not
//! run; ages of snapshots include suspend.

#![expect(clippy::disallowed_methods, reason = "reads the clocks")]

use std::time::{Duration, SystemTime};

use bailiff_snapshot::Moment;
use rustix::time::{ClockId, clock_gettime};

/// Returns the wall-clock time and the time since boot.
pub fn now() -> Moment {
    Moment { wall: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(), boot: since_boot() }
}

/// End of a time limit, as [`running`] time.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Duration);

impl Deadline {
    /// Returns the end of a time limit that starts now.
    pub fn after(span: Duration) -> Self {
        Self(running().saturating_add(span))
    }

    /// Returns the remaining time.
    pub fn left(self) -> Duration {
        self.0.saturating_sub(running())
    }

    /// Returns whether no time is left.
    pub fn passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns the earlier of two deadlines.
    pub fn or(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Returns the time since boot without suspend (`CLOCK_MONOTONIC`).
pub fn running() -> Duration {
    of(ClockId::Monotonic)
}

/// Returns the time since boot including suspend (`CLOCK_BOOTTIME`), the clock of snapshots.
pub fn since_boot() -> Duration {
    of(ClockId::Boottime)
}

fn of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
