//! The engine's status: how many targets match, what is flagged, and which steps come next.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bailiff_snapshot::{Streak, Truth};
use serde::{Deserialize, Serialize};

use super::Engine;
use super::evaluator::{RuleEvaluator, Track};
use super::picking::Picked;
use super::population::Population;
use super::progress::Progress;
use super::subject;
use crate::Kind;
use crate::policy::{Mode, Severity, Step};
use crate::verdict::{Hold, Subject};
use crate::view::{Target, TargetId, View};

/// Number of a rule's targets in each state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Effective mode of the rule.
    pub mode: Mode,
    /// Kind of its targets.
    pub target: Kind,
    /// Targets that match.
    pub matches: usize,
    /// Targets whose condition is true, but not yet for long enough.
    pub pending: usize,
    /// Targets that could not be evaluated.
    pub unknown: usize,
}

/// A raised flag.
#[derive(Debug, Clone, PartialEq)]
pub struct FlagUp {
    /// The rule that raised it.
    pub rule: Arc<str>,
    /// Severity of the flag.
    pub severity: Severity,
    /// Target of the flag, with at most two of its processes.
    pub subject: Subject,
}

/// A match or a streak, with its next step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The rule.
    pub rule: String,
    /// Effective mode of the rule.
    pub mode: Mode,
    /// The target.
    pub target: TargetId,
    /// The owner.
    pub user: Option<String>,
    /// Name of its first process with memory.
    pub comm: Option<String>,
    /// True samples so far.
    pub streak: u32,
    /// True samples that a match needs.
    pub needed: u32,
    /// Next step; `None` if all were taken.
    pub next: Option<String>,
    /// True samples until then.
    pub samples_left: u32,
    /// The same in seconds: the earliest possible time.
    pub due_in: Option<f64>,
    /// Next step that may end its processes, and the earliest possible time until then, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<(String, f64)>,
    /// Hold that withholds a due step.
    pub hold: Option<Hold>,
}

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
            let all = tracks(evaluator, &self.populations[evaluator.rule.target as usize]);
            all.filter_map(move |(target, track)| {
                Some(TargetStatus { target, count: track.streak.count, needed, outcome: track.outcome? })
            })
        })
    }

    /// Returns the number of targets of each rule in each state.
    pub fn counts(&self) -> Vec<Counts> {
        let interval = self.last.as_ref().map(|view| view.interval()).unwrap_or_default();
        let count = |evaluator: &RuleEvaluator| {
            let needed = evaluator.rule.span.samples(interval).max(1);
            let population = &self.populations[evaluator.rule.target as usize];
            let mut counts = Counts {
                rule: Arc::clone(&evaluator.rule.name),
                mode: evaluator.mode,
                target: evaluator.rule.target,
                matches: 0,
                pending: 0,
                unknown: 0,
            };
            for track in tracks(evaluator, population).map(|(_, track)| track) {
                counts.matches += usize::from(track.streak.count >= needed);
                counts.pending += usize::from(track.streak.count > 0 && track.streak.count < needed);
                counts.unknown += usize::from(track.outcome == Some(Truth::Unknown));
            }
            counts
        };
        self.evaluators.iter().map(count).collect()
    }

    /// Returns all raised flags.
    pub fn flags(&self) -> Vec<FlagUp> {
        let Some(view) = self.last.as_deref() else { return Vec::new() };
        let targets = by_id(view);
        let raised = self.evaluators.iter().flat_map(|evaluator| {
            let population = &self.populations[evaluator.rule.target as usize];
            let own =
                tracks(evaluator, population).filter_map(|(id, track)| Some((id, track.progress.flagged?)));
            let picked = evaluator.picking.iter().flat_map(super::picking::Picking::flagged);
            let targets = &targets;
            own.chain(picked).filter_map(move |(id, severity)| {
                let subject = targets.get(id).map(|target| subject::in_short(target, view)).or_else(|| {
                    let slot = population.slot(population.number(id)?)?;
                    Some(subject::absent(evaluator.rule.target, slot))
                });
                Some(FlagUp { rule: Arc::clone(&evaluator.rule.name), severity, subject: subject? })
            })
        });
        let stuck = self.actions.stuck.iter().map(|stuck| FlagUp {
            rule: Arc::clone(&stuck.rule),
            severity: Severity::Critical,
            subject: Subject::clone(&stuck.subject),
        });
        raised.chain(stuck).collect()
    }

    /// Returns targets that match or may match soon, up to a maximum, those with the nearest step first. For a
    /// GPU with a picked workload, the workload is returned.
    pub fn pending(&self, most: usize) -> Vec<Pending> {
        let Some(view) = self.last.as_deref() else { return Vec::new() };
        let mut nearest: Vec<Coming<'_>> =
            self.evaluators.iter().flat_map(|evaluator| self.coming(evaluator, view)).collect();
        nearest.sort_by_key(|coming| coming.left.unwrap_or(u32::MAX));
        nearest.truncate(most);
        let targets = by_id(view);
        nearest.iter().map(|coming| coming.describe(targets.get(coming.id).copied(), view)).collect()
    }

    fn coming<'a>(&'a self, evaluator: &'a RuleEvaluator, view: &View) -> Vec<Coming<'a>> {
        let population = &self.populations[evaluator.rule.target as usize];
        let own = tracks(evaluator, population).filter(|(_, track)| track.streak.count > 0);
        let own = own.map(|(id, track)| Coming::of_track(evaluator, (id, track), view));
        let Some(picking) = &evaluator.picking else { return own.collect() };
        let workloads = &self.populations[Kind::Workload as usize];
        let picked = picking.picked.values().map(|picked| {
            let number = workloads.number(&picked.target);
            let streak = number.and_then(|number| picking.streaks.get(number)).copied().unwrap_or_default();
            Coming::of_pick(evaluator, (&picked.target, Some(picked), streak), view)
        });
        // A GPU that needs memory has no steps of its own.
        own.filter(|coming| coming.streak < coming.needed).chain(picked).collect()
    }

    /// Returns the current holds of the node.
    pub fn holds(&self) -> BTreeSet<Hold> {
        if let Some(view) = &self.last {
            return self.node_holds(view);
        }
        let paused = self.paused.as_ref().map(|_| Hold::Paused);
        let outside = self.outside.iter().copied().chain(self.actions.breakers.open());
        outside.chain([Hold::Started]).chain(paused).collect()
    }

    /// Returns the number of actions in the last hour.
    pub fn actions_of_the_hour(&self) -> usize {
        self.actions.ledger.used()
    }
}

