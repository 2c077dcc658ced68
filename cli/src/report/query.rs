//! The queries of a report, and their results by scrape target.

use std::collections::BTreeMap;

use bailiff_prometheus::{Api, Labels, Refused, Series};

use super::window::Window;
use crate::prometheus::{own, target};

/// Number of steps in one query.
const STEPS: usize = 288;
/// Number of steps below which a query is not divided further.
const FEWEST: usize = 6;
/// Values above this are not plausible: no counter of seconds, joules or bytes reaches it.
const LARGEST: f64 = 1e18;

/// What is queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    /// Snapshots of an exporter, which decrease at its restart.
    Snapshots,
    /// Scrapes of an exporter in a step.
    Scrapes,
    /// Slices of a step in which an exporter was scraped.
    Slices,
    /// GPU-seconds held by a user, and the parts of them.
    Held,
    Idle,
    Unknown,
    /// Number of GPUs.
    Gpus,
    /// GPUs for which the driver returned data, summed over the scrapes in a step.
    Up,
    /// Memory of a user, summed over the scrapes in a step.
    Memory,
    /// Scrapes with the memory of a user on a GPU.
    MemoryScrapes,
    /// Scrapes with processes of a user on a GPU.
    ProcessScrapes,
    /// Energy of a user on a GPU.
    Energy,
    /// GPUs that Slurm allocated to an account, by state, summed over the scrapes in a step.
    Allocations,
    /// Snapshots of an enforcer, which decrease at its restart.
    EnforcerSnapshots,
    /// Slices of a step in which an enforcer was scraped.
    EnforcerSlices,
    /// Notices, terminations and memory released, of a user and of all.
    UserNotices,
    UserKills,
    UserReleased,
    Notices,
    Kills,
    Released,
}

