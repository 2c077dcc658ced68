//! Adds up what users held, from the values of counters at each step. Only time between two scrapes without a gap is
//! used or idle; all other time is unknown.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_prometheus::Labels;

use super::query::{Metric, Part};
use super::tracked::{Growth, Passed, Tracked};
use super::window::{SLICE, Window};
use crate::prometheus::instance;

/// GPU time in milliseconds. The parts are disjoint, and their sum is the time for which GPUs were held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GpuTime {
    pub(super) used: u64,
    pub(super) idle: u64,
    pub(super) unknown: u64,
}

impl GpuTime {
    /// Splits the growth of a counter of held seconds. Without both other counters, it is unknown.
    fn split(held: f64, parts: Option<(f64, f64)>) -> Self {
        let held = millis(held);
        let Some((idle, unknown)) = parts else { return Self { unknown: held, ..Self::default() } };
        let idle = millis(idle).min(held);
        let unknown = millis(unknown).min(held - idle);
        Self { used: held - idle - unknown, idle, unknown }
    }

    /// Adds another time.
    pub(super) fn add(&mut self, more: Self) {
        self.used = self.used.saturating_add(more.used);
        self.idle = self.idle.saturating_add(more.idle);
        self.unknown = self.unknown.saturating_add(more.unknown);
    }

    /// Rounds the parts to a unit in milliseconds; the first value is their sum.
    pub(super) fn in_units(self, unit: u64) -> [u64; 4] {
        let round = |part: u64| part.saturating_add(unit / 2) / unit;
        let [used, idle, unknown] = [self.used, self.idle, self.unknown].map(round);
        [used.saturating_add(idle).saturating_add(unknown), used, idle, unknown]
    }
}

/// Use of GPUs by one user. `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct UserUse {
    /// `None` if the exporter's counters of GPU time are missing.
    pub(super) time: Option<GpuTime>,
    /// Memory in byte-seconds.
    pub(super) memory: Option<f64>,
    /// Whether the memory was unknown in a part of the scrapes.
    pub(super) memory_is_incomplete: bool,
    /// Energy in joules.
    pub(super) energy: Option<f64>,
    pub(super) events: Events,
    /// Hosts on which the user held GPUs.
    pub(super) hosts: BTreeSet<String>,
}

impl UserUse {
    /// Adds the use of another user. A sum with an unknown part is unknown, except that of memory, which is then a lower bound.
    pub(super) fn add(&mut self, more: &Self) {
        self.time = self.time.zip(more.time).map(|(mut time, more)| {
            time.add(more);
            time
        });
        self.memory_is_incomplete |=
            more.memory_is_incomplete || self.memory.is_some() != more.memory.is_some();
        self.memory = match (self.memory, more.memory) {
            (Some(memory), Some(more)) => Some(memory + more),
            (memory, more) => memory.or(more),
        };
        self.energy = self.energy.zip(more.energy).map(|(energy, more)| energy + more);
        self.events.notices += more.events.notices;
        self.events.kills += more.events.kills;
        self.events.released += more.events.released;
        self.hosts.extend(more.hosts.iter().cloned());
    }

    /// Records that the user held a GPU of a target.
    fn on(&mut self, target: &Labels) {
        let host = host(target);
        if !self.hosts.contains(host) {
            self.hosts.insert(host.to_owned());
        }
    }
}

/// Growth of the enforcer's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Events {
    pub(super) notices: f64,
    pub(super) kills: f64,
    pub(super) released: f64,
}

impl Events {
    fn of(&mut self, metric: Metric) -> Option<&mut f64> {
        match metric {
            Metric::UserNotices | Metric::Notices => Some(&mut self.notices),
            Metric::UserKills | Metric::Kills => Some(&mut self.kills),
            Metric::UserReleased | Metric::Released => Some(&mut self.released),
            _ => None,
        }
    }
}

/// The GPUs of one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeUse {
    /// The latest number of GPUs; `None` if it was never observed.
    pub(super) gpus: Option<f64>,
    /// GPU-seconds of the period.
    pub(super) total: f64,
    /// GPU-seconds without data, by column of the chart.
    pub(super) unknown: BTreeMap<usize, f64>,
    /// Seconds before the number of GPUs was observed, by column.
    before: BTreeMap<usize, f64>,
}

impl NodeUse {
    /// Adds a step of this many seconds, in which GPUs were up for `up` GPU-seconds.
    fn step(&mut self, (column, seconds): (usize, f64), gpus: Option<f64>, up: f64) {
        *self.before.entry(column).or_default() += seconds;
        let Some(count) = gpus.or(self.gpus) else { return };
        self.gpus = Some(count);
        let mut up = up;
        for (column, seconds) in std::mem::take(&mut self.before).into_iter().rev() {
            self.total += count * seconds;
            *self.unknown.entry(column).or_default() += (count * seconds - up).max(0.0);
            // Earlier columns have no data.
            up = 0.0;
        }
    }
}

