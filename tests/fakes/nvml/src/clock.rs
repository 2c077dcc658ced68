//! The clocks for the fake driver's timestamps, and its waiting. Only this file reads the time.
#![expect(
    clippy::disallowed_methods,
    reason = "a driver has a clock of its own and takes its time when a scenario says so"
)]

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

/// Epoch of the driver's timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    /// Since 1970, as in most drivers.
    #[default]
    Wall,
    /// Since the machine was booted.
    Boot,
}

impl Clock {
    /// Returns the current time in microseconds.
    pub(crate) fn now(self) -> u64 {
        let since = match self {
            Self::Wall => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Self::Boot => Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
        };
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Returns a time for measuring durations. It does not step with the wall clock.
pub(crate) fn moment() -> Instant {
    Instant::now()
}

/// Interval at which a waiting call reads the scenario again.
const PATIENCE: Duration = Duration::from_millis(5);

/// The same interval for a call that waits for events. A real driver sleeps, so polling must cost next to
/// nothing.
const PATIENCE_FOR_EVENTS: Duration = Duration::from_millis(250);

/// Pauses before the scenario is read again.
pub(crate) fn pause() {
    thread::sleep(PATIENCE);
}

/// Pauses while waiting for events, but at most until `end`.
pub(crate) fn pause_for_events(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    thread::sleep(left.min(PATIENCE_FOR_EVENTS));
}

/// Waits for the duration of a slow call.
pub(crate) fn dawdle(long: Duration) {
    thread::sleep(long);
}
