//! What the evaluation of a rule yields: matches, the destructive steps that are due, and counts for the breakers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::progress::Progress;
use super::{Engine, Tick, subject};
use crate::Kind;
use crate::verdict::Subject;

/// A match: places of its owner and its subject in the view, and the length of its streak. Owner and subject
/// differ for a rule with `pick`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Match {
    pub(crate) owner: usize,
    pub(crate) subject: usize,
    pub(crate) streak: u32,
}

/// Counts of one rule for the breakers.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) all: usize,
    pub(crate) unknown: usize,
    /// Places of the counted targets in the view, and whether the outcome of each is unknown.
    pub(crate) evaluated: Vec<(usize, bool)>,
    /// Places of the matching targets in the view.
    pub(crate) matching: Vec<usize>,
}

/// A destructive step that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Index of the rule in the policy.
    pub(crate) rule: usize,
    /// Place in the view of the target to act on.
    pub(crate) subject: usize,
    /// Place of the target that matched; with `pick`, the GPU.
    pub(crate) owner: usize,
    pub(crate) progress: Progress,
}

/// Another pod to which a step applies.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The pod.
    pub subject: Arc<Subject>,
    /// True samples in its streak.
    pub streak: u32,
}

impl Engine {
    /// Sorts by memory, the largest target first, because budgets may not suffice for all of them. But a user may cause
    /// attempts to take long and have no effect, so all targets of this user come after those of others then, and among
    /// the pods of a namespace, which may have several authors, the pod itself.
    pub(super) fn sort(&self, candidates: &mut [Candidate], tick: &Tick<'_>) {
        let target = |candidate: &Candidate| &tick.view.targets[candidate.subject];
        let user =
            |candidate: &Candidate| subject::author(target(candidate), tick.view, &self.actions.subordinate);
        let recent = self.actions.without_effect.keys().map(|author| (author.clone(), 1));
        let mut cancelled: BTreeMap<subject::Author, u8> = recent.collect();
        for candidate in candidates.iter().filter(|candidate| candidate.progress.cancelled > 0) {
            let most = cancelled.entry(user(candidate)).or_default();
            *most = candidate.progress.cancelled.max(*most);
        }
        candidates.sort_by_cached_key(|candidate| {
            let mode = self.evaluators[candidate.rule].mode;
            // The owner is determined only if that matters.
            let cancelled = if cancelled.is_empty() { None } else { cancelled.get(&user(candidate)) };
            let memory = subject::memory(target(candidate), tick.view);
            let is_pod = target(candidate).kind == Kind::Pod;
            let own = if is_pod { candidate.progress.cancelled } else { 0 };
            (Reverse(mode), cancelled.copied().unwrap_or_default(), own, Reverse(memory.unwrap_or_default()))
        });
    }
}
