//! The lists of processes that hold memory, with entries in the driver's layout.

use crate::abi::{NO_BYTES, NO_INSTANCE};
use crate::scenario::{Garbage, Kind, Process};

/// Holders of memory, one list for each kind.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) compute: List,
    pub(crate) graphics: List,
    pub(crate) mps: List,
}

/// A list, and its bytes with this driver's entry size.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) entries: Vec<Entry>,
    pub(crate) packed: Vec<u8>,
}

/// A holder of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) pid: u32,
    pub(crate) used: u64,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
}

/// Index of the device, among all devices and within its entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) index: u32,
    pub(crate) nth: u32,
}

impl Lists {
    /// Adds a process, and returns how much memory it holds.
    pub(crate) fn add(&mut self, process: &Process, place: Place, (gi, ci): (u32, u32)) -> u64 {
        let mut held = 0;
        for pid in pids(process, place) {
            let entry = Entry { pid, used: process.used.map_or(NO_BYTES, |bytes| bytes.0), gi, ci };
            held += process.used.map_or(0, |bytes| bytes.0);
            let kinds = [
                (Kind::Compute, &mut self.compute),
                (Kind::Graphics, &mut self.graphics),
                (Kind::Mps, &mut self.mps),
            ];
            for (_, list) in kinds.into_iter().filter(|(kind, _)| process.kind.has(kind)) {
                list.entries.push(entry);
            }
        }
        held
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.compute.entries.extend_from_slice(&other.compute.entries);
        self.graphics.entries.extend_from_slice(&other.graphics.entries);
        self.mps.entries.extend_from_slice(&other.mps.entries);
    }

    pub(crate) fn garbage(&mut self, written: &Garbage, total: u64) {
        if let Some(first) = self.compute.entries.first_mut().filter(|_| written.memory_above_total) {
            first.used = total.saturating_mul(2);
        }
        if written.pid_zero {
            self.compute.entries.push(Entry { pid: 0, used: 1001, gi: NO_INSTANCE, ci: NO_INSTANCE });
        }
    }

    /// Serializes the entries once all have been added.
    pub(crate) fn pack(&mut self, entry_bytes: usize) {
        for list in [&mut self.compute, &mut self.graphics, &mut self.mps] {
            list.packed = pack(list.entries.iter().copied(), entry_bytes);
        }
    }
}

/// Returns the pids of a scenario entry on one device.
pub(crate) fn pids(process: &Process, place: Place) -> impl Iterator<Item = u32> + use<> {
    let first = process.pid.saturating_add(place.nth.saturating_mul(process.pid_step));
    first..first.saturating_add(process.count)
}

/// Serializes entries. A smaller form of an entry is a prefix of a larger form.
pub(crate) fn pack(entries: impl Iterator<Item = Entry>, entry_bytes: usize) -> Vec<u8> {
    let mut packed = Vec::new();
    for entry in entries {
        let end = packed.len() + entry_bytes;
        packed.extend_from_slice(&u64::from(entry.pid).to_ne_bytes());
        packed.extend_from_slice(&entry.used.to_ne_bytes());
        packed.extend_from_slice(&entry.gi.to_ne_bytes());
        packed.extend_from_slice(&entry.ci.to_ne_bytes());
        packed.resize(end, 0);
    }
    packed
}
