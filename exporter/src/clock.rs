//! The only file that reads clocks: a monotonic clock for intervals, and the time since boot (including
//! suspend) for ages.

#![expect(clippy::disallowed_methods, reason = "the one file that reads a clock")]

use std::time::Instant;

pub(crate) use bailiff_proc::clock::since_boot;

/// Returns the current time of the monotonic clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}
