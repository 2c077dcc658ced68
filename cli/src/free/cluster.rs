//! The GPUs of all nodes that a Prometheus server scrapes. A node without recent data is unknown.

#![expect(clippy::disallowed_methods, reason = "waits between two queries")]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use bailiff_exposition::human::Span;
use bailiff_prometheus::{Api, Labels, Series};
use bailiff_snapshot::GpuState;

use super::{Candidate, Evidence, Source};
use crate::exit::Failure;
use crate::prometheus::{instance, own, target};

/// Time between two queries of --wait.
const PAUSE: Duration = Duration::from_secs(5);
/// The GPUs that were seen in the last day: a node that is down is shown as unknown.
const KNOWN: &str = "last_over_time(bailiff_gpu_info[1d])";
/// All current values in one query, so that they are of the same time.
const NOW: &str = r#"{__name__=~"bailiff_(snapshot_timestamp_seconds|gpu_info|gpu_up|gpu_fault_info|gpu_memory_total_bytes|gpu_memory_free_bytes|gpu_processes|gpu_mig_enabled|gpu_mig_instances|lease_held|lease_gpus|slurm_gpu_allocation_info|source_up)"}"#;
/// Labels of the exporter in these metrics.
const OWN: [&str; 17] = [
    "gpu",
    "gpu_uuid",
    "name",
    "pci_bus_id",
    "minor",
    "compute_capability",
    "parent_uuid",
    "gpu_instance",
    "compute_instance",
    "reason",
    "user",
    "uid",
    "mode",
    "state",
    "source",
    "slurm_job",
    "account",
];
/// States of a pool's GPUs that are neither free nor leased, without a series for each GPU.
const HELD_BACK: [GpuState; 4] =
    [GpuState::Gathering, GpuState::Quarantined, GpuState::Barrier, GpuState::Unknown];

/// Returns a function that queries the GPUs; `vram` is the free memory that is needed.
pub(super) fn open(mut api: Api, (vram, max_age): (Option<u64>, Duration)) -> Source {
    let mut is_first = true;
    Box::new(move || {
        if !std::mem::take(&mut is_first) {
            thread::sleep(PAUSE);
        }
        query(&mut api, (vram, max_age))
    })
}

fn query(api: &mut Api, (vram, max_age): (Option<u64>, Duration)) -> Result<Vec<Candidate>, Failure> {
    let mut nodes: BTreeMap<Labels, Node> = BTreeMap::new();
    for series in api.instant(KNOWN)? {
        nodes.entry(target(&series.metric, &OWN)).or_default().known.push(series.metric);
    }
    if nodes.is_empty() {
        return Err(Failure::unavailable(
            "Prometheus has had no bailiff_gpu_info for a day; check that it scrapes bailiff-exporter",
        ));
    }
    for series in api.instant(NOW)? {
        if let Some(node) = nodes.get_mut(&target(&series.metric, &OWN)) {
            node.now.push(series);
        }
    }
    let candidates = |(target, node): (&Labels, &Node)| -> Vec<Candidate> {
        node.gpus().filter_map(|gpu| node.candidate(target, gpu, (vram, max_age))).collect()
    };
    Ok(nodes.iter().flat_map(candidates).collect())
}

/// The series of one exporter.
#[derive(Debug, Default)]
struct Node {
    /// The GPUs that were seen in the last day.
    known: Vec<Labels>,
    /// The current values.
    now: Vec<Series>,
}

/// Index and UUID of a GPU, which may be empty, and its other labels.
type Gpu<'a> = ((&'a str, &'a str), &'a Labels);

