//! The engine evaluates snapshots against a policy. It is pure: time, snapshots and reports are passed in, verdicts
//! are returned. It takes no action, and the same history yields the same verdicts.

mod back_off;
mod breakers;
mod evaluator;
mod explain;
mod holds;
mod in_flight;
mod ledger;
mod matches;
mod owner_holds;
mod peers;
mod picking;
mod population;
mod program;
mod progress;
mod protection;
mod report;
mod saved;
mod shares;
mod stuck;
mod subject;
pub mod texts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{ProcessKey, SubordinateUids};

use crate::Kind;
use crate::policy::{Mode, Policy};
use crate::verdict::{ActionReport, Hold, Outcome, Verdict};
use crate::view::{TargetId, View};

use evaluator::RuleEvaluator;
pub use explain::{Explained, GateReport, LastAction, Question};
use in_flight::ActionTracker;
use ledger::Stamp;
pub use matches::Peer;
pub use owner_holds::{HeldTargets, HoldRequest, OwnerHoldStatus};
use population::Population;
use program::ConditionTable;
pub use protection::Exemptions;
pub use report::{Counts, FlagUp, Pending, TargetStatus};
pub use saved::{Reloaded, Saved};
pub use subject::number;

pub use bailiff_snapshot::Moment as Now;

bailiff_snapshot::label_values! {
/// Reason why a snapshot is not evaluated. Its interval counts as missed.
pub enum Skip {
    /// It is the previous snapshot or an older one.
    Duplicate = "duplicate",
    /// It arrived too late.
    Stale = "stale",
    /// Its time is in the future.
    Future = "future",
    /// It has no sampling interval.
    NoInterval = "no_interval",
}
}

/// Number of snapshots after a start in which no destructive step is taken.
const WARM_UP: u32 = 3;
/// The same after a reload.
const SETTLING: u32 = 2;
/// A snapshot older than this many intervals is not evaluated.
pub const STALE_INTERVALS: u32 = 2;

/// State of the evaluation.
#[derive(Debug)]
pub struct Engine {
    policy: Arc<Policy>,
    evaluators: Vec<RuleEvaluator>,
    table: ConditionTable,
    populations: [Population; Kind::COUNT],
    actions: ActionTracker,
    /// Holds reported from outside.
    outside: BTreeSet<Hold>,
    paused: Option<Pause>,
    owner_holds: Vec<owner_holds::OwnerHold>,
    /// If set, only processes of this user may be acted upon, because a privilege is missing.
    only: Option<u32>,
    warm_up: u32,
    settling: u32,
    tick: u64,
    last: Option<Arc<View>>,
    /// Boot id of the snapshots, once known.
    booted: Option<String>,
    /// Last snapshot before a restart.
    before: Option<(String, Duration)>,
    /// Sampling interval at which the streaks were counted.
    interval: Option<Duration>,
}

/// A pause by an administrator.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pause {
    begun: Stamp,
    /// `None` if only an administrator ends it.
    length: Option<Duration>,
    reason: String,
}

impl Pause {
    /// Returns the remaining time, by the boot clock, which wall-clock steps do not change.
    fn left(&self, now: Now, boot_id: Option<&str>) -> Option<Duration> {
        Some(self.length?.saturating_sub(self.begun.ago(now, boot_id)))
    }
}

/// Input of one tick, and what was derived from it.
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

    /// Returns the current time in a form that survives a reboot.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp::new(self.now, self.boot_id())
    }
}

impl Engine {
    /// Creates an engine without history. No rule exceeds the mode `cap`.
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
            owner_holds: Vec::new(),
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

