//! Counters of one scrape target: their growth from step to step, across restarts and gaps.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bailiff_prometheus::Labels;

use super::query::{Metric, Part};

/// The counters of an exporter or enforcer at its last scrape.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    last: Option<Last>,
    /// Values of counters, each with its step.
    counters: BTreeMap<(Metric, Vec<String>), (usize, f64)>,
}

/// The last scrape: its step, and the number of snapshots.
#[derive(Debug, Clone, Copy)]
struct Last {
    step: usize,
    snapshots: f64,
}

/// From one scrape to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passed {
    from: usize,
    to: usize,
    is_gap: bool,
}

impl Passed {
    /// Returns the steps that ended since the last scrape.
    pub(super) const fn steps(self) -> RangeInclusive<usize> {
        self.from + 1..=self.to
    }
}

/// Growth of a counter since the last scrape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    pub(super) value: f64,
    /// Whether the counter was scraped without a gap.
    pub(super) is_continuous: bool,
}

impl Tracked {
    /// Registers a scrape. `is_whole` is false if there was a gap within the step. Returns `None` at the first scrape,
    /// whose counters may have grown before the period. A restart begins all counters again.
    pub(super) fn pass(&mut self, step: usize, snapshots: f64, is_whole: bool) -> Option<Passed> {
        let last = self.last.replace(Last { step, snapshots })?;
        if snapshots < last.snapshots {
            self.counters.clear();
        }
        Some(Passed { from: last.step, to: step, is_gap: !is_whole || last.step + 1 != step })
    }

    /// Returns the growth of the series of a metric; `None` for a series at the first scrape.
    pub(super) fn growths(
        &mut self,
        part: &Part,
        (metric, target): (Metric, &Labels),
        (at, passed): (usize, Option<Passed>),
    ) -> BTreeMap<Vec<String>, Option<Growth>> {
        let table = part.of(metric, target).into_iter().flatten();
        let values = table.filter_map(|(key, values)| Some((key, (*values.get(at)?)?)));
        values
            .map(|(key, value)| (key.clone(), self.growth((metric, key), (part.first + at, value), passed)))
            .collect()
    }

    /// A series that was missing at earlier scrapes began at 0.
    fn growth(
        &mut self,
        (metric, key): (Metric, &[String]),
        (step, value): (usize, f64),
        passed: Option<Passed>,
    ) -> Option<Growth> {
        let before = self.counters.insert((metric, key.to_owned()), (step, value));
        let passed = passed?;
        let (from, start) = before.unwrap_or((passed.from, 0.0));
        Some(Growth {
            value: if value < start { value } else { value - start },
            is_continuous: !passed.is_gap && from == passed.from && step == passed.to,
        })
    }
}
