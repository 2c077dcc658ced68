#![expect(clippy::disallowed_methods, reason = "the time of a sample is read here")]
//! Reads the wall clock and the time since boot.

use std::time::{Duration, SystemTime};

use bailiff_snapshot::Moment;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time on both clocks.
pub(crate) fn now() -> Moment {
    Moment {
        wall: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
        boot: Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
    }
}
