//! Selects the processes with series of their own if there are too many: those that hold the most memory.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use bailiff_snapshot::{ProcessId, Snapshot};

/// Sum of bytes; unknown if one part is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum(Option<u64>);

impl Sum {
    /// The empty sum.
    pub const ZERO: Self = Self(Some(0));

    /// Returns the sum plus one part.
    pub fn plus(self, part: Option<u64>) -> Self {
        let sum = self.0.zip(part).and_then(|(sum, part)| sum.checked_add(part));
        Self(sum)
    }

    /// Returns the sum of both.
    pub fn join(self, other: Self) -> Self {
        self.plus(other.0)
    }

    /// Returns the sum; `None` if a part is unknown.
    pub const fn known(self) -> Option<u64> {
        self.0
    }
}

impl Default for Sum {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Processes with series of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The selected processes; `None` for all.
    shown: Option<HashSet<ProcessId>>,
}

impl Selection {
    /// Selects at most `most` processes of a snapshot: those with the most memory over all GPUs. A process
    /// with unknown memory comes first, because it may hold any amount; on a tie, the lower pid comes first.
    pub fn of(snapshot: &Snapshot, most: usize) -> Self {
        if snapshot.processes.len() <= most {
            return Self { shown: None };
        }
        let mut sums: HashMap<ProcessId, Sum> = HashMap::with_capacity(snapshot.processes.len());
        for holder in snapshot.gpus.iter().flat_map(|gpu| &gpu.holders) {
            let sum = sums.entry(holder.process).or_default();
            *sum = sum.plus(holder.memory);
        }
        let held = |sum: Sum| sum.known().unwrap_or(u64::MAX);
        let ranked = snapshot.processes.keys().map(|id| {
            let sum = sums.get(id).copied().unwrap_or_default();
            (Reverse(held(sum)), id.pid(), *id)
        });
        let mut ranked: Vec<(Reverse<u64>, u32, ProcessId)> = ranked.collect();
        ranked.sort_unstable();
        Self { shown: Some(ranked.into_iter().take(most).map(|(_, _, id)| id).collect()) }
    }

    /// Returns whether this process is selected.
    pub fn shows(&self, id: ProcessId) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&id))
    }

    /// Returns the number of processes that are not selected, if there are `processes` in total.
    pub fn left_out_of(&self, processes: usize) -> u64 {
        self.shown.as_ref().map_or(0, |shown| (processes - shown.len().min(processes)) as u64)
    }
}
