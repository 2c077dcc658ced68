//! Selects the next destructive step. One action at a time: decided in one snapshot, confirmed in the next, and
//! withheld while a hold is active.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::back_off::BackOffs;
use super::breakers::Breakers;
use super::ledger::{Ledger, Stamp};
use super::matches::{Candidate, Match, Peer};
use super::progress::Progress;
use super::stuck::Stuck;
use super::subject::Author;
use super::{Engine, Now, Tick, subject};
use crate::Kind;
use crate::policy::{Action, Mode};
use crate::verdict::{ActionReport, Hold, Outcome, Subject, Verdict, What};
use crate::view::{TargetId, View};
use bailiff_snapshot::pod_resources::ObjectName;
use bailiff_snapshot::{SubordinateUids, Truth};

/// A decision that is not on disk after this time is dropped and made again.
const DISK: Duration = Duration::from_mins(1);
/// After an attempt without an effect, the targets of its owner come last for this time.
const COMES_LAST: Duration = Duration::from_mins(10);
/// Cooldown entries older than this are removed.
pub(crate) const OLDEST_TURN: Duration = Duration::from_hours(24 * 7);

/// A step that was decided and must be confirmed by the next snapshot.
#[derive(Debug)]
struct Chosen {
    rule: usize,
    subject: TargetId,
    owner: TargetId,
    step: u8,
    /// Time of the decision since boot; only a later sample can confirm it.
    at: Duration,
    /// What the action will count as in budgets and cooldowns; written to disk before the action. `None` in dry-run mode.
    charge: Option<Charge>,
    author: Author,
    /// Further targets to which the step would apply.
    peers: Vec<TargetId>,
}

/// The data with which an action is entered in budgets and cooldowns.
#[derive(Debug, Clone)]
struct Charge {
    at: Stamp,
    subject: Arc<Subject>,
    turn: Turn,
}

/// An action that is being carried out.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: u64,
    pub(crate) rule: usize,
    pub(crate) owner: (Kind, TargetId),
    pub(crate) action: Action,
    name: Arc<str>,
    pub(crate) subject: Arc<Subject>,
    pub(crate) mode: Mode,
    /// Other pods of the namespace to which the same step applies, for `stop_owner`.
    pub(crate) peers: Vec<Peer>,
    /// The cooldown entry of the action and the one that it replaced; `None` if the action does not count.
    pub(crate) turn: Option<(Turn, Option<Stamp>)>,
}

/// Actions that were taken, the one in flight, and targets that must not be tried again.
#[derive(Debug, Default)]
pub(crate) struct ActionTracker {
    chosen: Option<Chosen>,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) ledger: Ledger,
    /// Time of the last action, by rule condition and target.
    pub(crate) turns: BTreeMap<Turn, Stamp>,
    pub(crate) breakers: Breakers,
    pub(crate) stuck: Vec<Stuck>,
    /// Targets of failed actions; no rule acts on them again until an administrator has checked.
    pub(crate) failed: BTreeSet<TargetId>,
    pub(crate) next_id: u64,
    /// Further uids of users, who count as one user in budgets and breakers.
    pub(crate) subordinate: SubordinateUids,
    /// When an attempt last had no effect, since boot, by the owner of its target.
    pub(super) without_effect: BTreeMap<Author, Duration>,
    /// Waits before Slurm or Kubernetes is asked again.
    pub(crate) back_offs: BackOffs,
}

/// Hash of a condition, and the target of an action.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Turn(pub(crate) String, pub(crate) TargetId);

impl Chosen {
    fn new(candidate: &Candidate, view: &View) -> Self {
        Self {
            rule: candidate.rule,
            subject: view.targets[candidate.subject].id.clone(),
            owner: view.targets[candidate.owner].id.clone(),
            step: candidate.progress.step,
            at: Duration::MAX,
            charge: None,
            author: (None, None),
            peers: Vec::new(),
        }
    }

