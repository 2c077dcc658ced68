#![expect(clippy::disallowed_methods, reason = "the one file of the actions that asks clocks")]
//! The clocks of actions. Waiting is counted on a clock that stops while the machine is suspended: no process is
//! killed because of time in which it could not run. Snapshots carry the time since boot, so that clock is here too.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// A time that passes.
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
