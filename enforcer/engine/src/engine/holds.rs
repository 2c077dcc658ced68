//! Holds: why a destructive step is withheld, for one target or for the whole node.

use std::collections::{BTreeSet, HashSet};

use bailiff_snapshot::pod_resources::ObjectName;

use super::in_flight::{ActionTracker, Turn};
use super::matches::Candidate;
use super::subject;
use super::{Engine, Tick};
use crate::Kind;
use crate::policy::{Limits, Mode, Step};
use crate::verdict::Hold;
use crate::view::{Target, View};

impl ActionTracker {
    /// Returns the hold of the author's breaker or of a full budget.
    fn against(&self, target: &Target, view: &View, limits: &Limits) -> Option<Hold> {
        let (uid, pod) = (subject::charged(target, view), view.pod(target));
        let namespace = pod.as_ref().map(ObjectName::namespace);
        let author = self.author(uid, namespace);
        if self.breakers.failing().any(|failing| failing == author) {
            return Some(Hold::UserFailureBreaker);
        }
        let gpus = view.gpus(target).filter_map(|gpu| gpu.uuid.as_deref());
        self.ledger.full((self.user(uid), namespace, subject::memory(target, view)), gpus, limits)
    }
}

impl Engine {
    /// Returns the hold that applies to a step.
    pub(super) fn against(&self, candidate: &Candidate, node: Option<Hold>, tick: &Tick<'_>) -> Option<Hold> {
        let evaluator = &self.evaluators[candidate.rule];
        if candidate.progress.failed {
            return Some(Hold::Failed);
        }
        let step = evaluator.rule.then.get(usize::from(candidate.progress.step));
        let target = &tick.view.targets[candidate.subject];
        let waits = |step: &Step| self.actions.back_offs.hold(&step.action, &target.id, tick.now.boot);
        if let Some(hold) = step.and_then(waits) {
            return Some(hold);
        }
        if self.owner_hold(&evaluator.rule.name, &target.id, tick.now).is_some() {
            return Some(Hold::Owner);
        }
        // In dry-run mode a rule takes no action and uses no budget.
        if evaluator.mode == Mode::DryRun {
            return None;
        }
        if self.actions.failed.contains(&target.id) {
            return Some(Hold::Failed);
        }
        if node.is_some() {
            return node;
        }
        if evaluator.rule.requires_notice(usize::from(candidate.progress.step))
            && !candidate.progress.delivered
        {
            return Some(Hold::Undelivered);
        }
        let turn = Turn(evaluator.rule.condition.clone(), target.id.clone());
        let again = self.actions.turns.get(&turn).map(|at| at.ago(tick.now, tick.boot_id()));
        let waits = !candidate.progress.acted || candidate.progress.refused;
        if waits && again.is_some_and(|ago| ago < evaluator.rule.cooldown) {
            return Some(Hold::Cooldown);
        }
        let is_by_request = step.is_some_and(|step| step.action.is_by_request());
        // Releasing a lease, cancelling a job or evicting a pod requires no privilege over its processes.
        if target.kind != Kind::Lease && !is_by_request && !self.may_signal(target, tick.view) {
            return Some(Hold::Rights);
        }
        self.actions.against(target, tick.view, &self.policy.limits)
    }

    fn may_signal(&self, target: &Target, view: &View) -> bool {
        self.only.is_none_or(|only| subject::owner(target, view) == Some(only))
    }

    /// Returns the places of the workloads against which destructive steps of every rule would be withheld, because of an
    /// earlier failure, a missing privilege, the owner's breaker or a budget. Empty if no rule has `pick`.
    pub(super) fn withheld(&self, view: &View) -> HashSet<usize> {
        if self.evaluators.iter().all(|evaluator| evaluator.picking.is_none()) {
            return HashSet::new();
        }
        let workloads = view.targets.iter().enumerate().filter(|(_, target)| target.kind == Kind::Workload);
        let is_withheld = |target: &Target| {
            self.actions.failed.contains(&target.id)
                || !self.may_signal(target, view)
                || self.actions.against(target, view, &self.policy.limits).is_some()
        };
        workloads.filter(|(_, target)| is_withheld(target)).map(|(place, _)| place).collect()
    }

    /// Returns the holds of the whole node.
    pub fn node_holds(&self, view: &View) -> BTreeSet<Hold> {
        let other_interval = self.policy.interval.is_some_and(|interval| interval != view.interval());
        let ours = [
            (self.paused.is_some(), Hold::Paused),
            (self.warm_up > 0, Hold::Started),
            (self.settling > 0, Hold::Reloaded),
            (other_interval, Hold::OtherInterval),
            (!view.trusted(), Hold::Untrusted),
        ];
        let ours = ours.into_iter().filter_map(|(holds, hold)| holds.then_some(hold));
        ours.chain(self.outside.iter().copied()).chain(self.actions.breakers.open()).collect()
    }
}
