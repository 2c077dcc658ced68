//! The period of a report, and its division into steps, each of which is one value of a query.

use std::time::Duration;

/// The length of a slice in seconds: a slice without a scrape is a gap. Periods and steps are multiples of it.
pub(super) const SLICE: i64 = 300;
/// The shortest and the longest period, in seconds.
const LIMITS: (i64, i64) = (2 * SLICE, 366 * 86_400);
/// Lengths of a step in seconds; whole hours are multiples of each.
const STEPS: [i64; 6] = [SLICE, 600, 900, 1200, 1800, 3600];
/// The number of steps above which steps are longer.
const ENOUGH: i64 = 2016;
/// Lengths of the columns of charts in seconds, and the maximum number of columns.
const COLUMNS: ([i64; 6], i64) = ([SLICE, 900, 3600, 6 * 3600, 86_400, 7 * 86_400], 60);

/// A period, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) from: i64,
    /// Length of a step.
    pub(super) step: i64,
    /// Number of steps.
    pub(super) steps: usize,
}

impl Window {
    /// Parses `--since` and `--until`; `now` is the time since the Unix epoch.
    pub(super) fn new((since, until): (&str, &str), now: Duration) -> Result<Self, String> {
        let moment = |flag: &str, text: &str| {
            let time = bailiff_prometheus::moment(text, now).ok_or_else(|| {
                format!(
                    "{flag} {text:?} is neither an age such as 7d nor a time such as 2026-03-01T00:00:00Z"
                )
            })?;
            let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
            if time > now {
                Err(format!("{flag} {text:?} is in the future"))
            } else {
                Ok(seconds / SLICE * SLICE)
            }
        };
        let (from, to) = (moment("--since", since)?, moment("--until", until)?);
        let length = to - from;
        if length < LIMITS.0 || length > LIMITS.1 {
            return Err("the period from --since to --until must have 10 minutes to 366 days".to_owned());
        }
        let step = STEPS.into_iter().find(|step| length / step <= ENOUGH).unwrap_or(3600);
        let steps = (length + step - 1) / step;
        Ok(Self { from: to - steps * step, step, steps: usize::try_from(steps).unwrap_or_default() })
    }

    /// Returns the end.
    pub(super) fn to(self) -> i64 {
        self.end(self.steps)
    }

    /// Returns the end of a step; step 0 ends at the start of the period.
    pub(super) fn end(self, step: usize) -> i64 {
        self.from.saturating_add(self.step.saturating_mul(i64::try_from(step).unwrap_or(i64::MAX)))
    }

    /// Returns the number of slices in a step.
    pub(super) fn slices(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 12")]
        let slices = (self.step / SLICE) as f64;
        slices
    }

    /// Returns the length of a chart's columns in seconds.
    pub(super) fn column(self) -> i64 {
        let length = self.to() - self.from;
        let fits = |column: &i64| *column >= self.step && length / column <= COLUMNS.1;
        COLUMNS.0.into_iter().find(fits).unwrap_or(COLUMNS.0[5])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01T00:00:00Z and two minutes.
    const NOW: Duration = Duration::from_mins(29_453_762);
    const DAY: i64 = 86_400;

    #[test]
    fn step_and_columns_grow_with_the_period() {
        for (since, step, steps, column) in [
            ("10m", 300, 2, 300),
            ("1d", 300, 288, 3600),
            ("7d", 300, 2016, 6 * 3600),
            ("30d", 1800, 1440, DAY),
            ("366d", 3600, 8784, 7 * DAY),
        ] {
            let window = Window::new((since, "0s"), NOW).unwrap();
            assert_eq!((window.step, window.steps, window.column()), (step, steps, column), "{since}");
            assert_eq!((window.to(), window.from % SLICE), (1_767_225_600, 0), "{since}");
        }
        let month = Window::new(("2025-11-01T00:00:00Z", "2025-12-01T00:00:00Z"), NOW).unwrap();
        assert_eq!((month.from, month.to()), (1_761_955_200, 1_761_955_200 + 30 * DAY));
    }

    #[test]
    fn period_outside_limits_is_refused() {
        for (since, until, why) in [
            ("5m", "0s", "10 minutes"),
            ("367d", "0s", "366 days"),
            ("1d", "2d", "10 minutes"),
            ("1000000d", "0s", "neither"),
            ("soon", "0s", "--since \"soon\" is neither"),
            ("7d", "2027-01-01T00:00:00Z", "in the future"),
            ("7d", "-1d", "--until"),
        ] {
            let error = Window::new((since, until), NOW).unwrap_err();
            assert!(error.contains(why), "{since} {until}: {error}");
        }
    }
}
