//! What each user has held so far, over all snapshots of a boot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Facts, Gpu, Moment, Process, ProcessId, Snapshot};

/// What one user has held so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct UserTotals {
    /// GPU-seconds with at least one process on the GPU.
    pub held_seconds: f64,
    /// Those of them in which all of the user's processes on that GPU were observed idle.
    pub idle_seconds: f64,
}

/// The label of a user: the name where it is known.
#[must_use]
pub fn user_label(facts: &Facts) -> Option<String> {
    facts.user.clone().or_else(|| facts.uid.map(|uid| uid.to_string()))
}

/// The evidence of this sample.
pub(crate) struct UserInput<'a> {
    pub(crate) at: Moment,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) processes: &'a BTreeMap<ProcessId, Process>,
}

/// Adds the window to what each user has held: all of it for a process that was listed at both of its ends, and for one
/// that started in it and is listed now, the time since. One that ended in it is not counted beyond the last sample
/// that listed it, nor is one that was there at that sample and not listed: when it came is not known.
pub(crate) fn totals(previous: Option<&Snapshot>, seen: &UserInput<'_>) -> BTreeMap<String, UserTotals> {
    let Some(previous) = previous else { return BTreeMap::new() };
    let window = seen.at.boot.saturating_sub(previous.at.boot);
    let mut totals = previous.users.clone();
    for gpu in seen.gpus {
        let Some(before) = previous.gpu(&gpu.about) else { continue };
        for (user, use_of) in seen.users_of(gpu, before, window) {
            let total = totals.entry(user).or_default();
            total.held_seconds += use_of.held.as_secs_f64();
            total.idle_seconds += if use_of.idle { use_of.held.as_secs_f64() } else { 0.0 };
        }
    }
    totals
}

/// What a user has had of one GPU in a window.
#[derive(Debug, Clone, Copy)]
struct Use {
    held: Duration,
    /// All processes of the user on it were observed idle.
    idle: bool,
}

impl UserInput<'_> {
    /// For how much of the window each user held a GPU; all of it ends now, so the longest covers the others.
    fn users_of(&self, gpu: &Gpu, before: &Gpu, window: Duration) -> BTreeMap<String, Use> {
        let earlier: BTreeSet<ProcessId> = before.holders.iter().map(|holder| holder.process).collect();
        let mut users: BTreeMap<String, Use> = BTreeMap::new();
        for holder in &gpu.holders {
            let facts = self.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
            let Some(user) = facts.and_then(user_label) else { continue };
            // A server of MPS works for its clients, and they are counted.
            if facts.is_some_and(|facts| facts.role.is_some()) {
                continue;
            }
            let held = if earlier.contains(&holder.process) {
                window
            } else {
                self.age(holder.process)
                    .filter(|age| *age <= window && before.lists_processes())
                    .unwrap_or_default()
            };
            let idle = holder.utilization.idle() == Some(true);
            let all = users.entry(user).or_insert(Use { held, idle });
            *all = Use { held: all.held.max(held), idle: all.idle && idle };
        }
        users.retain(|_, all| !all.held.is_zero());
        users
    }

    /// Since a process started; none if `/proc` does not confirm it.
    fn age(&self, process: ProcessId) -> Option<Duration> {
        let ProcessId::Live(key) = process else { return None };
        Some(self.at.boot.saturating_sub(key.started()))
    }
}
