//! Utilization of a GPU by a process between two scrapes. A gauge has only the last sample, a counter all of
//! them.

/// Tolerance of the counter, which is a sum of rounded values.
const SLACK: f64 = 1.05;
/// Growth below this number of busy seconds is rounding.
const ROUNDING: f64 = 0.002;

/// Data of the time between two scrapes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Utilization in the last sample in percent; `None` if it was not observed.
    pub(super) gauge: Option<u32>,
    /// Growth of the busy seconds since the previous scrape; `None` without one.
    pub(super) growth: Option<f64>,
    /// Seconds since the previous scrape.
    pub(super) passed: f64,
    /// Sampling interval in seconds.
    pub(super) tick: f64,
}

impl Window {
    /// Returns the busiest sample in percent. Growth that the gauge does not explain is attributed to one
    /// unseen sample, so that no busy process counts as idle.
    pub(super) fn busiest(&self) -> Option<u32> {
        let Some(growth) = self.growth.filter(|growth| *growth > ROUNDING) else { return self.gauge };
        let gauge = f64::from(self.gauge.unwrap_or_default()) / 100.0;
        if growth <= gauge * self.passed * SLACK + ROUNDING {
            return self.gauge;
        }
        let unseen = (growth - gauge * self.tick.min(self.passed)).max(0.0);
        let tick = self.tick.max(ROUNDING);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 100")]
        let unseen = (unseen / tick * 100.0).ceil().clamp(1.0, 100.0) as u32;
        Some(unseen.max(self.gauge.unwrap_or_default()))
    }
}

/// Returns the growth of a counter; one that decreased was reset.
pub(super) fn growth(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_believed_where_the_counter_agrees() {
        let cases = [
            (Some(0), None, Some(0)),
            (Some(0), Some(0.0), Some(0)),
            (Some(50), Some(7.5), Some(50)),
            (Some(50), Some(2.5), Some(50)),
            (Some(1), Some(0.15), Some(1)),
            // One of the two ticks that were not seen was busy.
            (Some(0), Some(5.0), Some(100)),
            (Some(0), Some(0.1), Some(2)),
            (Some(0), Some(15.0), Some(100)),
            (Some(1), Some(5.05), Some(100)),
            // Nothing was observed at the end, and something before.
            (None, Some(0.5), Some(10)),
            (None, Some(0.0), None),
            (None, None, None),
        ];
        for (gauge, growth, expected) in cases {
            let window = Window { gauge, growth, passed: 15.0, tick: 5.0 };
            assert_eq!(window.busiest(), expected, "{window:?}");
        }
    }

    #[test]
    fn counters_that_fell_began_again() {
        assert!((growth(10.0, 12.5) - 2.5).abs() < 1e-9);
        assert!((growth(10.0, 1.5) - 1.5).abs() < 1e-9);
    }
}
