//! Health of the exporter, computed from the age of the newest snapshot. Pure.

use std::time::Duration;

/// Input of the health checks.
#[derive(Debug, Clone, Copy)]
pub struct Health {
    /// Age of the newest snapshot; before the first snapshot, the time since the start.
    pub age: Duration,
    /// Whether there was a snapshot.
    pub seen: bool,
    /// Sampling interval.
    pub interval: Duration,
    /// Maximum time that a sample waits for the driver.
    pub deadline: Duration,
}

impl Health {
    /// Returns whether the newest snapshot is at most two intervals plus the deadline old.
    pub fn current(&self) -> bool {
        self.seen && self.age <= self.interval * 2 + self.deadline
    }

    /// Checks that the newest snapshot is at most three intervals plus the deadline old.
    ///
    /// # Errors
    /// If it is older: the reason why the exporter is unhealthy.
    pub fn healthy(&self) -> Result<(), String> {
        let most = self.interval * 3 + self.deadline;
        if self.age <= most {
            return Ok(());
        }
        let age = self.age.as_secs_f64();
        let since = if self.seen { "no new snapshot" } else { "no snapshot" };
        Err(format!(
            "{since} for {age:.1} s, although a snapshot is due every {:?}; the sampling thread hangs",
            self.interval
        ))
    }

    /// Checks that there is a snapshot to show.
    ///
    /// # Errors
    /// Before the first snapshot.
    pub fn ready(&self) -> Result<(), String> {
        if self.seen { Ok(()) } else { Err("no snapshot yet".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_is_current_for_two_intervals_and_a_deadline() {
        for (age, seen, current) in [(0, true, true), (12, true, true), (13, true, false), (0, false, false)]
        {
            let health = Health {
                age: Duration::from_secs(age),
                seen,
                interval: Duration::from_secs(5),
                deadline: Duration::from_secs(2),
            };
            assert_eq!(health.current(), current, "{age} s");
        }
    }

    #[test]
    fn healthy_for_three_intervals_and_a_deadline() {
        let health = |age, seen| Health {
            age: Duration::from_secs(age),
            seen,
            interval: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
        };
        for (age, seen, healthy) in [(0, true, true), (17, true, true), (18, true, false), (17, false, true)]
        {
            assert_eq!(health(age, seen).healthy().is_ok(), healthy, "{age} s");
        }
        let why = health(18, false).healthy().expect_err("it is too old");
        assert!(why.starts_with("no snapshot for 18.0 s"), "{why}");
        assert!(health(0, false).ready().is_err() && health(99, true).ready().is_ok());
    }
}
