//! The engine: evaluates snapshots by a policy. It is pure: time, snapshots and reports come in, verdicts go out;
//! it takes no action, and the same history gives the same verdicts.

mod breakers;
mod evaluator;
mod explain;
mod in_flight;
mod ledger;
mod matches;
mod picking;
mod population;
mod program;
mod progress;
mod protection;
mod report;
mod saved;
mod shares;
mod status;
mod subject;
pub mod texts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::ProcessKey;

use crate::Kind;
use crate::policy::{Mode, Policy};
use crate::verdict::{ActionReport, Hold, Verdict};
use crate::view::{TargetId, View};

use evaluator::RuleEvaluator;
pub use explain::{Explained, GateReport, Question};
use in_flight::ActionTracker;
use ledger::Stamp;
use population::Population;
use program::ConditionTable;
pub use protection::Exemptions;
pub use report::{Counts, FlagUp, Pending};
pub use saved::{Reloaded, Saved};
pub use status::TargetStatus;
pub use subject::number;

/// A moment, by both clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// Since boot, suspend included.
    pub boot: Duration,
    /// Since the Unix epoch.
    pub wall: Duration,
}

/// Why a snapshot is not evaluated. Its interval counts as missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// It is the one before, or an older one.
    Duplicate,
    /// It came too late to be acted on.
    Stale,
    /// It says that it is of a time to come.
    Future,
    /// It has no sampling interval.
    NoInterval,
}

impl Skip {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Future => "future",
            Self::NoInterval => "no_interval",
        }
    }
}

/// Snapshots for which nothing destructive is done after a start.
const WARM_UP: u32 = 3;
/// And after a reload.
const SETTLING: u32 = 2;
/// A snapshot older than this many intervals is not evaluated.
pub const STALE_INTERVALS: u32 = 2;

/// The state of all that is evaluated.
#[derive(Debug)]
pub struct Engine {
    policy: Arc<Policy>,
    evaluators: Vec<RuleEvaluator>,
    table: ConditionTable,
    populations: [Population; 5],
    actions: ActionTracker,
    /// Holds reported from outside.
    outside: BTreeSet<Hold>,
    paused: Option<Pause>,
    /// Only processes of this user may be acted upon: for the others a right is missing.
    only: Option<u32>,
    warm_up: u32,
    settling: u32,
    tick: u64,
    last: Option<Arc<View>>,
    /// The boot of the snapshots, once known.
    booted: Option<String>,
    /// The last snapshot before a restart.
    before: Option<(String, Duration)>,
    /// The period that streaks were counted at.
    interval: Option<Duration>,
}

/// An admin's word that nothing is to be done.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pause {
    begun: Stamp,
    /// None if an admin has to end it.
    length: Option<Duration>,
    reason: String,
}

impl Pause {
    /// What is left of it, by the clock that a step of the wall's does not disturb.
    fn left(&self, now: Now, boot_id: Option<&str>) -> Option<Duration> {
        Some(self.length?.saturating_sub(self.begun.ago(now, boot_id)))
    }
}

/// What changed from one tick to the next, and what is left to find out.
pub(crate) struct Tick<'a> {
    pub(crate) now: Now,
    pub(crate) view: &'a View,
    pub(crate) number: u64,
    pub(crate) missed: u32,
    pub(crate) interval: Duration,
}

impl Tick<'_> {
    pub(crate) fn boot_id(&self) -> Option<&str> {
        self.view.snapshot.boot_id.as_deref()
    }

    /// Now, to be compared with later.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp::new(self.now, self.boot_id())
    }
}

impl Engine {
    /// An engine that has seen nothing yet. No rule does more than `cap` allows.
    #[must_use]
    pub fn new(policy: Arc<Policy>, cap: Mode) -> Self {
        let mut table = ConditionTable::default();
        let evaluators = policy.rules.iter().map(|rule| RuleEvaluator::new(rule, cap, &mut table)).collect();
        Self {
            evaluators,
            table,
            populations: Default::default(),
            actions: ActionTracker::default(),
            outside: BTreeSet::new(),
            paused: None,
            only: None,
            warm_up: WARM_UP,
            settling: 0,
            tick: 0,
            last: None,
            booted: None,
            before: None,
            interval: None,
            policy,
        }
    }

