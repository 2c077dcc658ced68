//! The data of one exporter in Prometheus: the metrics from which snapshots are rebuilt, with their samples by
//! scrape.

use bailiff_prometheus::{Api, Labels, Refused, Series, quoted};

/// Metric whose samples show the times of scrapes.
pub(super) const ANCHOR: &str = "bailiff_snapshots_total";

/// Metric with the time of the snapshot.
pub(super) const TAKEN: &str = "bailiff_snapshot_timestamp_seconds";

/// Start times that differ by less belong to one process or job, because the clock behind them drifts.
pub(super) const SAME_START: f64 = 2.0;

/// Metrics from which a snapshot is rebuilt.
pub(super) const METRICS: [&str; 34] = [
    ANCHOR,
    TAKEN,
    "bailiff_source_up",
    "bailiff_source_fault_info",
    "bailiff_pid_namespace_info",
    "bailiff_gpu_info",
    "bailiff_gpu_up",
    "bailiff_gpu_fault_info",
    "bailiff_gpu_memory_total_bytes",
    "bailiff_gpu_memory_used_bytes",
    "bailiff_gpu_memory_free_bytes",
    "bailiff_gpu_memory_unaccounted_bytes",
    "bailiff_gpu_memory_unreleased_bytes",
    "bailiff_gpu_unlisted_processes",
    "bailiff_gpu_utilization_ratio",
    "bailiff_gpu_mig_enabled",
    "bailiff_gpu_mig_instances",
    "bailiff_gpu_processes",
    "bailiff_gpu_other_processes",
    "bailiff_process_info",
    "bailiff_process_state",
    "bailiff_process_start_time_seconds",
    "bailiff_process_cpu_seconds_total",
    "bailiff_process_io_bytes_total",
    "bailiff_process_orphaned",
    "bailiff_process_gpu_context_info",
    "bailiff_process_gpu_memory_bytes",
    "bailiff_process_gpu_utilization_ratio",
    "bailiff_process_gpu_utilization_unknown_info",
    "bailiff_process_gpu_idle_seconds",
    "bailiff_process_gpu_busy_seconds_total",
    "bailiff_process_gpu_xid_errors_total",
    "bailiff_slurm_gpu_allocation_info",
    "bailiff_slurm_gpu_unused_seconds",
];

/// Labels of the exporter's own series; all others are added by the scrape.
const OWN: [&str; 25] = [
    "__name__",
    "gpu",
    "gpu_uuid",
    "name",
    "pci_bus_id",
    "minor",
    "parent_uuid",
    "pid",
    "uid",
    "user",
    "comm",
    "command",
    "container",
    "runtime",
    "pod",
    "pod_uid",
    "namespace",
    "slurm_job",
    "unit",
    "state",
    "direction",
    "context",
    "engine",
    "reason",
    "source",
];

/// One exporter, as scraped by Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scraped {
    /// Target labels.
    pub(super) labels: Labels,
}

impl Scraped {
    /// Returns the target labels of a series.
    pub(super) fn of(series: &Labels) -> Self {
        let labels = series.iter().filter(|(name, _)| !matches!(name.as_str(), "__name__"));
        Self { labels: labels.map(|(name, value)| (name.clone(), value.clone())).collect() }
    }

    /// Name for people.
    pub(super) fn name(&self) -> &str {
        self.labels.get("instance").map_or("without an instance label", String::as_str)
    }

    /// Returns a matcher such as `{instance="node1:9400",job="bailiff"}`.
    pub(super) fn matcher(&self) -> String {
        let of_scrape = self.labels.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        let matchers: Vec<String> =
            of_scrape.map(|(name, value)| format!("{name}=\"{}\"", quoted(value))).collect();
        format!("{{{}}}", matchers.join(","))
    }

