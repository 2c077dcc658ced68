//! Measures the scrape interval and the exporter's sampling interval, because neither is recorded.

use std::time::Duration;

use bailiff_prometheus::{Api, Refused, Sample};

use super::held::{ANCHOR, Scraped, TAKEN};

/// Number of snapshots that is enough for a measurement.
const ENOUGH: usize = 20;

/// Measured intervals.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// Time between two scrapes with different snapshots.
    pub(super) interval: Option<Duration>,
    /// Sampling interval of the exporter.
    pub(super) tick: Option<Duration>,
}

impl Pace {
    /// Measures the first scrapes of a period; times in milliseconds.
    pub(super) fn measure(
        api: &mut Api,
        scraped: &Scraped,
        (from, to, part): (i64, i64, i64),
    ) -> Result<Self, Refused> {
        let matcher = scraped.matcher();
        let mut long = part;
        loop {
            let end = to.min(from.saturating_add(long));
            let mut samples = |metric: &str| -> Result<Vec<Sample>, Refused> {
                let series = api.samples(&format!("{metric}{matcher}"), (end, end - from))?;
                let mut samples: Vec<Sample> = series.into_iter().flat_map(|series| series.values).collect();
                samples.sort_by_key(|sample| sample.at);
                Ok(samples)
            };
            let (numbers, taken) = (samples(ANCHOR)?, samples(TAKEN)?);
            if numbers.len() >= ENOUGH || end == to {
                return Ok(Self::of(&numbers, &taken));
            }
            long = long.saturating_mul(2);
        }
    }

    /// Measures from the numbers of snapshots and their times.
    fn of(numbers: &[Sample], taken: &[Sample]) -> Self {
        let mut taken = taken.iter().peekable();
        let (mut scrapes, mut ticks) = (Vec::new(), Vec::new());
        let mut last: Option<(f64, f64, f64)> = None;
        for number in numbers {
            while taken.next_if(|sample| sample.at < number.at).is_some() {}
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of our times fit")]
            let scraped = number.at as f64 / 1000.0;
            let seen =
                taken.peek().filter(|sample| sample.at == number.at).map_or(scraped, |sample| sample.value);
            if let Some((before, scraped_before, seen_before)) = last {
                let between = number.value - before;
                // A repeated snapshot proves nothing; a smaller number is from another exporter.
                if between > 0.0 && seen > seen_before {
                    scrapes.push(scraped - scraped_before);
                    ticks.push((seen - seen_before) / between);
                }
                if between == 0.0 {
                    continue;
                }
            }
            last = Some((number.value, scraped, seen));
        }
        Self { interval: median(scrapes), tick: median(ticks) }
    }
}

/// Returns the median, rounded, because configured intervals are never precise to the millisecond.
fn median(mut seconds: Vec<f64>) -> Option<Duration> {
    seconds.sort_by(f64::total_cmp);
    let middle = *seconds.get(seconds.len() / 2)?;
    let grain = if middle >= 1.0 { 100.0 } else { 10.0 };
    let millis = (middle * 1000.0 / grain).round() * grain;
    Duration::try_from_secs_f64(millis / 1000.0).ok().filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_and_sampling_intervals_are_distinguished() {
        // Scrape interval and sampling interval in seconds, and the measured values.
        let cases = [
            (15.0, 5.0, 15_000, 5_000),
            (1.0, 5.0, 5_000, 5_000),
            (12.0, 5.0, 12_000, 5_000),
            (0.5, 0.2, 500, 200),
        ];
        for (scrape, tick, interval_ms, tick_ms) in cases {
            let (mut numbers, mut taken) = (Vec::new(), Vec::new());
            for place in 0..60 {
                let at = 1000.25 + f64::from(place) * scrape;
                let number = (at / tick).floor();
                #[expect(clippy::cast_possible_truncation, reason = "small")]
                let at = (at * 1000.0).round() as i64;
                numbers.push(Sample { at, value: number });
                taken.push(Sample { at, value: number * tick });
            }
            let pace = Pace::of(&numbers, &taken);
            let millis = |time: Option<Duration>| time.map(|time| time.as_millis());
            assert_eq!(
                (millis(pace.interval), millis(pace.tick)),
                (Some(interval_ms), Some(tick_ms)),
                "{scrape} {tick}"
            );
        }
        assert_eq!(Pace::of(&[], &[]), Pace::default());
    }
}
