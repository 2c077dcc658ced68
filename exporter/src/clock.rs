//! The one place that reads clocks: steady time for the interval, and time since boot, suspend included, for ages.

#![expect(clippy::disallowed_methods, reason = "the one file that reads a clock")]

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Now.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time since boot, suspend included.
pub(crate) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