impl Node {
    /// Returns the GPUs that the driver lists; if that is unknown, those that it listed before.
    fn gpus(&self) -> impl Iterator<Item = Gpu<'_>> {
        let now = self.series("gpu_info").map(|series| &series.metric);
        let gpu = |labels| ((own(labels, "gpu"), own(labels, "gpu_uuid")), labels);
        let mut gpus: BTreeMap<_, _> = now.map(gpu).collect();
        if gpus.is_empty() {
            gpus = self.known.iter().map(gpu).collect();
        }
        gpus.into_iter()
    }

    fn series(&self, metric: &str) -> impl Iterator<Item = &Series> {
        let name = format!("bailiff_{metric}");
        self.now.iter().filter(move |series| series.metric.get("__name__") == Some(&name))
    }

    /// Returns the values of a metric with this label. Replicas of a server have copies of a series, which can differ.
    fn values(&self, metric: &str, (label, value): (&str, &str)) -> impl Iterator<Item = f64> {
        let series = self.series(metric).filter(move |series| own(&series.metric, label) == value);
        series.filter_map(|series| Some(series.value?.value))
    }

    /// Returns the values of a metric of a GPU.
    fn of_gpu(&self, metric: &str, (index, uuid): (&str, &str)) -> impl Iterator<Item = f64> {
        let series = self.series(metric).filter(move |series| {
            (own(&series.metric, "gpu"), own(&series.metric, "gpu_uuid")) == (index, uuid)
        });
        series.filter_map(|series| Some(series.value?.value))
    }

    /// Returns a number of bytes or processes.
    fn number(&self, metric: &str, gpu: (&str, &str), choose: fn(f64, f64) -> f64) -> Option<u64> {
        let value = self.of_gpu(metric, gpu).reduce(choose)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 0; saturates")]
        (value >= 0.0).then_some(value.round() as u64)
    }

    /// Returns a label of a metric about a GPU. A pool and Slurm may know only the index of the GPU.
    fn label(&self, metric: &str, gpu: (&str, &str), name: &str) -> Option<&str> {
        let is_about = |series: &&Series| {
            let (index, uuid) = (own(&series.metric, "gpu"), own(&series.metric, "gpu_uuid"));
            if uuid.is_empty() || gpu.1.is_empty() { index == gpu.0 } else { uuid == gpu.1 }
        };
        self.series(metric).find(is_about).map(|series| own(&series.metric, name))
    }

    /// Returns why the data of the node cannot be used.
    fn fault(&self, max_age: Duration) -> Option<String> {
        let stamps = self.series("snapshot_timestamp_seconds");
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of our times fit")]
        let ages = stamps.filter_map(|series| series.value.map(|at| at.at as f64 / 1000.0 - at.value));
        let Some(age) = ages.reduce(f64::min) else { return Some("no data of the node".to_owned()) };
        let long = Duration::try_from_secs_f64(age.abs()).unwrap_or(Duration::MAX);
        if long <= max_age {
            None
        } else if age < 0.0 {
            Some("the clocks of the node and of Prometheus differ".to_owned())
        } else {
            Some(format!("the newest data is {} old", Span(long)))
        }
    }

    /// Returns why it is unknown which GPUs are reserved.
    fn reservations_fault(&self) -> Option<String> {
        for (source, fault) in
            [("redis", "the lease pool cannot be read"), ("slurm", "the jobs of Slurm cannot be read")]
        {
            if self.values("source_up", ("source", source)).any(|up| up < 1.0) {
                return Some(fault.to_owned());
            }
        }
        let is_held_back =
            |state: &GpuState| self.values("lease_gpus", ("state", state.name())).any(|count| count > 0.0);
        let held_back = HELD_BACK.into_iter().find(is_held_back);
        held_back
            .map(|state| format!("a GPU of the lease pool is in state {}, it is unknown which", state.name()))
    }

    /// Returns why the state of a GPU is unknown.
    fn gpu_fault(&self, gpu: (&str, &str), max_age: Duration) -> Option<String> {
        if let Some(fault) = self.fault(max_age) {
            return Some(fault);
        }
        if !self.of_gpu("gpu_up", gpu).any(|up| up > 0.0) {
            let reason = self.label("gpu_fault_info", gpu, "reason");
            return Some(reason.unwrap_or("the driver returned no data").to_owned());
        }
        let has = |metric: &str| self.of_gpu(metric, gpu).any(|value| value > 0.0);
        let is_hidden = has("gpu_mig_enabled") && self.of_gpu("gpu_mig_instances", gpu).next().is_none();
        is_hidden.then(|| "its MIG instances are unknown".to_owned())
    }

    /// Returns what is known of a GPU; `None` for a GPU with MIG instances, which are listed themselves.
    fn candidate(
        &self,
        target: &Labels,
        (gpu, about): Gpu<'_>,
        (vram, max_age): (Option<u64>, Duration),
    ) -> Option<Candidate> {
        let fault = self.gpu_fault(gpu, max_age);
        if fault.is_none() && self.of_gpu("gpu_mig_instances", gpu).any(|count| count > 0.0) {
            return None;
        }
        // Values of a stale snapshot are not shown.
        let number = |metric: &str, choose: fn(f64, f64) -> f64| {
            self.number(metric, gpu, choose).filter(|_| fault.is_none())
        };
        let lease = self.label("lease_held", gpu, "mode").filter(|_| fault.is_none());
        let job = self.label("slurm_gpu_allocation_info", gpu, "slurm_job");
        let lease = lease.map(|_| GpuState::Leased);
        let processes = number("gpu_processes", f64::max).and_then(|count| usize::try_from(count).ok());
        let reserved = lease.map(|state| format!("lease: {}", state.name()));
        let evidence = Evidence {
            free_bytes: number("gpu_memory_free_bytes", f64::min),
            processes,
            reservations_fault: self.reservations_fault(),
            reserved: reserved.or_else(|| job.map(|job| format!("job {job}"))),
            fault: fault.clone(),
        };
        let verdict = evidence.verdict(vram);
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Some(Candidate {
            node: Some(instance(target).to_owned()),
            index: gpu.0.to_owned(),
            uuid: text(gpu.1),
            name: text(own(about, "name")),
            free: verdict.as_ref().ok().map(Option::is_none),
            free_bytes: evidence.free_bytes,
            total_bytes: number("gpu_memory_total_bytes", f64::min),
            processes,
            lease,
            why: verdict.unwrap_or_else(Some),
        })
    }
}
