//! Metrics of the lease pool.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_exposition::{Family, Histogram, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::lease::attribution::Members;
use bailiff_snapshot::lease::{Names, Tally, Waits};
use bailiff_snapshot::{Gpu, GpuState, Holder, Leases, PoolGpu, Snapshot, Truth};

use super::gpus;
use crate::metrics;

/// A GPU may be in the state `unknown` for this long, because GPU.py removes it from the idle list before it
/// writes its record.
const IN_HAND: Duration = Duration::from_secs(30);

/// The lease pool and its snapshot.
struct View<'a> {
    leases: &'a Leases,
    snapshot: &'a Snapshot,
    /// The driver's GPUs and MIG instances, by the id of the pool's GPU.
    parts: BTreeMap<&'a str, Vec<&'a Gpu>>,
}

/// A metric and its value for a GPU of the pool.
type Column = (&'static Family, fn(&View<'_>, &PoolGpu) -> Option<Number>);

const COLUMNS: [Column; 3] = [
    (&metrics::LEASE_AGE, |view, gpu| Some(seconds(view.leases.holding(gpu)?.age_ms?).into())),
    (&metrics::LEASE_IDLE, |_, gpu| {
        let observed = gpu.gpu_state == GpuState::Leased && gpu.idle != Truth::Unknown;
        observed.then(|| seconds(gpu.idle_ms).into())
    }),
    (&metrics::LEASE_UNRESERVED, |view, gpu| view.unreserved(gpu).map(Number::from)),
];

/// Writes all metrics of leases; nothing if the pool did not respond.
pub(super) fn write(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let Some(leases) = &snapshot.leases else { return };
    let mut parts: BTreeMap<&str, Vec<&Gpu>> = BTreeMap::new();
    for seen in &snapshot.gpus {
        if let Some(ours) = leases.gpu(seen) {
            parts.entry(&ours.id).or_default().push(seen);
        }
    }
    let view = View { leases, snapshot, parts };
    let none = Labels::default();
    // A pool that is not initialized has no GPUs, so no counts are written.
    for gpu_state in GpuState::ALL.into_iter().filter(|_| !leases.gpus.is_empty()) {
        let count = leases.gpus.iter().filter(|gpu| gpu.gpu_state == gpu_state).count();
        page.put_as((&metrics::LEASE_GPUS, "state", gpu_state.name()), &none, count as u64);
    }
    // Keyed by the labels as written, so that no series occurs twice even if two GPUs of the pool have the
    // same labels.
    let gpus: BTreeMap<Labels, &PoolGpu> = leases.gpus.iter().map(|gpu| (view.labels(gpu), gpu)).collect();
    let gpus: Vec<(Labels, &PoolGpu)> = gpus.into_iter().collect();
    for (labels, gpu) in &gpus {
        if let Some(labels) = holder(leases, gpu, labels) {
            page.put(&metrics::LEASE_HELD, &labels, PRESENT);
        }
    }
    for (family, number) in COLUMNS {
        page.rows(family, &gpus, |gpu| number(&view, gpu));
    }
    page.put(&metrics::LEASE_QUEUE_LENGTH, &none, leases.queue.len() as u64);
    if let Some(oldest) = leases.queue.iter().filter_map(|ticket| ticket.age_ms).max() {
        page.put(&metrics::LEASE_QUEUE_OLDEST, &none, seconds(oldest));
    }
    tally(&leases.tally, page);
    let suspects = leases.gpus.iter().filter(|gpu| view.is_suspect(gpu)).count();
    page.put(&metrics::LEASE_LEGACY_SUSPECT, &none, suspects as u64);
    if let Some(append_only) = leases.tally.append_only {
        page.put(&metrics::LEASE_AOF, &none, append_only);
    }
}

fn tally(tally: &Tally, page: &mut Writer<'_>) {
    let none = Labels::default();
    if let Some(waits) = &tally.waits {
        page.put_histogram(&metrics::LEASE_WAIT, &none, &histogram(waits));
    }
    for (event, count) in &tally.events {
        page.put_as((&metrics::LEASE_EVENTS, "event", event), &none, *count);
    }
}

