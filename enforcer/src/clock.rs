//! The one place that reads clocks: wall time for people, time since boot for ages.

#![expect(clippy::disallowed_methods, reason = "the one file that reads clocks")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub use bailiff_engine::engine::Now;

/// This moment.
#[must_use]
pub fn now() -> Now {
    let boot = clock_gettime(ClockId::Boottime);
    Now {
        wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        boot: Duration::try_from(boot).unwrap_or_default(),
    }
}
