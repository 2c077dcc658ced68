//! The only file that reads clocks. Deadlines use one that stops during suspend, so that no process is killed
//! for time in which it could not run; ages of snapshots include suspend.

#![expect(clippy::disallowed_methods, reason = "reads the clocks")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub use bailiff_engine::engine::Now;

/// Returns the wall-clock time and the time since boot.
#[must_use]
pub fn now() -> Now {
    Now { wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), boot: since_boot() }
}

/// End of a time limit, as [`running`] time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    pub(crate) fn after(span: Duration) -> Self {
        Self(running().saturating_add(span))
    }

    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(running())
    }

    pub(crate) fn passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns the earlier of two deadlines.
    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Returns the time since boot without suspend (`CLOCK_MONOTONIC`).
pub(crate) fn running() -> Duration {
    of(ClockId::Monotonic)
}

/// Returns the time since boot including suspend (`CLOCK_BOOTTIME`), the clock of snapshots.
pub(crate) fn since_boot() -> Duration {
    of(ClockId::Boottime)
}

/// Returns the wall-clock time.
pub(crate) fn today() -> SystemTime {
    SystemTime::now()
}

fn of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
