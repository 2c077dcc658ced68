//! The only file that reads clocks: a monotonic clock for intervals, and the time since boot (including
//! suspend) for ages.

#![expect(clippy::disallowed_methods, reason = "the one file that reads a clock")]

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns the current time of the monotonic clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the time since boot, including suspend.
pub(crate) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
