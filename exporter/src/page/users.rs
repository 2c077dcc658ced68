//! What the page says of users and containers: sums over processes, whatever their number.

use std::collections::BTreeMap;

use bailiff_snapshot::{Facts, Holder, Place, Snapshot, UserTotals, snapshot::user_label};

use super::gpus;
use super::labels::Labels;
use super::writer::Writer;
use crate::metrics;
use crate::selection::Sum;

/// What one user, or one container, has on one GPU.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    processes: u64,
    memory: Sum,
    idle: Sum,
}

impl Tally {
    fn add(&mut self, holder: &Holder) {
        self.processes += 1;
        self.memory = self.memory.plus(holder.memory);
        let idle = match holder.utilization.idle() {
            Some(true) => holder.memory,
            Some(false) => Some(0),
            None => None,
        };
        self.idle = self.idle.plus(idle);
    }
}

/// Keyed by the labels as they are written: two names that are cut to the same are summed up, and no series
/// can stand twice.
type Tallies = BTreeMap<Labels, Tally>;

/// Writes all sums.
pub(super) fn write(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let users = tally(snapshot, |labels, facts| Some(labels.with("user", &user_label(facts)?)));
    for (labels, tally) in &users {
        if let Some(bytes) = tally.idle.known() {
            page.put(&metrics::IDLE_MEMORY, labels, bytes);
        }
    }
    totals(snapshot, page);
    for (labels, tally) in &users {
        if let Some(bytes) = tally.memory.known() {
            page.put(&metrics::USER_MEMORY, labels, bytes);
        }
    }
    for (labels, tally) in &users {
        page.put(&metrics::USER_PROCESSES, labels, tally.processes);
    }
    for (labels, tally) in tally(snapshot, |labels, facts| container(labels, &facts.place)) {
        if let Some(bytes) = tally.memory.known() {
            page.put(&metrics::CONTAINER_MEMORY, &labels, bytes);
        }
    }
}

fn container(labels: Labels, place: &Place) -> Option<Labels> {
    let labels = labels.with("container", place.container.as_deref()?);
    Some(labels.maybe("pod", place.pod.as_deref()).maybe("namespace", place.namespace.as_deref()))
}

fn tally(snapshot: &Snapshot, name: impl Fn(Labels, &Facts) -> Option<Labels>) -> Tallies {
    let mut tallies = Tallies::new();
    for gpu in &snapshot.gpus {
        let labels = gpus::labels(gpu);
        for holder in &gpu.holders {
            let process = snapshot.processes.get(&holder.process);
            let Some(facts) = process.and_then(|process| process.facts.as_ref()) else { continue };
            if let Some(labels) = name(labels.clone(), facts) {
                tallies.entry(labels).or_default().add(holder);
            }
        }
    }
    tallies
}

fn totals(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let mut totals: BTreeMap<Labels, UserTotals> = BTreeMap::new();
    for (user, more) in &snapshot.users {
        let total = totals.entry(Labels::default().with("user", user)).or_default();
        total.held_seconds += more.held_seconds;
        total.idle_seconds += more.idle_seconds;
    }
    for (labels, total) in &totals {
        page.put(&metrics::HELD_GPU_SECONDS, labels, total.held_seconds);
    }
    for (labels, total) in &totals {
        page.put(&metrics::IDLE_GPU_SECONDS, labels, total.idle_seconds);
    }
}
