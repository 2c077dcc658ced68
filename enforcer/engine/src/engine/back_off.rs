//! Back-off of `cancel_job` while Slurm does not answer. It applies to all jobs, because they have one slurmctld.

use std::time::Duration;

use crate::verdict::Outcome;

/// First and longest wait.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(5);

/// State of the back-off. Times are since boot.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    wait: Duration,
    until: Duration,
}

impl BackOff {
    /// Takes note of the result of a `cancel_job`.
    pub(crate) fn see(&mut self, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::NoAnswer | Outcome::Unknown => {
                self.wait = (self.wait * 2).clamp(FIRST, LONGEST);
                self.until = now + self.wait;
            }
            // Slurm may not have been queried.
            Outcome::Cancelled | Outcome::Reprieved | Outcome::Gone | Outcome::Refused => {}
            _ => *self = Self::default(),
        }
    }

    /// Returns whether Slurm must not be queried yet.
    pub(crate) fn waits(&self, now: Duration) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_doubles_up_to_five_minutes_and_ends_with_an_answer() {
        let secs = Duration::from_secs;
        let mut back_off = BackOff::default();
        let mut now = secs(1000);
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            back_off.see(Outcome::NoAnswer, now);
            back_off.see(Outcome::Reprieved, now);
            assert!(
                back_off.waits(now + secs(expected - 1)) && !back_off.waits(now + secs(expected)),
                "{expected}"
            );
            now += secs(expected);
        }
        back_off.see(Outcome::IdentityChanged, now);
        assert!(!back_off.waits(now));
        back_off.see(Outcome::Unknown, now);
        assert!(back_off.waits(now + secs(9)) && !back_off.waits(now + secs(10)));
    }
}
