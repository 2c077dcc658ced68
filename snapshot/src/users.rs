//! What each user has held so far, over all snapshots of a boot.

use std::collections::{BTreeMap, BTreeSet};

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

/// What this look tells.
pub(crate) struct Seen<'a> {
    pub(crate) at: Moment,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) processes: &'a BTreeMap<ProcessId, Process>,
}

/// Adds the window to what each user has held: only what was held at both of its ends.
pub(crate) fn totals(previous: Option<&Snapshot>, seen: &Seen<'_>) -> BTreeMap<String, UserTotals> {
    let Some(previous) = previous else { return BTreeMap::new() };
    let seconds = seen.at.boot.saturating_sub(previous.at.boot).as_secs_f64();
    let mut totals = previous.users.clone();
    for gpu in seen.gpus {
        let Some(before) = previous.gpu(&gpu.about) else { continue };
        for (user, idle) in seen.users_of(gpu, before) {
            let total = totals.entry(user).or_default();
            total.held_seconds += seconds;
            total.idle_seconds += if idle { seconds } else { 0.0 };
        }
    }
    totals
}

impl Seen<'_> {
    /// The users that held a GPU at both ends of the window, and whether all they have on it was idle.
    fn users_of(&self, gpu: &Gpu, before: &Gpu) -> BTreeMap<String, bool> {
        let earlier: BTreeSet<ProcessId> = before.holders.iter().map(|holder| holder.process).collect();
        let mut users = BTreeMap::new();
        for holder in gpu.holders.iter().filter(|holder| earlier.contains(&holder.process)) {
            let facts = self.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
            let Some(user) = facts.and_then(user_label) else { continue };
            // A server of MPS works for its clients, and they are counted.
            if facts.is_some_and(|facts| facts.role.is_some()) {
                continue;
            }
            let idle = holder.utilization.idle() == Some(true);
            users.entry(user).and_modify(|all| *all &= idle).or_insert(idle);
        }
        users
    }
}
