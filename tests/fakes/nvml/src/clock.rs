//! The clocks that the fake driver stamps its samples with, and its waiting: the one file that asks for the time.
#![expect(
    clippy::disallowed_methods,
    reason = "a driver has a clock of its own and takes its time when a scenario says so"
)]

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

/// The domain of the driver's time stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    /// Since 1970, as most drivers count.
    #[default]
    Wall,
    /// Since the machine was started.
    Boot,
}

impl Clock {
    /// Now, in microseconds.
    pub(crate) fn now(self) -> u64 {
        let since = match self {
            Self::Wall => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Self::Boot => Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
        };
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A moment to measure from; it does not step with the wall clock.
pub(crate) fn moment() -> Instant {
    Instant::now()
}

/// How often a waiting call reads the scenario again.
const PATIENCE: Duration = Duration::from_millis(5);

/// As often as a call that waits for events: a real driver sleeps, so this must cost next to nothing.
const PATIENCE_FOR_EVENTS: Duration = Duration::from_millis(250);

/// Waits a little before the scenario is looked at again.
pub(crate) fn pause() {
    thread::sleep(PATIENCE);
}

/// Waits a little for events, and no longer than until `end`.
pub(crate) fn pause_for_events(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    thread::sleep(left.min(PATIENCE_FOR_EVENTS));
}

/// Waits as long as a slow call takes.
pub(crate) fn dawdle(long: Duration) {
    thread::sleep(long);
}