/// Returns the known targets of a rule.
fn tracks<'a>(
    evaluator: &'a RuleEvaluator,
    population: &'a Population,
) -> impl Iterator<Item = (&'a TargetId, &'a Track)> {
    evaluator
        .tracks
        .iter()
        .enumerate()
        .filter_map(|(number, track)| Some((&population.slot(number)?.id, track)))
}

fn by_id(view: &View) -> HashMap<&TargetId, &Target> {
    view.targets.iter().map(|target| (&target.id, target)).collect()
}

/// A match, or a streak that may become one.
pub(super) struct Coming<'a> {
    pub(super) evaluator: &'a RuleEvaluator,
    id: &'a TargetId,
    streak: u32,
    needed: u32,
    progress: Progress,
    /// True samples after which steps without `after` are due, and those so far.
    steps: (u32, u32),
    /// True samples until the next step; `None` if there is none.
    left: Option<u32>,
}

/// Returns the true samples until a step, if steps without `after` are due after `from` samples, of which there are `done`.
fn left(step: &Step, (from, done): (u32, u32), view: &View) -> u32 {
    from.saturating_add(step.after.samples(view.interval())).saturating_sub(done)
}

impl<'a> Coming<'a> {
    pub(super) fn of_track(
        evaluator: &'a RuleEvaluator,
        (id, track): (&'a TargetId, &Track),
        view: &View,
    ) -> Self {
        let (streak, needed) = (track.streak.count, evaluator.rule.span.samples(view.interval()));
        let step = evaluator.rule.then.get(usize::from(track.progress.step));
        // The picked workload has the steps, not the GPU.
        let step = step.filter(|_| evaluator.picking.is_none() || streak < needed);
        let steps = (needed, streak);
        let left = step.map(|step| left(step, steps, view));
        Self { evaluator, id, streak, needed, progress: track.progress, steps, left }
    }

    /// Creates the entry of a workload that was picked or may be picked.
    pub(super) fn of_pick(
        evaluator: &'a RuleEvaluator,
        (id, picked, streak): (&'a TargetId, Option<&Picked>, Streak),
        view: &View,
    ) -> Self {
        let idle_for = evaluator.picking.as_ref().map(|picking| picking.idle_for.samples(view.interval()));
        let progress = picked.map(|picked| picked.progress).unwrap_or_default();
        // The sample of the pick counts as 0.
        let steps = (1, picked.map_or(0, |picked| picked.since));
        let step = picked.and_then(|_| evaluator.rule.then.get(usize::from(progress.step)));
        let left = step.map(|step| left(step, steps, view));
        let needed = idle_for.unwrap_or_default();
        Self { evaluator, id, streak: streak.count, needed, progress, steps, left }
    }

    /// Removes the steps, for a target that the rule does not act on.
    pub(super) fn without_steps(self) -> Self {
        Self { left: None, ..self }
    }

    pub(super) fn describe(&self, target: Option<&Target>, view: &View) -> Pending {
        let rule = &self.evaluator.rule;
        let next = self.left.and_then(|_| rule.then.get(usize::from(self.progress.step)));
        let samples_left = self.left.unwrap_or_default();
        let seconds = |samples: u32| (view.interval() * samples).as_secs_f64();
        let further = rule.then.get(usize::from(self.progress.step)..).unwrap_or_default();
        let end = further.iter().find(|step| step.action.ends_processes()).filter(|_| self.left.is_some());
        Pending {
            rule: rule.name.to_string(),
            mode: self.evaluator.mode,
            target: self.id.clone(),
            user: target.and_then(|target| subject::user(target, view)),
            comm: target.and_then(|target| {
                view.processes(target).find_map(|process| Some(process.facts.as_ref()?.comm.clone()))
            }),
            streak: self.streak,
            needed: self.needed,
            next: next.map(|step| step.action.name().to_owned()),
            samples_left,
            due_in: next.map(|_| seconds(samples_left)),
            ends: end.map(|end| (end.action.name().to_owned(), seconds(left(end, self.steps, view)))),
            hold: self.progress.shown_hold,
        }
    }
}
