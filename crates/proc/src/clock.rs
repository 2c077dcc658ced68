//! The clocks. Deadlines use one that stops during suspend, so that no process is killed for time in which it could not
//! run; ages of snapshots include suspend.

#![expect(clippy::disallowed_methods, reason = "reads the clocks")]

use std::time::{Duration, SystemTime};

use bailiff_snapshot::Moment;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Returns the wall-clock time and the time since boot.
pub fn now() -> Moment {
    Moment { wall: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(), boot: since_boot() }
}

/// End of a time limit, as [`running`] time, which is the same in all processes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Deadline(Duration);

impl Deadline {
    /// Returns the end of a time limit that starts now.
    pub fn after(span: Duration) -> Self {
        Self(running().saturating_add(span))
    }

    /// Returns the remaining time.
    pub fn left(self) -> Duration {
        self.0.saturating_sub(running())
    }

    /// Returns whether no time is left.
    pub fn passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns the earlier of two deadlines.
    pub fn or(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Returns the time since boot without suspend (`CLOCK_MONOTONIC`).
pub fn running() -> Duration {
    of(ClockId::Monotonic)
}

/// Returns the CPU time of this thread.
pub fn cpu_time() -> Duration {
    of(ClockId::ThreadCPUTime)
}

/// Returns the time since boot including suspend (`CLOCK_BOOTTIME`), the clock of snapshots.
pub fn since_boot() -> Duration {
    of(ClockId::Boottime)
}

fn of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Returns the time to wait for the next sample. Sample times are fixed at the start: a late sample does not
/// delay later samples, and missed samples are skipped.
pub fn until_next(elapsed: Duration, interval: Duration) -> Duration {
    let late = elapsed.as_nanos().checked_rem(interval.as_nanos()).unwrap_or_default();
    interval.saturating_sub(Duration::from_nanos(u64::try_from(late).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_keep_to_the_schedule() {
        let millis = Duration::from_millis;
        let cases = [(0, 5000), (20, 4980), (4999, 1), (5000, 5000), (5001, 4999), (12_000, 3000)];
        for (elapsed, wait) in cases {
            assert_eq!(until_next(millis(elapsed), millis(5000)), millis(wait), "after {elapsed} ms");
        }
    }
}