/// The sums of a period.
#[derive(Debug)]
pub(super) struct Usage {
    window: Window,
    exporters: BTreeMap<Labels, Tracked>,
    enforcers: BTreeMap<Labels, Tracked>,
    pub(super) users: BTreeMap<String, UserUse>,
    /// GPUs that Slurm allocated, by account.
    pub(super) accounts: BTreeMap<String, GpuTime>,
    pub(super) nodes: BTreeMap<Labels, NodeUse>,
    /// GPU time of all users, by column of the chart.
    pub(super) columns: Vec<GpuTime>,
    /// Events of all users, also those that were not counted by user.
    pub(super) events: Events,
    /// Seconds without data of an enforcer.
    pub(super) enforcer_gaps: f64,
}

impl Usage {
    pub(super) fn new(window: Window) -> Self {
        let columns = vec![GpuTime::default(); column(window, window.steps) + 1];
        Self {
            window,
            exporters: BTreeMap::new(),
            enforcers: BTreeMap::new(),
            users: BTreeMap::new(),
            accounts: BTreeMap::new(),
            nodes: BTreeMap::new(),
            columns,
            events: Events::default(),
            enforcer_gaps: 0.0,
        }
    }

    /// Returns whether an enforcer was scraped.
    pub(super) fn has_enforcer(&self) -> bool {
        !self.enforcers.is_empty()
    }

    /// Returns the hosts with an exporter and without an enforcer.
    pub(super) fn without_enforcer(&self) -> BTreeSet<&str> {
        let enforcers: BTreeSet<&str> = self.enforcers.keys().map(host).collect();
        self.exporters.keys().map(host).filter(|host| !enforcers.contains(host)).collect()
    }

    /// Returns whether a target was scraped.
    pub(super) fn knows(&self, target: &Labels) -> bool {
        self.exporters.contains_key(target) || self.enforcers.contains_key(target)
    }

    /// Adds the next part of the period.
    pub(super) fn add(&mut self, part: &Part) {
        let seconds = step_seconds(self.window);
        for target in part.targets(Metric::Snapshots) {
            if !self.exporters.contains_key(target) {
                let node = self.nodes.entry(target.clone()).or_default();
                (1..part.first).for_each(|step| node.step((column(self.window, step), seconds), None, 0.0));
                self.exporters.insert(target.clone(), Tracked::default());
            }
        }
        for target in part.targets(Metric::EnforcerSnapshots) {
            if !self.enforcers.contains_key(target) {
                self.enforcer_gaps += seconds * count(part.first.saturating_sub(1));
                self.enforcers.insert(target.clone(), Tracked::default());
            }
        }
        let mut exporters = std::mem::take(&mut self.exporters);
        for (target, tracked) in &mut exporters {
            for at in 0..part.len {
                self.exporter_step(part, (target, at), tracked);
            }
        }
        self.exporters = exporters;
        let mut enforcers = std::mem::take(&mut self.enforcers);
        for (target, tracked) in &mut enforcers {
            for at in 0..part.len {
                self.enforcer_step(part, (target, at), tracked);
            }
        }
        self.enforcers = enforcers;
    }

    fn exporter_step(&mut self, part: &Part, (target, at): (&Labels, usize), tracked: &mut Tracked) {
        let step = part.first + at;
        let slices = part.value(Metric::Slices, target, at).unwrap_or_default();
        self.node_step(part, (target, at), slices);
        let Some(snapshots) = part.value(Metric::Snapshots, target, at) else { return };
        let passed = tracked.pass(step, snapshots, slices >= self.window.slices());
        self.gpu_time(part, (target, at), (tracked, passed));
        for (key, energy) in tracked.growths(part, (Metric::Energy, target), (at, passed)) {
            let user = self.users.entry(key[0].clone()).or_default();
            if let Some(growth) = energy {
                *user.energy.get_or_insert_default() += growth.value;
            }
        }
        if step > 0 {
            self.gauges(part, (target, at), slices);
        }
    }

    /// Adds the growth of the counters of GPU time.
    fn gpu_time(
        &mut self,
        part: &Part,
        (target, at): (&Labels, usize),
        (tracked, passed): (&mut Tracked, Option<Passed>),
    ) {
        let [held, idle, unknown] = [Metric::Held, Metric::Idle, Metric::Unknown]
            .map(|metric| tracked.growths(part, (metric, target), (at, passed)));
        let whole = |table: &BTreeMap<Vec<String>, Option<Growth>>, key: &[String]| {
            let growth = table.get(key).copied().flatten();
            growth.filter(|growth| growth.is_continuous).map(|growth| growth.value)
        };
        for (key, growth) in &held {
            let Some(growth) = growth else { continue };
            let parts = whole(&idle, key).zip(whole(&unknown, key));
            let split = GpuTime::split(growth.value, parts.filter(|_| growth.is_continuous));
            let user = self.users.entry(key[0].clone()).or_default();
            user.time.get_or_insert_default().add(split);
            user.on(target);
            self.add_to_columns(split, passed);
        }
    }

