//! The targets of one kind that are evaluated. Each has a small number, so that the streaks of a rule are in
//! one array.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::Kind;
use crate::view::{Health, Target, TargetId, View};

/// Targets by number.
#[derive(Debug, Default)]
pub(crate) struct Population {
    numbers: HashMap<TargetId, usize>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
}

/// A target with the data that determines whether it is gone when a snapshot does not contain it.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) id: TargetId,
    /// Last tick that contained it.
    seen: u64,
    pub(crate) pids: Vec<u32>,
    pub(crate) gpus: Vec<Arc<str>>,
}

/// State of a target that is not in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It no longer exists: its sources responded and do not list it.
    Gone,
    /// Unknown.
    Unknown,
}

impl Population {
    /// Returns the number of a target, and records its data from the view.
    pub(crate) fn enter(&mut self, target: &Target, (view, tick): (&View, u64)) -> usize {
        let number = match self.numbers.get(&target.id) {
            Some(number) => *number,
            None => self.add(Slot { id: target.id.clone(), seen: tick, pids: Vec::new(), gpus: Vec::new() }),
        };
        if let Some(Some(slot)) = self.slots.get_mut(number) {
            slot.seen = tick;
            slot.note(target, view);
        }
        number
    }

    /// Adds a target that was known earlier.
    pub(crate) fn add(&mut self, slot: Slot) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.numbers.insert(slot.id.clone(), number);
        self.slots[number] = Some(slot);
        number
    }

    pub(crate) fn number(&self, id: &TargetId) -> Option<usize> {
        self.numbers.get(id).copied()
    }

    pub(crate) fn slot(&self, number: usize) -> Option<&Slot> {
        self.slots.get(number)?.as_ref()
    }

    /// Removes a target that no longer exists; returns its name.
    pub(crate) fn leave(&mut self, number: usize) -> Option<TargetId> {
        let slot = self.slots.get_mut(number).and_then(Option::take)?;
        self.numbers.remove(&slot.id);
        self.free.push(number);
        Some(slot.id)
    }

    /// Returns the targets that this tick did not contain, with their state.
    pub(crate) fn absent(&self, kind: Kind, view: &View, tick: u64) -> Vec<(usize, Absent)> {
        let unseen = self.slots.iter().enumerate().filter_map(|(number, slot)| {
            slot.as_ref().filter(|slot| slot.seen != tick).map(|slot| (number, slot.fate(kind, view)))
        });
        unseen.collect()
    }
}

impl Slot {
    pub(crate) fn known(id: TargetId, pids: Vec<u32>, gpus: Vec<Arc<str>>) -> Self {
        Self { id, seen: 0, pids, gpus }
    }

    fn note(&mut self, target: &Target, view: &View) {
        self.pids.clear();
        self.pids.extend(view.processes(target).map(|process| process.pid));
        let now = || view.gpus(target).filter_map(|gpu| gpu.uuid.as_deref());
        if !self.gpus.iter().map(|uuid| &**uuid).eq(now()) {
            self.gpus = now().map(Arc::from).collect();
        }
    }

    fn fate(&self, kind: Kind, view: &View) -> Absent {
        if kind == Kind::Lease {
            return if view.leases().is_some() { Absent::Gone } else { Absent::Unknown };
        }
        if kind == Kind::SlurmJob {
            let read = view.snapshot.slurm.is_some() && view.source("slurm") == Health::Well;
            return if read { Absent::Gone } else { Absent::Unknown };
        }
        // A pod without GPU memory is known from the kubelet's answer alone.
        if kind == Kind::Pod && self.pids.is_empty() && view.source("pod_resources") == Health::Ill {
            return Absent::Unknown;
        }
        let ill = |source| view.source(source) == Health::Ill;
        // A listed pid without further data may be this process.
        let shadowed = || {
            let doubtful = |state: &str| matches!(state, "unknown" | "hidden");
            view.snapshot
                .processes
                .iter()
                .any(|process| self.pids.contains(&process.pid) && doubtful(&process.state))
        };
        let blind = || self.gpus.iter().any(|uuid| view.hides(uuid));
        if ill("nvml") || ill("proc") || blind() || shadowed() { Absent::Unknown } else { Absent::Gone }
    }
}