    fn is(&self, candidate: &Candidate, view: &View) -> bool {
        candidate.rule == self.rule
            && candidate.progress.decided
            && candidate.progress.step == self.step
            && view.targets[candidate.subject].id == self.subject
            && view.targets[candidate.owner].id == self.owner
    }
}

impl ActionTracker {
    /// Returns the user who has a uid.
    pub(crate) fn user(&self, uid: Option<u32>) -> Option<u32> {
        uid.map(|uid| self.subordinate.user(uid))
    }

    /// Returns the namespace of a pod, and else the user.
    pub(super) fn author(&self, uid: Option<u32>, namespace: Option<&str>) -> Author {
        namespace.map_or_else(|| (self.user(uid), None), |namespace| (None, Some(namespace.to_owned())))
    }

    /// Counts an action; returns its cooldown entry and the one it replaced.
    fn count(&mut self, id: u64, charge: Charge) -> (Turn, Option<Stamp>) {
        self.ledger.count((id, self.user(charge.subject.charged())), charge.at.clone(), &charge.subject);
        let before = self.turns.insert(charge.turn.clone(), charge.at);
        (charge.turn, before)
    }

    /// Removes an action that had no effect from budgets and, if the target may be tried again at once, from cooldowns. After
    /// a refusal, the cooldown delays the next attempt.
    fn take_back(&mut self, in_flight: &InFlight, outcome: Outcome) {
        self.ledger.give_back(in_flight.id);
        let Some((turn, before)) = &in_flight.turn else { return };
        if outcome.may_be_tried_again() {
            match before {
                Some(before) => drop(self.turns.insert(turn.clone(), before.clone())),
                None => drop(self.turns.remove(turn)),
            }
        }
    }

    /// Returns the next id, budgets and cooldowns as they will be once the decided action has begun; they are
    /// written to disk before it begins.
    pub(crate) fn foreseen(&self) -> (u64, Ledger, BTreeMap<Turn, Stamp>) {
        let (mut ledger, mut turns) = (self.ledger.clone(), self.turns.clone());
        let charge = self.chosen.as_ref().and_then(|chosen| chosen.charge.clone());
        let id = self.next_id + u64::from(charge.is_some());
        if let Some(charge) = charge {
            ledger.count((id, self.user(charge.subject.charged())), charge.at.clone(), &charge.subject);
            turns.insert(charge.turn, charge.at);
        }
        (id, ledger, turns)
    }

    pub(crate) fn in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|in_flight| in_flight.id)
    }

    /// Returns whether an action is being carried out that is not a dry run.
    pub(crate) fn is_acting(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.mode != Mode::DryRun)
    }

    pub(crate) fn clear_choice(&mut self) {
        self.chosen = None;
    }

    /// Ends the action in flight.
    pub(crate) fn finish(&mut self, report: &ActionReport) -> Option<InFlight> {
        let in_flight = self.in_flight.take_if(|in_flight| in_flight.id == report.id)?;
        if in_flight.mode == Mode::DryRun {
            return Some(in_flight);
        }
        if report.acted {
            self.breakers.see_action();
            self.see_stopped(&in_flight, report);
        }
        if !report.acted || report.outcome == Outcome::Gone {
            self.take_back(&in_flight, report.outcome);
        } else if report.outcome != Outcome::Cancelled {
            let subject = &in_flight.subject;
            let author = self.author(subject.charged(), subject.pod.as_ref().map(ObjectName::namespace));
            // Pods without GPU memory have no known user.
            if author != (None, None) || in_flight.subject.kind != Kind::Pod {
                self.breakers.see_request(author, report.outcome.failure());
            }
            // A failed action frees nothing unless it was observed.
            let freed = report.released.or(report.outcome.failure().then_some(0));
            if let Some(bytes) = freed {
                self.ledger.freed(report.id, bytes);
            }
        }
        if report.outcome.failure() {
            self.failed.insert(in_flight.subject.id.clone());
        }
        self.stuck.extend(Stuck::after(report, &in_flight.name, &in_flight.subject));
        Some(in_flight)
    }

    /// Takes note of an attempt without an effect, for example because the target exited meanwhile.
    pub(crate) fn note_effect(&mut self, in_flight: &InFlight, report: &ActionReport, now: Duration) {
        if !report.acted && in_flight.mode != Mode::DryRun {
            let subject = &in_flight.subject;
            let author = self.author(subject.uid, subject.pod.as_ref().map(ObjectName::namespace));
            self.without_effect.insert(author, now);
        }
    }

    pub(crate) fn forget_stuck(&mut self) {
        self.stuck.clear();
        self.failed.clear();
    }
}