fn histogram(waits: &Waits) -> Histogram {
    Histogram {
        buckets: waits.buckets.iter().map(|(bound, count)| (bound.as_secs_f64(), *count)).collect(),
        larger: waits.longer,
        sum: waits.sum.as_secs_f64(),
    }
}

/// Returns the labels of the GPU's holder, which has a lease or is a client of GPU.py; `None` if the GPU has no
/// holder.
fn holder(leases: &Leases, gpu: &PoolGpu, labels: &Labels) -> Option<Labels> {
    match gpu.gpu_state {
        GpuState::Legacy => Some(labels.clone().with("mode", "legacy")),
        GpuState::Leased => {
            let held = leases.holding(gpu);
            let user = held.and_then(|held| held.user.as_deref());
            let mode = held.and_then(|held| held.mode.as_deref());
            Some(labels.clone().maybe("user", user).maybe("mode", mode))
        }
        _ => None,
    }
}

impl View<'_> {
    /// Returns the driver's labels of the GPU, or the pool's names for it if the driver does not report it.
    fn labels(&self, gpu: &PoolGpu) -> Labels {
        match self.snapshot.gpus.iter().find(|seen| gpu.is(Names::from(*seen))) {
            Some(seen) => gpus::labels(seen),
            None => Labels::default().with("gpu", &gpu.id).maybe("gpu_uuid", gpu.uuid.as_deref()),
        }
    }

    /// Returns the driver's GPU, or its MIG instances if it is partitioned, because then the processes are
    /// listed there.
    fn parts(&self, gpu: &PoolGpu) -> Vec<&Gpu> {
        let parts = self.parts.get(gpu.id.as_str()).into_iter().flatten();
        parts.copied().filter(|part| part.instances.is_none()).collect()
    }

    /// Returns whether processes compute on the GPU and none of them has the lease; `None` if this is
    /// uncertain.
    fn unreserved(&self, gpu: &PoolGpu) -> Option<bool> {
        let parts = self.parts(gpu);
        let all_named = |part: &&Gpu| part.listed == Some(part.holders.len() as u64);
        let mut leased = Truth::Unknown;
        if !parts.is_empty() && parts.iter().all(all_named) {
            leased = Truth::False;
        }
        let holders: Vec<&Holder> =
            parts.iter().flat_map(|part| &part.holders).filter(|holder| computes(holder)).collect();
        for holder in &holders {
            leased = leased.or(self.has_lease(holder, gpu));
        }
        match leased {
            Truth::True => Some(false),
            Truth::Unknown => None,
            // The pool and the processes are read at different times, and a new process may have been granted
            // the lease in between.
            Truth::False if holders.iter().any(|holder| holder.listed.is_zero()) => None,
            Truth::False => Some(!holders.is_empty()),
        }
    }

    fn has_lease(&self, holder: &Holder, gpu: &PoolGpu) -> Truth {
        let process = self.snapshot.processes.get(&holder.process);
        match process.and_then(|process| process.facts.as_ref()) {
            Some(facts) => self.leases.lease_of(&Members::from(facts), Some(gpu)).truth(),
            None => Truth::Unknown,
        }
    }

    /// Returns whether a client of GPU.py may have exited without returning the GPU.
    fn is_suspect(&self, gpu: &PoolGpu) -> bool {
        let parts = self.parts(gpu);
        let unused = !parts.is_empty() && parts.iter().all(|part| part.listed == Some(0));
        let gone = match (gpu.gpu_state, &gpu.record) {
            (GpuState::Legacy, Some(record)) => record.alive == Truth::False,
            (GpuState::Unknown, None) => Duration::from_millis(gpu.since_ms) >= IN_HAND,
            _ => false,
        };
        unused && gone
    }
}

/// Returns whether the process uses the GPU for computing; a desktop's display does not count as use.
const fn computes(holder: &Holder) -> bool {
    holder.kinds.compute || holder.kinds.mps || !holder.kinds.graphics
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds are far below 2^53")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1e3
}