    /// Adds GPU time to the chart. Time in a gap is spread over the gap.
    fn add_to_columns(&mut self, time: GpuTime, passed: Option<Passed>) {
        let Some(passed) = passed else { return };
        let mut rest = time;
        for step in passed.steps() {
            let left = (passed.steps().end() + 1 - step) as u64;
            let share =
                GpuTime { used: rest.used / left, idle: rest.idle / left, unknown: rest.unknown / left };
            rest = GpuTime {
                used: rest.used - share.used,
                idle: rest.idle - share.idle,
                unknown: rest.unknown - share.unknown,
            };
            if let Some(column) = self.columns.get_mut(column(self.window, step)) {
                column.add(share);
            }
        }
    }

    /// Adds memory and allocations, which are gauges: their average over the scrapes of a step, multiplied by the time
    /// with data.
    fn gauges(&mut self, part: &Part, (target, at): (&Labels, usize), slices: f64) {
        let Some(scrapes) = part.value(Metric::Scrapes, target, at).filter(|scrapes| *scrapes > 0.0) else {
            return;
        };
        let per_scrape = seconds(slices) / scrapes;
        let value = |metric: Metric, key: &[String]| *part.of(metric, target)?.get(key)?.get(at)?;
        for key in part.of(Metric::ProcessScrapes, target).into_iter().flat_map(BTreeMap::keys) {
            let Some(scrapes) = value(Metric::ProcessScrapes, key) else { continue };
            let user = self.users.entry(key[0].clone()).or_default();
            user.on(target);
            let known = value(Metric::MemoryScrapes, key).unwrap_or_default();
            user.memory_is_incomplete |= known < scrapes;
            if let Some(memory) = value(Metric::Memory, key) {
                *user.memory.get_or_insert_default() += memory * per_scrape;
            }
        }
        for key in part.of(Metric::Allocations, target).into_iter().flat_map(BTreeMap::keys) {
            let (Some(scrapes), [account, state]) = (value(Metric::Allocations, key), key.as_slice()) else {
                continue;
            };
            let time = millis(scrapes * per_scrape);
            self.accounts.entry(account.clone()).or_default().add(match state.as_str() {
                "in_use" => GpuTime { used: time, ..GpuTime::default() },
                "idle" | "never_used" => GpuTime { idle: time, ..GpuTime::default() },
                _ => GpuTime { unknown: time, ..GpuTime::default() },
            });
        }
    }

    /// Adds the GPUs of a node in a step; step 0 only tells how many there are.
    fn node_step(&mut self, part: &Part, (target, at): (&Labels, usize), slices: f64) {
        let gpus = part.value(Metric::Gpus, target, at);
        let node = self.nodes.entry(target.clone()).or_default();
        let step = part.first + at;
        if step == 0 {
            return node.step((0, 0.0), gpus, 0.0);
        }
        let up = part.value(Metric::Up, target, at).unwrap_or_default();
        let scrapes = part.value(Metric::Scrapes, target, at).unwrap_or_default().max(1.0);
        node.step(
            (column(self.window, step), step_seconds(self.window)),
            gpus,
            up / scrapes * seconds(slices),
        );
    }

    fn enforcer_step(&mut self, part: &Part, (target, at): (&Labels, usize), tracked: &mut Tracked) {
        let step = part.first + at;
        let slices = part.value(Metric::EnforcerSlices, target, at).unwrap_or_default();
        if step > 0 {
            self.enforcer_gaps += (step_seconds(self.window) - seconds(slices)).max(0.0);
        }
        let Some(snapshots) = part.value(Metric::EnforcerSnapshots, target, at) else { return };
        let passed = tracked.pass(step, snapshots, slices >= self.window.slices());
        for metric in [Metric::UserNotices, Metric::UserKills, Metric::UserReleased] {
            for (key, growth) in tracked.growths(part, (metric, target), (at, passed)) {
                let events = &mut self.users.entry(key[0].clone()).or_default().events;
                if let (Some(growth), Some(event)) = (growth, events.of(metric)) {
                    *event += growth.value;
                }
            }
        }
        for metric in [Metric::Notices, Metric::Kills, Metric::Released] {
            for growth in tracked.growths(part, (metric, target), (at, passed)).into_values().flatten() {
                self.events.of(metric).into_iter().for_each(|event| *event += growth.value);
            }
        }
    }

    /// Returns the names of nodes that are scraped more than once, by different target labels.
    pub(super) fn repeated(&self) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        self.nodes.keys().map(instance).filter(|name| !seen.insert(*name)).collect()
    }
}

/// Returns the instance without its port, because exporter and enforcer of a host listen on different ports.
fn host(target: &Labels) -> &str {
    let name = instance(target);
    name.rsplit_once(':').map_or(name, |(host, _)| host)
}

/// Returns the column of the chart to which a step belongs.
fn column(window: Window, step: usize) -> usize {
    let place = (window.end(step.saturating_sub(1)) - window.from) / window.column();
    usize::try_from(place).unwrap_or_default()
}

fn step_seconds(window: Window) -> f64 {
    seconds(window.slices())
}

/// Returns the seconds of a number of slices.
fn seconds(slices: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a small constant")]
    let slice = SLICE as f64;
    slices * slice
}

#[expect(clippy::cast_precision_loss, reason = "a number of steps, which is small")]
fn count(steps: usize) -> f64 {
    steps as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded; saturates")]
fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

#[cfg(test)]
mod tests;