    /// Evaluates one snapshot: every rule for every target, then the decision.
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
        let owner_holds: Vec<OwnerHoldStatus> = self.owner_holds(now).collect();
        let withheld = self.withheld(&view);
        for (place, evaluator) in self.evaluators.iter_mut().enumerate() {
            let mut counts = matches::Counts::default();
            let mut context = evaluator::EvalContext {
                tick: &tick,
                table: &self.table,
                places: &places,
                seen: &seen,
                populations: &self.populations,
                absent: &absent,
                owner_holds: &owner_holds,
                withheld: &withheld,
                subordinate: &self.actions.subordinate,
                counts: &mut counts,
                rule: place,
                verdicts: &mut verdicts,
                candidates: &mut candidates,
            };
            evaluator.evaluate(&mut context);
            if evaluator.kills() {
                shares.add(&counts, evaluator.window(&tick), &view);
            }
        }
        self.leave(&absent);
        self.actions.see_shares((&shares, &self.table.unprotected()), &tick, &self.policy.limits);
        verdicts.extend(self.decide(&tick, candidates));
        self.warm_up = self.warm_up.saturating_sub(1);
        self.settling = self.settling.saturating_sub(1);
        self.last = Some(view);
        Ok(verdicts)
    }

    /// Records how an action ended.
    pub fn report(&mut self, report: &ActionReport) {
        let Some(in_flight) = self.actions.finish(report) else { return };
        let now = self.last.as_ref().map_or(Duration::ZERO, |view| view.boot());
        self.actions.note_effect(&in_flight, report, now);
        self.actions.back_offs.see((&in_flight.action, &in_flight.subject), report, now);
        let blocked_for = self.actions.back_offs.blocked_for(&in_flight.subject.id, now);
        let most = self.policy.kubernetes.as_ref().map(|kubernetes| kubernetes.pdb_max_wait);
        let is_last = report.outcome == Outcome::BlockedByPdb && most.is_some_and(|most| blocked_for >= most);
        let Some(evaluator) = self.evaluators.get_mut(in_flight.rule) else { return };
        let populations = &self.populations;
        let number = |kind: Kind, id: &TargetId| populations[kind as usize].number(id);
        evaluator.complete(&in_flight, (report.outcome, is_last), number);
    }

    /// Records that a channel delivered a notification of a rule's match.
    pub fn delivered(&mut self, rule: &str, subject: &TargetId) {
        let populations = &self.populations;
        for evaluator in self.evaluators.iter_mut().filter(|evaluator| *evaluator.rule.name == *rule) {
            let number = populations[evaluator.rule.target as usize].number(subject);
            evaluator.delivered(number, subject);
        }
    }

    /// Sets or clears a hold for a reason outside the engine.
    pub fn hold(&mut self, hold: Hold, holds: Holds) {
        match holds {
            Holds::Yes => drop(self.outside.insert(hold)),
            Holds::No => drop(self.outside.remove(&hold)),
        }
    }

    /// Sets the processes of this program and the exporter, which are exempt from every rule.
    pub fn exempt(&mut self, ours: BTreeSet<ProcessKey>) {
        self.table.ours = ours;
    }

    /// Restricts actions to processes of this user.
    pub fn limit_to(&mut self, uid: u32) {
        self.only = Some(uid);
    }

    /// Sets the subordinate uids. In budgets and breakers, the uids of a range count as one user.
    pub fn set_subordinate(&mut self, uids: SubordinateUids) {
        self.actions.subordinate = uids;
    }

    /// Pauses all destructive steps for a time, or until [`Self::resume`]; returns the action to cancel.
    pub fn pause(&mut self, now: Now, length: Option<Duration>, reason: String) -> Option<u64> {
        self.paused = Some(Pause { begun: Stamp::new(now, self.boot_id()), length, reason });
        self.actions.clear_choice();
        self.actions.in_flight()
    }

    /// Ends a pause and closes all breakers.
    pub fn resume(&mut self) {
        self.paused = None;
        self.actions.breakers.close();
        self.actions.forget_stuck();
    }

    /// Returns the reason of a pause and its remaining time.
    pub fn paused(&self, now: Now) -> Option<(&str, Option<Duration>)> {
        self.paused.as_ref().map(|pause| (pause.reason.as_str(), pause.left(now, self.boot_id())))
    }

    /// Sets the boot id before the first snapshot.
    pub fn booted(&mut self, boot_id: Option<String>) {
        self.booted = boot_id;
    }

    /// Returns the last known boot id.
    fn boot_id(&self) -> Option<&str> {
        let seen = self.last.as_ref().and_then(|last| last.snapshot.boot_id.as_deref());
        let before = self.before.as_ref().map(|(id, _)| id.as_str());
        seen.or(self.booted.as_deref()).or(before)
    }

    /// Returns the id of the action in flight.
    pub fn in_flight(&self) -> Option<u64> {
        self.actions.in_flight()
    }

    /// The policy in force.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Returns the last evaluated view.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.last.as_ref()
    }

    /// Checks a snapshot; returns the number of intervals missed before it.
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

    /// Resets all streaks after a change of the sampling interval, because counted samples had another length.
    fn keep_time(&mut self, interval: Duration) {
        if self.interval.replace(interval).is_some_and(|before| before != interval) {
            self.evaluators.iter_mut().for_each(RuleEvaluator::begin_again);
            self.actions.clear_choice();
        }
    }

    /// Removes all targets after a reboot.
    fn forget_targets(&mut self) {
        self.populations = Default::default();
        self.evaluators.iter_mut().for_each(RuleEvaluator::forget);
        self.actions.clear_choice();
        self.actions.failed.clear();
        self.actions.back_offs = back_off::BackOffs::default();
        self.actions.without_effect.clear();
        self.owner_holds.clear();
        self.before = None;
    }

    /// Returns the number of each target of the view.
    fn enter(&mut self, tick: &Tick<'_>) -> Vec<usize> {
        let populations = &mut self.populations;
        let enter = |target: &crate::view::Target| {
            populations[target.kind as usize].enter(target, (tick.view, tick.number))
        };
        tick.view.targets.iter().map(enter).collect()
    }

    /// Removes targets that no longer exist, after every rule has recorded their end.
    fn leave(&mut self, absent: &[Vec<(usize, population::Absent)>; Kind::COUNT]) {
        for (population, absent) in self.populations.iter_mut().zip(absent) {
            for (number, _) in absent.iter().filter(|(_, fate)| *fate == population::Absent::Gone) {
                let left = population.leave(*number);
                self.actions.failed.retain(|id| Some(id) != left.as_ref());
            }
        }
    }
}

/// Returns the places of the targets in a view, by kind.
fn places(view: &View) -> [Vec<usize>; Kind::COUNT] {
    let mut places: [Vec<usize>; Kind::COUNT] = Default::default();
    for (place, target) in view.targets.iter().enumerate() {
        places[target.kind as usize].push(place);
    }
    places
}

/// Whether a hold is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// It is active.
    Yes,
    /// It is not.
    No,
}

/// Returns the number of intervals missed between two snapshots, rounded.
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