/// Returns whether `/proc` confirms all processes of a target. A pid that only the driver lists can be flagged,
/// but not acted upon.
fn is_known(target: usize, view: &View) -> bool {
    view.processes(&view.targets[target]).all(|process| process.start_ticks.is_some())
}

impl Engine {
    /// Decides on a step, confirms the last decision, or records why not.
    pub(super) fn decide(&mut self, tick: &Tick<'_>, mut candidates: Vec<Candidate>) -> Vec<Verdict> {
        self.actions.ledger.forget(tick.now, tick.boot_id());
        let now = tick.now.boot;
        self.actions.without_effect.retain(|_, at| now.saturating_sub(*at) < COMES_LAST);
        self.actions.turns.retain(|_, at| at.ago(tick.now, tick.boot_id()) < OLDEST_TURN);
        self.actions.stuck.retain(|stuck| stuck.remains(tick.view));
        self.end_pause(tick);
        // A missed snapshot between decision and confirmation drops the decision, like an unknown sample.
        let mut chosen = self.actions.chosen.take().filter(|_| tick.missed == 0);
        // A step that is being carried out remains due until it ends.
        candidates
            .retain(|candidate| !candidate.progress.in_flight && is_known(candidate.subject, tick.view));
        self.sort(&mut candidates, tick);
        let place = chosen
            .as_ref()
            .and_then(|chosen| candidates.iter().position(|candidate| chosen.is(candidate, tick.view)));
        if let Some((chosen, place)) = chosen.take_if(|_| place.is_some()).zip(place) {
            // A sample taken before the decision may end the match, but cannot confirm it.
            if tick.view.boot() <= chosen.at {
                self.actions.chosen = Some(chosen);
                return Vec::new();
            }
            // A slow disk delays the action, but not for long: the data to be written becomes outdated.
            let young = tick.now.boot.saturating_sub(chosen.at) < DISK;
            let counted = chosen.charge.is_some();
            if counted && young && self.node_holds(tick.view).into_iter().eq([Hold::State]) {
                self.actions.chosen = Some(chosen);
                return self.withhold(&candidates[place], Hold::State, tick).into_iter().collect();
            }
            candidates[..=place].rotate_right(1);
            return self.confirm(&candidates, &chosen.peers, tick);
        }
        if let Some(chosen) = chosen {
            self.note_unconfirmed(chosen, now);
            self.sort(&mut candidates, tick);
        }
        let mut verdicts = Vec::new();
        let free = self.first_free(&candidates, tick, &mut verdicts);
        if let Some(candidate) = free.filter(|_| self.actions.in_flight.is_none()) {
            self.choose(&candidate, &candidates, tick);
            let action = self.action(&candidate);
            verdicts.extend(action.map(|action| self.say(&candidate, What::Due(action), tick)));
        }
        verdicts
    }

    /// Takes note that a decision was not confirmed, because the match has ended or the condition is unknown. The user can cause
    /// both, again and again.
    fn note_unconfirmed(&mut self, chosen: Chosen, now: Duration) {
        let Some(evaluator) = self.evaluators.get_mut(chosen.rule).filter(|evaluator| evaluator.kills())
        else {
            return;
        };
        let number = self.populations[evaluator.rule.target as usize].number(&chosen.owner);
        let progress = number.and_then(|number| evaluator.progress(number));
        if let Some(progress) = progress.filter(|progress| progress.decided) {
            progress.cancel();
        }
        self.actions.without_effect.insert(chosen.author, now);
    }

