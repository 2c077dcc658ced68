//! CPU time and storage bytes that processes used between two snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{ProcessKey, wire};
use hashbrown::HashMap;

use super::{Target, TargetId, View};
use crate::value::Value;

pub(super) const NO_WINDOW: Value = Value::Unknown("there is no previous snapshot");

/// The compared values of every process of a snapshot, close together in memory.
#[derive(Debug, Clone)]
pub(super) struct Account {
    /// Entries by place in the snapshot, relatives after holders.
    entries: Vec<Option<Entry>>,
    /// Number of holders.
    holders: usize,
    /// Places of the entries by key.
    places: HashMap<ProcessKey, u32>,
    /// Places of the targets in the view, by name.
    targets: HashMap<TargetId, u32>,
}

/// The values of a process, as far as they were read.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: ProcessKey,
    used: Option<Used>,
}

#[derive(Debug, Clone, Copy)]
struct Used {
    /// Own CPU time in seconds.
    own: f64,
    /// CPU time of reaped children in seconds.
    reaped: f64,
    /// Bytes from and to storage.
    io: Option<u64>,
    parent: u32,
}

impl Used {
    fn cpu(&self) -> f64 {
        self.own + self.reaped
    }
}

impl Account {
    pub(super) fn of(snapshot: &wire::Snapshot, targets: &[Target]) -> Self {
        let holders = snapshot.processes.iter().map(holder);
        let relatives = snapshot.relatives.iter().flatten().map(|process| Some(relative(process)));
        let entries: Vec<Option<Entry>> = holders.chain(relatives).collect();
        Self {
            holders: snapshot.processes.len(),
            places: entries
                .iter()
                .zip(0..)
                .filter_map(|(entry, place)| Some(((*entry)?.key, place)))
                .collect(),
            targets: targets.iter().zip(0..).map(|(target, place)| (target.id.clone(), place)).collect(),
            entries,
        }
    }

    fn used(&self, key: ProcessKey) -> Option<Used> {
        (*self.entries.get(*self.places.get(&key)? as usize)?)?.used
    }

    /// Returns the target with this name.
    fn target<'v>(&self, view: &'v View, id: &TargetId) -> Option<&'v Target> {
        view.targets.get(*self.targets.get(id)? as usize)
    }

    /// Returns the members of a target, sorted.
    fn members(&self, target: &Target) -> Vec<Entry> {
        let relatives = target.relatives.iter().flatten().map(|place| self.holders + place);
        let places = target.processes.iter().copied().chain(relatives);
        let mut members: Vec<Entry> = places.filter_map(|place| *self.entries.get(place)?).collect();
        members.sort_unstable_by_key(|entry| entry.key);
        members
    }
}

fn holder(process: &wire::Process) -> Option<Entry> {
    let used = process.facts.as_ref().and_then(|facts| {
        Some(Used {
            own: facts.cpu_seconds,
            reaped: facts.reaped_cpu_seconds?,
            io: facts.io_bytes,
            parent: facts.ppid,
        })
    });
    Some(Entry { key: process.key()?, used })
}

fn relative(relative: &wire::Relative) -> Entry {
    let used = Used {
        own: relative.cpu_seconds,
        reaped: relative.reaped_cpu_seconds,
        io: None,
        parent: relative.ppid,
    };
    Entry { key: relative.key(), used: Some(used) }
}

/// Two snapshots and the time between them.
pub(super) struct Window<'a> {
    pub(super) length: Duration,
    pub(super) before: &'a View,
    pub(super) now: &'a Account,
}

impl Window<'_> {
    /// Returns the CPU time of all its processes in the window, including children that exited and were reaped
    /// in it.
    pub(super) fn cpu(&self, target: &Target) -> Value {
        let then = &self.before.account;
        let Some(past) = then.target(self.before, &target.id) else { return NO_WINDOW };
        let (Some(_), Some(_)) = (&target.relatives, &past.relatives) else {
            return Value::Unknown("the target's other processes were not scanned");
        };
        let local_host = self.now.members(target);
        let there = then.members(past);
        let mut spent = 0.0;
        for entry in &local_host {
            let Some(used) = entry.used else { return Value::Unknown("CPU time was not read") };
            let before = match find(&there, entry.key) {
                Some(Entry { used: None, .. }) => {
                    return Value::Unknown("CPU time was not read in the previous snapshot");
                }
                Some(Entry { used, .. }) => *used,
                // The process was in another target, or did not exist: all of its time belongs to this window.
                None => then.used(entry.key),
            };
            spent += used.cpu() - before.map_or(0.0, |used| used.cpu());
        }
        let gone = there.iter().filter(|entry| find(&local_host, entry.key).is_none());
        let Some(ended) = self.ended(gone, &local_host) else { return self.at_least(spent) };
        match spent - ended {
            spent if spent < -EPSILON => Value::Unknown("CPU time decreased"),
            spent => Value::Number(spent.max(0.0) / self.length.as_secs_f64()),
        }
    }

    /// Returns the CPU time of exited processes up to this window, which is now part of their parents' totals;
    /// `None` if a parent did not reap its child, so that the child's last CPU time is unknown.
    fn ended<'e>(&self, gone: impl Iterator<Item = &'e Entry>, local_host: &[Entry]) -> Option<f64> {
        let mut by_parent: BTreeMap<u32, f64> = BTreeMap::new();
        for entry in gone {
            let used = entry.used?;
            *by_parent.entry(used.parent).or_default() += used.cpu();
        }
        if by_parent.is_empty() {
            return Some(0.0);
        }
        let by_pid: HashMap<u32, &Entry> = local_host.iter().map(|entry| (entry.key.pid, entry)).collect();
        let mut sum = 0.0;
        for (parent, ended) in by_parent {
            let parent = by_pid.get(&parent)?;
            let waited = parent.used?.reaped - self.before.account.used(parent.key)?.reaped;
            if waited + EPSILON < ended {
                return None;
            }
            sum += ended;
        }
        Some(sum)
    }

    fn at_least(&self, spent: f64) -> Value {
        Value::AtLeast(spent.max(0.0) / self.length.as_secs_f64())
    }

    /// Returns bytes per second of the processes with GPU memory.
    pub(super) fn io(&self, target: &Target) -> Value {
        let mut moved = 0_u64;
        for place in &target.processes {
            let Some(Entry { key, used }) = self.now.entries.get(*place).copied().flatten() else {
                return NO_WINDOW;
            };
            let Some(then) = self.before.account.used(key) else { return NO_WINDOW };
            match (then.io, used.and_then(|used| used.io)) {
                (Some(then), Some(now)) if now >= then => moved = (now - then).saturating_add(moved),
                _ => return Value::Unknown("the exporter has no permission to read it"),
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes in one window are not to be expected")]
        let moved = moved as f64;
        Value::Number(moved / self.length.as_secs_f64())
    }
}

fn find(members: &[Entry], key: ProcessKey) -> Option<&Entry> {
    members.binary_search_by_key(&key, |entry| entry.key).ok().map(|place| &members[place])
}

/// One tick of the kernel's CPU accounting, with a margin for rounding.
const EPSILON: f64 = 0.011;
