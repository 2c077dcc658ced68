//! The one place that reads clocks: wall time for people, time since boot for ages.

#![expect(clippy::disallowed_methods, reason = "the one file that reads clocks")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A moment, by two clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// Since the Unix epoch; it may be set back.
    pub wall: Duration,
    /// Since boot, time asleep included.
    pub boot: Duration,
}

/// This moment.
#[must_use]
pub fn now() -> Now {
    let boot = clock_gettime(ClockId::Boottime);
    Now {
        wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        boot: Duration::try_from(boot).unwrap_or_default(),
    }
}
