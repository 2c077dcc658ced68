//! The targets of one kind that are being evaluated, each with a small number of its own, so that a rule's streaks
//! stand in one row of memory.

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

/// One target, and what is needed to determine whether it is gone when it is not seen.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) id: TargetId,
    /// The tick that it was last seen in.
    seen: u64,
    pub(crate) pids: Vec<u32>,
    pub(crate) gpus: Vec<Arc<str>>,
}

/// What became of a target that is not in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Its sources are well and do not have it.
    Gone,
    /// It cannot be determined.
    Unknown,
}

impl Population {
    /// The number of a target, with what the view says of it noted.
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

    /// Takes in one that was known earlier.
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

    /// Forgets one that is gone, and gives its name.
    pub(crate) fn leave(&mut self, number: usize) -> Option<TargetId> {
        let slot = self.slots.get_mut(number).and_then(Option::take)?;
        self.numbers.remove(&slot.id);
        self.free.push(number);
        Some(slot.id)
    }

    /// Those that this tick did not see, and what became of them.
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
        let ill = |source| view.source(source) == Health::Ill;
        // A pid that is listed and of which nothing is known may be this one.
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