    /// Judges one snapshot. Every rule is asked of every target before anything is decided.
    ///
    /// # Errors
    /// If the snapshot is not to be evaluated.
    pub fn tick(&mut self, now: Now, view: Arc<View>) -> Result<Vec<Verdict>, Skip> {
        let missed = self.admit(now, &view)?;
        self.keep_time(view.interval());
        self.tick += 1;
        let tick = Tick { now, view: &view, number: self.tick, missed, interval: view.interval() };
        self.table.fill(&self.policy, &view);
        let seen = self.enter(&tick);
        let places = places(&view);
        let absent = Kind::ALL.map(|kind| self.populations[kind as usize].absent(kind, &view, self.tick));
        let mut verdicts = Vec::new();
        let mut candidates = Vec::new();
        let mut shares = shares::Shares::default();
        for (place, evaluator) in self.evaluators.iter_mut().enumerate() {
            let mut proc_table = matches::Counts::default();
            let mut context = evaluator::EvalContext {
                tick: &tick,
                table: &self.table,
                places: &places,
                seen: &seen,
                populations: &self.populations,
                absent: &absent,
                proc_table: &mut proc_table,
                rule: place,
                verdicts: &mut verdicts,
                candidates: &mut candidates,
            };
            evaluator.evaluate(&mut context);
            if evaluator.kills() {
                shares.add(&proc_table, evaluator.window(&tick), &view);
            }
        }
        self.leave(&absent);
        self.actions.see_shares(&shares, &tick, &self.policy.limits);
        verdicts.extend(self.decide(&tick, candidates));
        self.warm_up = self.warm_up.saturating_sub(1);
        self.settling = self.settling.saturating_sub(1);
        self.last = Some(view);
        Ok(verdicts)
    }

    /// Takes note of how an action ended.
    pub fn report(&mut self, report: &ActionReport) {
        let Some(in_flight) = self.actions.land(report) else { return };
        let Some(evaluator) = self.evaluators.get_mut(in_flight.rule) else { return };
        let populations = &self.populations;
        evaluator.complete(&in_flight, report.outcome, |kind, id| populations[kind as usize].number(id));
    }

    /// Takes note that a channel has delivered a notice of a rule's match.
    pub fn delivered(&mut self, rule: &str, subject: &TargetId) {
        let populations = &self.populations;
        for evaluator in self.evaluators.iter_mut().filter(|evaluator| *evaluator.rule.name == *rule) {
            let number = populations[evaluator.rule.target as usize].number(subject);
            evaluator.delivered(number, subject);
        }
    }

    /// Holds destructive steps for a reason that the engine cannot see, or no longer.
    pub fn hold(&mut self, hold: Hold, holds: Holds) {
        match holds {
            Holds::Yes => drop(self.outside.insert(hold)),
            Holds::No => drop(self.outside.remove(&hold)),
        }
    }

    /// Says which processes are this program's and the exporter's: no rule is about a target with one of them.
    pub fn exempt(&mut self, ours: BTreeSet<ProcessKey>) {
        self.table.ours = ours;
    }

    /// Lets it act upon this user's processes alone.
    pub fn limit_to(&mut self, uid: u32) {
        self.only = Some(uid);
    }

    /// Stops everything destructive, for so long or until [`Self::resume`]; gives the action to be cancelled.
    pub fn pause(&mut self, now: Now, length: Option<Duration>, reason: String) -> Option<u64> {
        self.paused = Some(Pause { begun: Stamp::new(now, self.boot_id()), length, reason });
        self.actions.clear_choice();
        self.actions.in_flight()
    }

    /// Lets actions go on, and closes what breakers have opened.
    pub fn resume(&mut self) {
        self.paused = None;
        self.actions.breakers.close();
        self.actions.forget_stuck();
    }

    /// Why an admin has paused it, and for how much longer.
    #[must_use]
    pub fn paused(&self, now: Now) -> Option<(&str, Option<Duration>)> {
        self.paused.as_ref().map(|pause| (pause.reason.as_str(), pause.left(now, self.boot_id())))
    }

