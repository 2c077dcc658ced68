//! Metrics of users and containers: sums over all processes, including those without series of their own.

use std::collections::{BTreeMap, HashMap};

use bailiff_exposition::{Labels, Writer};
use bailiff_snapshot::{Facts, Holder, Place, Snapshot, UserTotals, user_label};

use super::gpus;
use crate::metrics;
use crate::selection::Sum;

/// Approximate size of the labels of a container in bytes.
const CONTAINER_BYTES: usize = 200;

/// Totals of one user, or one container, on one GPU.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    processes: Sum,
    memory: Sum,
    idle: Sum,
}

impl Tally {
    fn add(&mut self, holder: &Holder, facts: &Facts) {
        self.processes = self.processes.plus((!holder.reused_pid).then_some(1));
        self.memory = self.memory.plus(holder.memory);
        let idle = match holder.utilization.idle() {
            // An MPS server waits for its clients, so its memory is not counted as idle memory of its user.
            _ if facts.role.is_some() => Some(0),
            Some(true) => holder.memory,
            Some(false) => Some(0),
            None => None,
        };
        self.idle = self.idle.plus(idle);
    }

    fn join(&mut self, other: Self) {
        self.processes = self.processes.join(other.processes);
        self.memory = self.memory.join(other.memory);
        self.idle = self.idle.join(other.idle);
    }
}

/// Totals by the labels as written. Names that are cut to the same label are summed up, so that no series
/// occurs twice.
type Tallies = BTreeMap<Labels, Tally>;

pub(super) fn write(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let (users, containers) = tally(snapshot);
    let users: Vec<(&Labels, &Tally)> = users.iter().collect();
    page.rows(&metrics::IDLE_MEMORY, &users, |tally| tally.idle.known());
    totals(snapshot, page);
    page.rows(&metrics::USER_MEMORY, &users, |tally| tally.memory.known());
    page.rows(&metrics::USER_PROCESSES, &users, |tally| tally.processes.known());
    let containers: Vec<(&Labels, &Tally)> = containers.iter().collect();
    page.rows(&metrics::CONTAINER_MEMORY, &containers, |tally| tally.memory.known());
}

/// Returns the totals of users, and of containers, on each GPU.
fn tally(snapshot: &Snapshot) -> (Tallies, Tallies) {
    let (mut users, mut containers) = (Tallies::new(), Tallies::new());
    for gpu in &snapshot.gpus {
        let labels = gpus::labels(gpu);
        let mut of_gpu: HashMap<String, Tally> = HashMap::new();
        for holder in &gpu.holders {
            let process = snapshot.processes.get(&holder.process);
            let Some(facts) = process.and_then(|process| process.facts.as_ref()) else { continue };
            if let Some(user) = user_label(facts) {
                of_gpu.entry(user).or_default().add(holder, facts);
            }
            if let Some(labels) = container(&labels, &facts.place) {
                containers.entry(labels).or_default().add(holder, facts);
            }
        }
        for (user, tally) in of_gpu {
            users.entry(labels.clone().with("user", &user)).or_default().join(tally);
        }
    }
    (users, containers)
}

fn container(labels: &Labels, place: &Place) -> Option<Labels> {
    let container = place.container.as_deref()?;
    let labels = labels.roomy(CONTAINER_BYTES).with("container", container);
    Some(labels.even_empty("pod", place.pod.as_deref()).even_empty("namespace", place.namespace.as_deref()))
}

fn totals(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let mut totals: BTreeMap<Labels, UserTotals> = BTreeMap::new();
    for (user, more) in &snapshot.users {
        let total = totals.entry(Labels::default().with("user", user)).or_default();
        total.held_seconds += more.held_seconds;
        total.idle_seconds += more.idle_seconds;
        total.unknown_seconds += more.unknown_seconds;
    }
    let totals: Vec<(&Labels, &UserTotals)> = totals.iter().collect();
    page.rows(&metrics::HELD_GPU_SECONDS, &totals, |total| Some(total.held_seconds));
    page.rows(&metrics::IDLE_GPU_SECONDS, &totals, |total| Some(total.idle_seconds));
    page.rows(&metrics::UNKNOWN_GPU_SECONDS, &totals, |total| Some(total.unknown_seconds));
}