/// Each metric with its expression and the labels that the expression keeps of the exporter or enforcer. `STEP` is the
/// length of a step. A subquery includes both ends of its range up to Prometheus 2, so `SHORT` is one second less.
const QUERIES: [(Metric, &str, &[&str]); 21] = [
    (Metric::Snapshots, "last_over_time(bailiff_snapshots_total[STEP])", &[]),
    (Metric::Scrapes, "count_over_time(bailiff_snapshots_total[STEP])", &[]),
    (Metric::Slices, "count_over_time(present_over_time(bailiff_snapshots_total[5m])[SHORT:5m])", &[]),
    (Metric::Held, "last_over_time(bailiff_held_gpu_seconds_total[STEP])", &["user"]),
    (Metric::Idle, "last_over_time(bailiff_idle_gpu_seconds_total[STEP])", &["user"]),
    (Metric::Unknown, "last_over_time(bailiff_unknown_gpu_seconds_total[STEP])", &["user"]),
    (
        Metric::Gpus,
        r#"count without (gpu, gpu_uuid) (last_over_time(bailiff_gpu_up{gpu!~".*:.*"}[STEP]))"#,
        &[],
    ),
    (Metric::Up, r#"sum without (gpu, gpu_uuid) (sum_over_time(bailiff_gpu_up{gpu!~".*:.*"}[STEP]))"#, &[]),
    (
        Metric::Memory,
        "sum without (gpu, gpu_uuid) (sum_over_time(bailiff_user_gpu_memory_bytes[STEP]))",
        &["user"],
    ),
    (
        Metric::MemoryScrapes,
        "sum without (gpu, gpu_uuid) (count_over_time(bailiff_user_gpu_memory_bytes[STEP]))",
        &["user"],
    ),
    (
        Metric::ProcessScrapes,
        "sum without (gpu, gpu_uuid) (count_over_time(bailiff_user_gpu_processes[STEP]))",
        &["user"],
    ),
    (
        Metric::Energy,
        r#"last_over_time(bailiff_energy_joules_total{part="user"}[STEP])"#,
        &["user", "gpu", "gpu_uuid", "part"],
    ),
    (
        Metric::Allocations,
        "sum without (gpu, gpu_uuid, slurm_job, uid, user) (count_over_time(bailiff_slurm_gpu_allocation_info[STEP]))",
        &["account", "state"],
    ),
    (Metric::EnforcerSnapshots, "last_over_time(bailiff_enforcer_snapshots_total[STEP])", &[]),
    (
        Metric::EnforcerSlices,
        "count_over_time(present_over_time(bailiff_enforcer_snapshots_total[5m])[SHORT:5m])",
        &[],
    ),
    (Metric::UserNotices, "last_over_time(bailiff_user_notices_total[STEP])", &["user"]),
    (
        Metric::UserKills,
        r#"last_over_time(bailiff_user_kills_total{result=~"released|gone_not_released|undetermined"}[STEP])"#,
        &["user", "result"],
    ),
    (Metric::UserReleased, "last_over_time(bailiff_user_memory_released_bytes_total[STEP])", &["user"]),
    (
        Metric::Notices,
        r#"last_over_time(bailiff_steps_total{step="notify"}[STEP])"#,
        &["rule", "step", "mode", "result"],
    ),
    (
        Metric::Kills,
        r#"last_over_time(bailiff_kills_total{result=~"released|gone_not_released|undetermined"}[STEP])"#,
        &["rule", "result"],
    ),
    (Metric::Released, "last_over_time(bailiff_memory_released_bytes_total[STEP])", &[]),
];

/// Values of a series by step; `None` without a scrape in the step.
type Values = Vec<Option<f64>>;
/// The series of a metric of one target, by the labels that the query keeps.
pub(super) type Table = BTreeMap<Vec<String>, Values>;

/// Results of all queries for some consecutive steps.
#[derive(Debug)]
pub(super) struct Part {
    /// The first step.
    pub(super) first: usize,
    /// Number of steps.
    pub(super) len: usize,
    pub(super) results: BTreeMap<Metric, BTreeMap<Labels, Table>>,
}

impl Part {
    /// Returns the targets of a metric.
    pub(super) fn targets(&self, metric: Metric) -> impl Iterator<Item = &Labels> {
        self.results.get(&metric).into_iter().flat_map(BTreeMap::keys)
    }

    /// Returns the series of a metric of a target.
    pub(super) fn of(&self, metric: Metric, target: &Labels) -> Option<&Table> {
        self.results.get(&metric)?.get(target)
    }

    /// Returns the value of a metric without labels at a step of this part.
    pub(super) fn value(&self, metric: Metric, target: &Labels, at: usize) -> Option<f64> {
        *self.of(metric, target)?.get(&[] as &[String])?.get(at)?
    }

    fn load(api: &mut Api, window: Window, (first, len): (usize, usize)) -> Result<Self, Refused> {
        let mut part = Self { first, len, results: BTreeMap::new() };
        let (from, to, step) = (window.end(first), window.end(first + len - 1), window.step);
        for (metric, expression, labels) in QUERIES {
            let expression =
                expression.replace("STEP", &format!("{step}s")).replace("SHORT", &format!("{}s", step - 1));
            let found = api.range(&expression, (from * 1000, to * 1000), step * 1000)?;
            let by_target = part.results.entry(metric).or_default();
            for series in found {
                let key = labels.iter().map(|name| own(&series.metric, name).to_owned()).collect();
                let table = by_target.entry(target(&series.metric, labels)).or_default();
                let values = table.entry(key).or_insert_with(|| vec![None; len]);
                merge(values, &series, (from * 1000, step * 1000));
            }
        }
        Ok(part)
    }
}

/// Inserts the plausible samples of a series. Copies of a series differ by at most a scrape, so the larger value is newer.
fn merge(values: &mut Values, series: &Series, (from, step): (i64, i64)) {
    for sample in &series.values {
        let after = sample.at.saturating_sub(from);
        let place = usize::try_from(after / step).ok().filter(|_| after >= 0 && after % step == 0);
        let Some(value) = place.and_then(|place| values.get_mut(place)) else { continue };
        if (0.0..=LARGEST).contains(&sample.value) {
            *value = Some(value.map_or(sample.value, |other: f64| other.max(sample.value)));
        }
    }
}

/// The parts of a period, one after another.
#[derive(Debug)]
pub(super) struct Parts {
    window: Window,
    next: usize,
    len: usize,
}

impl Parts {
    pub(super) fn new(window: Window) -> Self {
        Self { window, next: 0, len: STEPS }
    }

    /// Returns the next part, shortened until the server does not refuse it as too large. Step 0 is the state at the
    /// start of the period.
    pub(super) fn next(&mut self, api: &mut Api) -> Result<Option<Part>, Refused> {
        while self.next <= self.window.steps {
            let len = self.len.min(self.window.steps + 1 - self.next);
            match Part::load(api, self.window, (self.next, len)) {
                Ok(part) => {
                    self.next += len;
                    return Ok(Some(part));
                }
                Err(Refused::TooMuch(_)) if len > FEWEST => self.len = (len / 2).max(FEWEST),
                Err(refused) => return Err(refused),
            }
        }
        Ok(None)
    }
}

/// Returns the targets of jobs whose names contain `bailiff`, also those that were never up.
pub(super) fn targets(api: &mut Api, window: Window) -> Result<Vec<Labels>, Refused> {
    let expression = format!("last_over_time(up{{job=~\".*bailiff.*\"}}[{}s])", window.to() - window.from);
    let to = window.to() * 1000;
    let found = api.range(&expression, (to, to), window.step * 1000)?;
    Ok(found.iter().map(|series| target(&series.metric, &[])).collect())
}

#[cfg(test)]
mod tests {
    use bailiff_prometheus::Sample;

    use super::*;

    #[test]
    fn implausible_samples_are_unknown() {
        let sample = |at, value| Sample { at, value };
        let samples = vec![
            sample(1000, 5.0),
            sample(1300, f64::NAN),
            sample(1600, f64::INFINITY),
            sample(1900, -1.0),
            sample(2200, 1e300),
            sample(2500, 7.0),
            // Not at a step, before, after, and at the limits of the type.
            sample(2501, 8.0),
            sample(700, 8.0),
            sample(2800, 8.0),
            sample(i64::MIN, 8.0),
            sample(i64::MAX, 8.0),
        ];
        let series = Series { metric: Labels::new(), values: samples, value: None };
        let mut values = vec![None; 6];
        merge(&mut values, &series, (1000, 300));
        assert_eq!(values, [Some(5.0), None, None, None, None, Some(7.0)]);
        let copy =
            Series { metric: Labels::new(), values: vec![sample(1000, 4.0), sample(1300, 6.0)], value: None };
        merge(&mut values, &copy, (1000, 300));
        assert_eq!(values[..2], [Some(5.0), Some(6.0)]);
    }
}
