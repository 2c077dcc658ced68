//! Counts the results of one rule.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::report::{At, NearMiss};
use bailiff_engine::engine::TargetStatus;
use bailiff_engine::verdict::What;
use bailiff_engine::view::TargetId;
use bailiff_snapshot::Truth;

/// Maximum number of listed near misses.
const SHOWN_NEAR: usize = 20;

/// Counts of one rule.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) needed: u32,
    pub(super) matches: u64,
    pub(super) flags: u64,
    pub(super) notices: u64,
    pub(super) reprieves: u64,
    pub(super) withheld: BTreeMap<&'static str, u64>,
    pub(super) asked: u64,
    pub(super) held_true: u64,
    pub(super) unknown: u64,
    /// Targets of completed steps, with the name of the step.
    pub(super) done: HashSet<(TargetId, &'static str)>,
    /// Targets that match now.
    matching: HashSet<TargetId>,
    /// Targets that ever matched.
    matched: HashSet<TargetId>,
    near: HashMap<TargetId, Near>,
}

#[derive(Debug, Clone, Copy)]
struct Near {
    longest: u32,
    needed: u32,
    at: At,
}

impl Tally {
    /// Counts a verdict without an action.
    pub(super) fn note(&mut self, what: &What) {
        match what {
            What::Flag(_) => self.flags += 1,
            What::Notify(_) => self.notices += 1,
            What::Reprieved(_) => self.reprieves += 1,
            What::Withheld(_, hold) => *self.withheld.entry(hold.name()).or_default() += 1,
            What::Clear(_) | What::Due(_) | What::Act(..) => {}
        }
    }

    /// Records the status of the rule for all targets.
    pub(super) fn stand<'a>(&mut self, target_statuses: impl Iterator<Item = TargetStatus<'a>>, at: At) {
        let mut matching = HashSet::new();
        for status in target_statuses {
            self.needed = status.needed;
            self.asked += 1;
            self.held_true += u64::from(status.outcome == Truth::True);
            self.unknown += u64::from(status.outcome == Truth::Unknown);
            let was = self.matching.contains(status.target);
            if status.long_enough() && (was || status.outcome == Truth::True) {
                if !was {
                    self.matches += 1;
                    self.near.remove(status.target);
                    self.matched.insert(status.target.clone());
                }
                matching.insert(status.target.clone());
            } else if close(&status) && !self.matched.contains(status.target) {
                self.came_close(&status, at);
            }
        }
        self.matching = matching;
    }

    fn came_close(&mut self, status: &TargetStatus<'_>, at: At) {
        let near = Near { longest: status.count, needed: status.needed, at };
        match self.near.get_mut(status.target) {
            Some(known) if known.longest >= near.longest => {}
            Some(known) => *known = near,
            None => drop(self.near.insert(status.target.clone(), near)),
        }
    }

    /// Removes all matches, because targets of another boot no longer exist.
    pub(super) fn forget(&mut self) {
        self.matching.clear();
    }

    /// Returns near misses, closest first, and the number of further ones.
    pub(super) fn near_misses(&self) -> (Vec<NearMiss>, u64) {
        let summary = |(target, near): (&TargetId, &Near)| NearMiss {
            target: target.to_string(),
            longest: near.longest,
            needed: near.needed,
            at: near.at,
        };
        let mut all: Vec<NearMiss> = self.near.iter().map(summary).collect();
        all.sort_by(|one, other| other.longest.cmp(&one.longest).then_with(|| one.target.cmp(&other.target)));
        let more = all.len().saturating_sub(SHOWN_NEAR);
        all.truncate(SHOWN_NEAR);
        (all, more as u64)
    }
}

/// Returns whether a streak has at least four fifths of the needed samples.
fn close(status: &TargetStatus<'_>) -> bool {
    status.count > 0
        && status.count < status.needed
        && u64::from(status.count) * 5 >= u64::from(status.needed) * 4
}
