//! A rate limit as a token bucket: one token per interval, and at most a burst.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::fault::ConfigError;
use super::written::Rate;

const KEY: &str = "rate_limit";
const LONGEST: Duration = Duration::from_hours(24);

/// A token bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    interval: Duration,
    /// Time in which an empty bucket becomes full.
    depth: Duration,
    /// Time at which the bucket will be full.
    full: Mutex<Option<Instant>>,
}

impl Bucket {
    /// Creates the bucket, or returns `None` if the interval is 0.
    pub(super) fn new(written: &serde_saphyr::Spanned<Rate>) -> Result<Option<Self>, ConfigError> {
        let Some(text) = &written.value.interval else {
            return Err(ConfigError::at(
                written,
                KEY,
                "interval is missing (such as 1s; 0 disables the limit)",
            ));
        };
        let Some(interval) = interval(&text.value) else {
            let why = format!("{:?} is not a duration such as 1s or 100ms", text.value);
            return Err(ConfigError::at(text, "rate_limit.interval", why));
        };
        if interval > LONGEST {
            return Err(ConfigError::at(text, "rate_limit.interval", "the maximum is 24h"));
        }
        if interval.is_zero() {
            return Ok(None);
        }
        match &written.value.burst {
            None => Err(ConfigError::at(
                written,
                KEY,
                "burst is missing (the number of requests that can arrive at once)",
            )),
            Some(burst) if burst.value == 0 => Err(ConfigError::at(
                burst,
                "rate_limit.burst",
                "0 would refuse every request; the minimum is 1",
            )),
            Some(burst) => Ok(Some(Self::of(interval, burst.value))),
        }
    }

    fn of(interval: Duration, burst: u32) -> Self {
        Self { interval, depth: interval.saturating_mul(burst - 1), full: Mutex::default() }
    }

    /// Takes a token. Returns false if the bucket is empty.
    pub(super) fn take(&self, now: Instant) -> bool {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let until = full.unwrap_or(now).max(now);
        let there = until.duration_since(now) <= self.depth;
        if there {
            *full = until.checked_add(self.interval);
        }
        there
    }
}

fn interval(text: &str) -> Option<Duration> {
    if text == "0" { Some(Duration::ZERO) } else { humantime::parse_duration(text).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_each_interval() {
        let bucket = Bucket::of(Duration::from_secs(1), 3);
        let began = Instant::now();
        let taken = |after: &[u64]| {
            let at = |millis: &u64| bucket.take(began + Duration::from_millis(*millis));
            after.iter().map(at).collect::<Vec<bool>>()
        };
        assert_eq!(taken(&[0, 0, 0, 0, 999]), [true, true, true, false, false]);
        assert_eq!(taken(&[1000, 1000, 2500, 2500]), [true, false, true, false]);
        assert_eq!(
            taken(&[60_000, 60_000, 60_000, 60_000]),
            [true, true, true, false],
            "the bucket does not exceed its burst"
        );
    }
}
