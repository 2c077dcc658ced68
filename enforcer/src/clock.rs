//! The only file that reads clocks: wall-clock time for people, time since boot for the ages in snapshots, and for waiting
//! a clock that stops while the machine is suspended, so that no process is killed because of time in which it could not run.

#![expect(clippy::disallowed_methods, reason = "reads the clocks")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub use bailiff_engine::engine::Now;

/// Returns the current time.
#[must_use]
pub fn now() -> Now {
    Now { wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), boot: since_boot() }
}

/// A point in time until which something may take.
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

    /// The earlier of the two.
    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Time in which the machine ran (`CLOCK_MONOTONIC`).
pub(crate) fn running() -> Duration {
    of(ClockId::Monotonic)
}

/// Since boot, suspend included (`CLOCK_BOOTTIME`): the clock of snapshots.
pub(crate) fn since_boot() -> Duration {
    of(ClockId::Boottime)
}

/// The time of day, for people.
pub(crate) fn today() -> SystemTime {
    SystemTime::now()
}

fn of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