    fn choose(&mut self, candidate: &Candidate, candidates: &[Candidate], tick: &Tick<'_>) {
        let charge = self.charge(candidate, tick);
        let peers = self.peers(candidate, candidates, tick);
        let peers = peers.iter().map(|peer| tick.view.targets[peer.subject].id.clone()).collect();
        let target = &tick.view.targets[candidate.subject];
        let author = subject::author(target, tick.view, &self.actions.subordinate);
        if let Some(progress) = self.progress(candidate, tick.view) {
            (progress.decided, progress.shown_hold) = (true, None);
            let chosen =
                Chosen { charge, author, at: tick.now.boot, peers, ..Chosen::new(candidate, tick.view) };
            self.actions.chosen = Some(chosen);
        }
    }

    /// Returns the number of the target that matched.
    pub(super) fn owner(&self, candidate: &Candidate, view: &View) -> Option<usize> {
        let owner = &view.targets[candidate.owner];
        self.populations[owner.kind as usize].number(&owner.id)
    }

    fn progress(&mut self, candidate: &Candidate, view: &View) -> Option<&mut Progress> {
        let number = self.owner(candidate, view)?;
        self.evaluators.get_mut(candidate.rule)?.progress(number)
    }

    /// Returns the data with which an action will be entered in budgets and cooldowns; `None` in dry-run mode.
    fn charge(&self, candidate: &Candidate, tick: &Tick<'_>) -> Option<Charge> {
        let evaluator =
            self.evaluators.get(candidate.rule).filter(|evaluator| evaluator.mode == Mode::Enforce)?;
        let target = &tick.view.targets[candidate.subject];
        Some(Charge {
            at: tick.stamp(),
            subject: Arc::new(subject::of(target, tick.view)),
            turn: Turn(evaluator.rule.condition.clone(), target.id.clone()),
        })
    }

    /// Confirms the step of the last decision if it is still due.
    fn confirm(&mut self, candidates: &[Candidate], peers: &[TargetId], tick: &Tick<'_>) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let first = self.first_free(&candidates[..1], tick, &mut verdicts);
        match first.filter(|_| self.actions.in_flight.is_none()) {
            Some(candidate) => {
                let mut due = self.peers(&candidate, candidates, tick);
                due.retain(|peer| peers.contains(&tick.view.targets[peer.subject].id));
                verdicts.extend(self.act(&candidate, &due, tick));
            }
            None => drop(self.first_free(&candidates[1..], tick, &mut verdicts)),
        }
        verdicts
    }

    /// Returns the first candidate without a hold; records the hold of each candidate before it.
    fn first_free(
        &mut self,
        candidates: &[Candidate],
        tick: &Tick<'_>,
        verdicts: &mut Vec<Verdict>,
    ) -> Option<Candidate> {
        let node = self.node_holds(tick.view).into_iter().next();
        for candidate in candidates {
            match self.against(candidate, node, tick) {
                None => return Some(*candidate),
                Some(hold) => verdicts.extend(self.withhold(candidate, hold, tick)),
            }
        }
        None
    }

    pub(super) fn action(&self, candidate: &Candidate) -> Option<Action> {
        let then = &self.evaluators.get(candidate.rule)?.rule.then;
        then.get(usize::from(candidate.progress.step)).map(|step| step.action.clone())
    }

    fn say(&self, candidate: &Candidate, what: What, tick: &Tick<'_>) -> Verdict {
        let evaluator = &self.evaluators[candidate.rule];
        let track = self.owner(candidate, tick.view).and_then(|number| evaluator.tracks.get(number));
        let streak = track.map_or(0, |track| track.streak.count);
        evaluator.finding(Match { owner: candidate.owner, subject: candidate.subject, streak }, what, tick)
    }

