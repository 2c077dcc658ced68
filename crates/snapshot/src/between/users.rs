//! Adds each user's GPU time between two samples to the user's totals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::snapshot::{UserTotals, user_label};
use crate::{Gpu, Moment, Process, ProcessId, Snapshot};

/// Maximum number of users with totals. Totals are never removed, and a user can have many uids.
const MOST_USERS: usize = 4096;

pub(crate) struct UserInput<'a> {
    pub(crate) at: Moment,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) processes: &'a BTreeMap<ProcessId, Process>,
}

/// Adds the window to the totals of each user. A process that was listed at both ends of the window counts
/// for all of it, and one that started in the window for the time since its start. A process that exited in
/// the window counts only until the last sample that listed it. A process that was running at that sample but
/// was not listed does not count yet, because it is unknown when it began to use the GPU.
pub(crate) fn totals(previous: Option<&Snapshot>, seen: &UserInput<'_>) -> BTreeMap<String, UserTotals> {
    let Some(previous) = previous else { return BTreeMap::new() };
    let window = seen.at.boot.saturating_sub(previous.at.boot);
    let mut totals = previous.users.clone();
    for gpu in seen.gpus {
        let Some(before) = previous.gpu(&gpu.about) else { continue };
        for (user, use_of) in seen.users_of(gpu, before, window) {
            if totals.len() >= MOST_USERS && !totals.contains_key(&user) {
                continue;
            }
            let total = totals.entry(user).or_default();
            let held = use_of.held.as_secs_f64();
            total.held_seconds += held;
            match use_of.idle {
                Some(true) => total.idle_seconds += held,
                Some(false) => {}
                None => total.unknown_seconds += held,
            }
        }
    }
    totals
}

/// Use of one GPU by a user in a window.
#[derive(Debug, Clone, Copy)]
struct Use {
    held: Duration,
    /// Whether all of the user's processes on the GPU were observed idle; `Some(false)` if one was observed busy.
    idle: Option<bool>,
}

impl UserInput<'_> {
    /// Returns how long each user held a GPU in the window. Each use ends now, so the longest is the total.
    fn users_of(&self, gpu: &Gpu, before: &Gpu, window: Duration) -> BTreeMap<String, Use> {
        let earlier: BTreeSet<ProcessId> = before.holders.iter().map(|holder| holder.process).collect();
        let mut users: BTreeMap<String, Use> = BTreeMap::new();
        for holder in &gpu.holders {
            let facts = self.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
            // When it began to use the GPU, if it does, is not known.
            let certain = facts.filter(|_| !holder.reused_pid);
            let Some(user) = certain.and_then(user_label) else { continue };
            // An MPS server works for its clients, which are counted themselves.
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
            let idle = holder.utilization.idle();
            let all = users.entry(user).or_insert(Use { held, idle });
            *all = Use { held: all.held.max(held), idle: both_idle(all.idle, idle) };
        }
        users.retain(|_, all| !all.held.is_zero());
        users
    }

    /// Returns the time since a process started; `None` if `/proc` does not confirm the process.
    fn age(&self, process: ProcessId) -> Option<Duration> {
        let ProcessId::Live(key) = process else { return None };
        Some(self.at.boot.saturating_sub(key.started()))
    }
}

/// Returns whether two processes are both idle, in three truth values: one busy process decides.
fn both_idle(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}