    /// Returns a label of a series. If the target has a label of the same name, Prometheus renames the series'
    /// own label. If the series' own label is empty, it is dropped, and the target's value appears instead.
    pub(super) fn label<'a>(&self, series: &'a Labels, name: &str) -> Option<&'a str> {
        if let Some(own) = series.get(&format!("exported_{name}")) {
            return Some(own);
        }
        let value = series.get(name).filter(|value| !value.is_empty())?;
        (self.labels.get(name) != Some(value)).then_some(value)
    }
}

/// The data of a period.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    series: Vec<ScrapeWindow>,
    /// Times of the scrapes.
    pub(super) scrapes: Vec<i64>,
}

#[derive(Debug)]
struct ScrapeWindow {
    metric: &'static str,
    series: Series,
    next: usize,
}

impl Chunk {
    /// Queries the period after `from`, up to and including `to`.
    pub(super) fn load(api: &mut Api, scraped: &Scraped, (from, to): (i64, i64)) -> Result<Self, Refused> {
        let matcher = scraped.matcher();
        let mut chunk = Self::default();
        for metric in METRICS {
            let found = api.samples(&format!("{metric}{matcher}"), (to, to - from))?;
            // Prometheus 2 also returns the sample at `from`, which belongs to the previous period.
            for mut series in found {
                series
                    .values
                    .retain(|sample| sample.at > from && sample.at <= to && sample.value.is_finite());
                if metric == ANCHOR {
                    chunk.scrapes.extend(series.values.iter().map(|sample| sample.at));
                }
                if !series.values.is_empty() {
                    chunk.series.push(ScrapeWindow { metric, series, next: 0 });
                }
            }
            if metric == ANCHOR && chunk.scrapes.is_empty() {
                return Ok(chunk);
            }
        }
        chunk.scrapes.sort_unstable();
        chunk.scrapes.dedup();
        Ok(chunk)
    }

    /// Returns all samples of one scrape; scrapes must be requested in order.
    pub(super) fn scrape(&mut self, at: i64) -> Scrape<'_> {
        let mut samples = Vec::new();
        for held in &mut self.series {
            let values = &held.series.values;
            while values.get(held.next).is_some_and(|sample| sample.at < at) {
                held.next += 1;
            }
            if let Some(sample) = values.get(held.next).filter(|sample| sample.at == at) {
                samples.push((held.metric, &held.series.metric, sample.value));
            }
        }
        Scrape(samples)
    }
}

/// Samples of one scrape.
#[derive(Debug)]
pub(super) struct Scrape<'a>(pub(super) Vec<(&'static str, &'a Labels, f64)>);

impl<'a> Scrape<'a> {
    /// Returns the samples of a metric.
    pub(super) fn of(&self, metric: &'static str) -> impl Iterator<Item = (&'a Labels, f64)> + '_ {
        debug_assert!(METRICS.contains(&metric), "{metric} is not asked for");
        self.0.iter().filter(move |(name, ..)| *name == metric).map(|(_, labels, value)| (*labels, *value))
    }

    /// Returns the only sample of a metric without labels.
    pub(super) fn one(&self, metric: &'static str) -> Option<f64> {
        self.of(metric).next().map(|(_, value)| value)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count, rounded; below nothing is 0"
)]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn matchers_are_of_the_scrape_alone() {
        let series =
            labels(&[("__name__", ANCHOR), ("instance", "a\"b"), ("job", "x"), ("pod", "exporter-1")]);
        assert_eq!(Scraped::of(&series).matcher(), "{instance=\"a\\\"b\",job=\"x\"}");
    }

    #[test]
    fn labels_of_the_scrape_are_not_a_process_s() {
        let anchor = labels(&[("instance", "a"), ("pod", "exporter-1")]);
        let scraped = Scraped::of(&anchor);
        let cases = [
            (labels(&[("pod", "exporter-1")]), None),
            (labels(&[("pod", "train-0")]), Some("train-0")),
            (labels(&[("pod", "exporter-1"), ("exported_pod", "train-0")]), Some("train-0")),
            (labels(&[("pod", "")]), None),
            (labels(&[]), None),
        ];
        for (series, expected) in cases {
            assert_eq!(scraped.label(&series, "pod"), expected, "{series:?}");
        }
    }
}