    /// Starts an action: counts it and returns its verdict.
    fn act(&mut self, candidate: &Candidate, peers: &[Candidate], tick: &Tick<'_>) -> Option<Verdict> {
        let action = self.action(candidate)?;
        let id = self.actions.next_id + 1;
        let verdict = self.say(candidate, What::Act(id, action.clone()), tick);
        self.progress(candidate, tick.view)?.in_flight = true;
        self.actions.next_id = id;
        let owner = &tick.view.targets[candidate.owner];
        let evaluator = &self.evaluators[candidate.rule];
        let (name, mode) = (Arc::clone(&evaluator.rule.name), evaluator.mode);
        let charge = self.charge(candidate, tick);
        let turn = charge.map(|charge| self.actions.count(id, charge));
        self.actions.in_flight = Some(InFlight {
            id,
            rule: candidate.rule,
            owner: (owner.kind, owner.id.clone()),
            action,
            name,
            subject: Arc::clone(&verdict.subject),
            mode,
            peers: self.as_peers(peers, tick),
            turn,
        });
        Some(verdict)
    }

    /// Returns whether the newest snapshot still agrees with an action in flight and no hold is active.
    ///
    /// # Errors
    /// With the reason why the action must not begin.
    pub fn agrees(&self, id: u64) -> Result<(), &'static str> {
        const ENDED: &str = "the match has ended";
        let in_flight =
            self.actions.in_flight.as_ref().filter(|in_flight| in_flight.id == id).ok_or(ENDED)?;
        let view = self.last.as_ref().ok_or(ENDED)?;
        // The executor checks the age of the confirmation.
        if let Some(hold) = self.node_holds(view).iter().find(|hold| **hold != Hold::Stale) {
            return Err(hold.meaning());
        }
        // A hold that began after this snapshot counts.
        let now = Now { boot: view.boot(), wall: Duration::from_millis(view.snapshot.wall_ms) };
        if self.owner_hold(&in_flight.name, &in_flight.subject.id, now).is_some() {
            return Err(Hold::Owner.meaning());
        }
        let number = self.populations[in_flight.owner.0 as usize].number(&in_flight.owner.1);
        let evaluator = self.evaluators.get(in_flight.rule).ok_or("the rule is no longer in force")?;
        let stands = |Peer { subject, .. }: &Peer| {
            let number = self.populations[subject.kind as usize].number(&subject.id);
            let is_held = self.owner_hold(&in_flight.name, &subject.id, now).is_some();
            !is_held && number.is_some_and(|number| evaluator.matches(number))
        };
        if !in_flight.peers.iter().all(stands) {
            return Err("another pod of its namespace no longer matches");
        }
        match number.and_then(|number| evaluator.outcome(number, &in_flight.subject.id)) {
            Some(Truth::True) => Ok(()),
            Some(Truth::False) => Err("the target does not match in the newest snapshot"),
            Some(Truth::Unknown) => Err("it is unknown whether the target matches in the newest snapshot"),
            None => Err(ENDED),
        }
    }

    /// Returns the hold that delays SIGKILL after SIGTERM was sent, if there is one: the audit log or the state
    /// cannot be written.
    pub fn unrecorded(&self) -> Option<Hold> {
        [Hold::Audit, Hold::State].into_iter().find(|hold| self.outside.contains(hold))
    }

    /// Records once why a step is withheld.
    fn withhold(&mut self, candidate: &Candidate, hold: Hold, tick: &Tick<'_>) -> Option<Verdict> {
        if candidate.progress.shown_hold == Some(hold) {
            return None;
        }
        self.progress(candidate, tick.view)?.shown_hold = Some(hold);
        let action = self.action(candidate)?;
        Some(self.say(candidate, What::Withheld(action, hold), tick))
    }

    fn end_pause(&mut self, tick: &Tick<'_>) {
        self.paused.take_if(|pause| pause.left(tick.now, tick.boot_id()).is_some_and(|left| left.is_zero()));
    }
}
