//! The state of every rule for every target: for display, not for decisions.

use crate::engine::Engine;
use crate::view::TargetId;
use bailiff_snapshot::Truth;

/// Status of one rule for one target after the last tick.
#[derive(Debug, Clone, Copy)]
pub struct TargetStatus<'a> {
    /// Name of the target; for a rule with `pick`, of the GPU.
    pub target: &'a TargetId,
    /// True samples in the streak.
    pub count: u32,
    /// True samples that a match needs.
    pub needed: u32,
    /// The outcome of the last tick.
    pub outcome: Truth,
}

impl TargetStatus<'_> {
    /// Returns whether the streak is long enough.
    #[must_use]
    pub fn long_enough(&self) -> bool {
        self.count > 0 && self.count >= self.needed
    }
}

impl Engine {
    /// Returns the status of a rule, by its index in the policy, for every target that it was evaluated for.
    pub fn target_statuses(&self, rule: usize) -> impl Iterator<Item = TargetStatus<'_>> {
        let interval = self.last.as_ref().map(|view| view.interval()).unwrap_or_default();
        self.evaluators.get(rule).into_iter().flat_map(move |evaluator| {
            let needed = evaluator.rule.span.samples(interval);
            let population = &self.populations[evaluator.rule.target as usize];
            evaluator.tracks.iter().enumerate().filter_map(move |(number, track)| {
                let target = &population.slot(number)?.id;
                Some(TargetStatus { target, count: track.streak.count, needed, outcome: track.outcome? })
            })
        })
    }
}