    /// Says which boot this is, for what happens before the first snapshot.
    pub fn booted(&mut self, boot_id: Option<String>) {
        self.booted = boot_id;
    }

    /// The boot that was last seen.
    fn boot_id(&self) -> Option<&str> {
        let seen = self.last.as_ref().and_then(|last| last.snapshot.boot_id.as_deref());
        let before = self.before.as_ref().map(|(id, _)| id.as_str());
        seen.or(self.booted.as_deref()).or(before)
    }

    /// The action that is being carried out.
    #[must_use]
    pub fn in_flight(&self) -> Option<u64> {
        self.actions.in_flight()
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The last view that was evaluated.
    #[must_use]
    pub fn view(&self) -> Option<&Arc<View>> {
        self.last.as_ref()
    }

    /// How many intervals were missed before this snapshot.
    fn admit(&mut self, now: Now, view: &View) -> Result<u32, Skip> {
        let interval = view.interval();
        if interval.is_zero() {
            return Err(Skip::NoInterval);
        }
        if view.boot() > now.boot {
            return Err(Skip::Future);
        }
        let boot = view.snapshot.boot_id.as_deref();
        let before = match (&self.last, &self.before) {
            (Some(last), _) => Some((last.snapshot.boot_id.as_deref(), last.boot())),
            (None, Some((id, at))) => Some((Some(id.as_str()), *at)),
            (None, None) => None,
        };
        let missed = match before {
            Some((id, at)) if id == boot && id.is_some() => {
                if view.boot() <= at {
                    return Err(Skip::Duplicate);
                }
                missed(view.boot().saturating_sub(at), interval)
            }
            Some(_) => {
                self.forget_targets();
                0
            }
            None => 0,
        };
        if now.boot.saturating_sub(view.boot()) > interval * STALE_INTERVALS {
            return Err(Skip::Stale);
        }
        Ok(missed)
    }

    /// Samples of another interval are of another length: what was counted so far says nothing of how long it was.
    fn keep_time(&mut self, interval: Duration) {
        if self.interval.replace(interval).is_some_and(|before| before != interval) {
            self.evaluators.iter_mut().for_each(RuleEvaluator::begin_again);
            self.actions.clear_choice();
        }
    }

    /// Another boot: no evaluated target exists any more.
    fn forget_targets(&mut self) {
        self.populations = Default::default();
        self.evaluators.iter_mut().for_each(RuleEvaluator::forget);
        self.actions.clear_choice();
        self.actions.failed.clear();
        self.before = None;
    }

    /// The number of each target of the view.
    fn enter(&mut self, tick: &Tick<'_>) -> Vec<usize> {
        let populations = &mut self.populations;
        let enter = |target: &crate::view::Target| {
            populations[target.kind as usize].enter(target, (tick.view, tick.number))
        };
        tick.view.targets.iter().map(enter).collect()
    }

    /// Forgets targets that are gone; every rule has recorded it by now.
    fn leave(&mut self, absent: &[Vec<(usize, population::Absent)>; 5]) {
        for (population, absent) in self.populations.iter_mut().zip(absent) {
            for (number, _) in absent.iter().filter(|(_, fate)| *fate == population::Absent::Gone) {
                let left = population.leave(*number);
                self.actions.failed.retain(|id| Some(id) != left.as_ref());
            }
        }
    }
}

/// By kind: the places of its targets in a view.
fn places(view: &View) -> [Vec<usize>; 5] {
    let mut places: [Vec<usize>; 5] = Default::default();
    for (place, target) in view.targets.iter().enumerate() {
        places[target.kind as usize].push(place);
    }
    places
}

/// Whether something holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// How many intervals a time between two snapshots has missed: as many as it is too long, rounded.
#[must_use]
pub fn missed(between: Duration, interval: Duration) -> u32 {
    let intervals = (between + interval / 2).as_nanos() / interval.as_nanos();
    u32::try_from(intervals.saturating_sub(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_intervals_are_rounded() {
        let millis = Duration::from_millis;
        for (between, expected) in [(1, 0), (5000, 0), (7499, 0), (7500, 1), (10_000, 1), (60_000, 11)] {
            assert_eq!(missed(millis(between), millis(5000)), expected, "{between} ms");
        }
    }
}
