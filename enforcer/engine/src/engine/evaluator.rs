//! Evaluates one rule: its gates, streaks and steps.

mod pick;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{Streak, SubordinateUids, Truth};

use super::Tick;
use super::in_flight::InFlight;
use super::matches::{Candidate, Counts, Match};
use super::owner_holds::OwnerHoldStatus;
use super::picking::Picking;
use super::population::{Absent, Population};
use super::program::{self, Column, ConditionTable, Gate, Node};
use super::progress::{Due, Progress};
use super::subject::{self, Leaves};
use crate::Kind;
use crate::policy::{Action, Mode, Rule};
use crate::verdict::{Asked, Evidence, Outcome, Subject, Verdict, What};
use crate::view::TargetId;

/// A rule and the state of all its targets.
#[derive(Debug)]
pub(crate) struct RuleEvaluator {
    pub(crate) rule: Rule,
    /// Mode of the rule, limited by the engine's mode.
    pub(crate) mode: Mode,
    select: Option<Node>,
    except: Vec<Node>,
    pub(crate) grace: Node,
    when: Node,
    /// Targets that are stopped, traced or frozen are exempt.
    exempts_on_hold: bool,
    /// State of each target, by its number.
    pub(crate) tracks: Vec<Track>,
    /// Number of true samples that a match needs, and of samples that clear a flag, at the interval of this
    /// tick.
    needs: (u32, u32),
    pub(crate) picking: Option<Picking>,
}

/// State of one target for one rule.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Track {
    pub(crate) streak: Streak,
    pub(crate) progress: Progress,
    /// Outcome of the last tick; `None` before the first.
    pub(crate) outcome: Option<Truth>,
}

/// Input of the evaluation of a rule in one tick, and where its verdicts go.
pub(crate) struct EvalContext<'a> {
    pub(crate) tick: &'a Tick<'a>,
    pub(crate) table: &'a ConditionTable,
    /// Places of the targets in the view, by kind.
    pub(crate) places: &'a [Vec<usize>; Kind::COUNT],
    /// Number of each target, by its place in the view.
    pub(crate) seen: &'a [usize],
    pub(crate) populations: &'a [Population; Kind::COUNT],
    /// Targets that were not seen, by kind.
    pub(crate) absent: &'a [Vec<(usize, Absent)>; Kind::COUNT],
    /// Active holds of owners.
    pub(crate) owner_holds: &'a [OwnerHoldStatus],
    /// Places of the workloads against which no rule in force would take a destructive step now. Empty if no rule has
    /// `pick`.
    pub(crate) withheld: &'a HashSet<usize>,
    pub(crate) subordinate: &'a SubordinateUids,
    /// Index of the rule in the policy.
    pub(crate) rule: usize,
    pub(crate) verdicts: &'a mut Vec<Verdict>,
    pub(crate) candidates: &'a mut Vec<Candidate>,
    pub(crate) counts: &'a mut Counts,
}

impl RuleEvaluator {
    pub(crate) fn new(rule: &Rule, cap: Mode, table: &mut ConditionTable) -> Self {
        Self {
            mode: rule.mode.min(cap),
            select: rule.select.as_ref().map(|condition| Node::of(condition, table)),
            except: rule.except.iter().map(|exception| table.exemption(&exception.condition)).collect(),
            grace: table.grace(rule.startup_grace),
            when: Node::of(&rule.when, table),
            exempts_on_hold: rule.exempts_on_hold(),
            tracks: Vec::new(),
            needs: (u32::MAX, u32::MAX),
            picking: rule.pick.as_ref().map(|pick| Picking::new(pick, &rule.when, table)),
            rule: rule.clone(),
        }
    }

    /// Returns whether the rule may end a process.
    pub(crate) fn kills(&self) -> bool {
        self.mode == Mode::Enforce && self.rule.then.iter().any(|step| step.action.destructive())
    }

    /// Returns the duration of `for` at this sampling interval.
    pub(crate) fn window(&self, tick: &Tick<'_>) -> Duration {
        tick.interval.saturating_mul(self.rule.span.samples(tick.interval))
    }

    /// Evaluates every target of a tick, including those that the tick did not see.
    pub(crate) fn evaluate(&mut self, context: &mut EvalContext<'_>) {
        let interval = context.tick.interval;
        self.needs = (self.rule.span.samples(interval), self.rule.clear_after.samples(interval).max(1));
        let gates = self.gates(context.table, context.tick);
        let outcomes = program::passed(gates.into_iter().map(|(_, column)| column));
        for place in &context.places[self.rule.target as usize] {
            self.one((*place, outcomes[*place]), context);
        }
        for place in &context.absent[self.rule.target as usize] {
            self.absent(*place, context);
        }
        self.pick(context);
    }

    fn one(&mut self, (place, outcome): (usize, Truth), context: &mut EvalContext<'_>) {
        let Some(number) = context.seen.get(place).copied() else { return };
        if self.tracks.len() <= number {
            self.tracks.resize(number + 1, Track::default());
        }
        let (needed, clear) = self.needs;
        let mut track = self.tracks[number];
        let ended = track.feed(outcome, context.tick.missed, self.rule.max_gap);
        if ended && let Some(why) = track.reprieved(outcome) {
            context.verdicts.push(self.finding(track.matched(place), What::Reprieved(why), context.tick));
        }
        if track.flag_down(outcome, clear) {
            let severity = track.progress.flagged.take();
            let cleared = severity
                .map(|severity| self.finding(track.matched(place), What::Clear(severity), context.tick));
            context.verdicts.extend(cleared);
        }
        let unknown = outcome == Truth::Unknown;
        if !unknown || !subject::is_unknown_by_nature(&context.tick.view.targets[place], context.tick.view) {
            context.counts.unknown += usize::from(unknown);
            context.counts.all += 1;
            context.counts.evaluated.push((place, unknown));
        }
        if outcome == Truth::True && track.streak.count >= needed && self.picking.is_none() {
            context.counts.matching.push(place);
            let since = track.streak.count - needed;
            self.steps(track.matched(place), (&mut track.progress, since), context);
        }
        self.tracks[number] = track;
    }

    /// Takes the due steps of a match, up to the first destructive one.
    pub(crate) fn steps(
        &self,
        matched: Match,
        (progress, since): (&mut Progress, u32),
        context: &mut EvalContext<'_>,
    ) {
        let (interval, then) = (context.tick.interval, &self.rule.then);
        let flag = progress.take_flag().map(What::Flag);
        context.verdicts.extend(flag.map(|what| self.finding(matched, what, context.tick)));
        while let Some(due) = progress.due(then, since, |step| step.after.samples(interval)) {
            let what = match due {
                Due::Now(action) => {
                    progress.took(action);
                    Some(verdict_of(action))
                }
                Due::Destructive => {
                    let Match { owner, subject, .. } = matched;
                    context.candidates.push(Candidate {
                        rule: context.rule,
                        subject,
                        owner,
                        progress: *progress,
                    });
                    progress
                        .again(&self.rule, since, interval)
                        .map(|channels| What::Notify(channels.to_vec()))
                }
            };
            context.verdicts.extend(what.map(|what| self.finding(matched, what, context.tick)));
            if matches!(due, Due::Destructive) {
                return;
            }
        }
    }

    /// Returns the gates of the rule in order, each with the targets that pass it.
    pub(crate) fn gates<'t>(&self, table: &'t ConditionTable, tick: &Tick<'_>) -> Vec<(Gate, Column<'t>)> {
        let mut gates = vec![(Gate::Protection, table.unprotected())];
        gates.extend(self.select.as_ref().map(|select| (Gate::Select, select.condition(table))));
        // With `pick`, the exceptions apply to the candidates.
        if self.picking.is_none() {
            gates.extend(self.not_exempt(table, tick));
        }
        gates.push((Gate::Grace, self.grace.condition(table)));
        gates.extend(self.running(table).map(|column| (Gate::OnHold, column)));
        gates.push((Gate::When, self.when.condition(table)));
        gates
    }

    /// Returns the targets that are not on hold; `None` if the rule does not exempt targets on hold.
    pub(crate) fn running<'t>(&self, table: &'t ConditionTable) -> Option<Column<'t>> {
        self.exempts_on_hold.then(|| table.running())
    }

    /// Returns the exceptions in force, each with the targets that it does not exempt.
    pub(crate) fn not_exempt<'t>(
        &self,
        table: &'t ConditionTable,
        tick: &Tick<'_>,
    ) -> impl Iterator<Item = (Gate, Column<'t>)> {
        let exceptions = self.except.iter().zip(&self.rule.except).enumerate();
        let in_force = exceptions.filter(|(_, (_, exception))| exception.in_force(tick.now.wall));
        in_force.map(|(place, (node, _))| (Gate::Except(place), program::not(&node.condition(table))))
    }

    /// Updates a target that this tick did not see.
    fn absent(&mut self, (number, fate): (usize, Absent), context: &mut EvalContext<'_>) {
        let Some(track) = self.tracks.get_mut(number) else { return };
        let mut after = *track;
        let counts = fate == Absent::Unknown && self.rule.target != Kind::SlurmJob;
        context.counts.all += usize::from(counts);
        context.counts.unknown += usize::from(counts);
        match fate {
            Absent::Gone => after = Track::default(),
            Absent::Unknown => {
                after.outcome = Some(Truth::Unknown);
                if after.feed(Truth::Unknown, context.tick.missed, self.rule.max_gap) {
                    after.progress.end();
                }
                if after.flag_down(Truth::Unknown, self.needs.1) {
                    after.progress.flagged = None;
                }
            }
        }
        let before = std::mem::replace(track, after);
        let Some(slot) = context.populations[self.rule.target as usize].slot(number) else { return };
        let subject = Arc::new(subject::absent(self.rule.target, slot));
        let mut say = |what| {
            let about = (Arc::clone(&subject), what);
            context.verdicts.push(self.verdict(about, (before.streak.count, Vec::new()), context.tick));
        };
        if fate == Absent::Unknown
            && before.streak.count > 0
            && after.streak.count == 0
            && before.progress.warned
        {
            say(What::Reprieved("the condition was unknown for too long"));
        }
        if let (Some(severity), None) = (before.progress.flagged, after.progress.flagged) {
            say(What::Clear(severity));
        }
    }

    /// Creates a verdict about a target of the view.
    pub(crate) fn finding(&self, matched: Match, what: What, tick: &Tick<'_>) -> Verdict {
        let view = tick.view;
        let target = &view.targets[matched.subject];
        let mut leaves = Leaves { target: &view.targets[matched.owner], view }.of(&self.rule.when);
        if let Some(pick) = &self.rule.pick
            && matched.subject != matched.owner
        {
            leaves.extend(Leaves { target, view }.of(&pick.from));
        }
        let subject = Arc::new(subject::of(target, view));
        self.verdict((subject, what), (matched.streak, leaves), tick)
    }

    fn verdict(
        &self,
        (subject, what): (Arc<Subject>, What),
        (streak, leaves): (u32, Vec<Asked>),
        tick: &Tick<'_>,
    ) -> Verdict {
        let (seq, needed) = (tick.view.snapshot.seq, self.rule.span.samples(tick.interval));
        let evidence = Evidence { seq, streak, needed, leaves };
        Verdict { rule: Arc::clone(&self.rule.name), mode: self.mode, subject, what, evidence }
    }

    /// Records how an action of this rule ended; `is_last` if it is not tried again whatever the outcome.
    pub(crate) fn complete(
        &mut self,
        in_flight: &InFlight,
        (outcome, is_last): (Outcome, bool),
        number: impl Fn(Kind, &TargetId) -> Option<usize>,
    ) {
        let Some(number) = number(in_flight.owner.0, &in_flight.owner.1) else { return };
        // If the match has ended meanwhile, there is nothing to update.
        let steps = self.rule.then.len();
        let last_action = self.rule.then.iter().rposition(|step| step.action.destructive());
        let Some(progress) = self.progress(number).filter(|progress| progress.in_flight) else { return };
        progress.in_flight = false;
        let is_real = in_flight.mode != Mode::DryRun;
        match outcome {
            outcome if is_last => progress.give_up(outcome),
            Outcome::Cancelled | Outcome::Reprieved => progress.cancel(),
            outcome if outcome.may_be_tried_again() => {
                progress.cancelled = progress.cancelled.saturating_add(1);
            }
            outcome if outcome.may_pass() && is_real => progress.refused = true,
            outcome if outcome.refusal() || outcome.failure() => progress.give_up(outcome),
            _ => {
                progress.took(&in_flight.action);
                let step = usize::from(progress.step);
                let acts_again = last_action.is_some_and(|last| last >= step);
                progress.is_over = step >= steps && outcome != Outcome::DryRun;
                if in_flight.action.ends_target() && !acts_again && outcome != Outcome::DryRun {
                    self.start_over(number);
                }
            }
        }
    }

    /// Ends a match whose target was ended. If it exists nevertheless, because other processes belong to it now, they are not
    /// exempt.
    fn start_over(&mut self, number: usize) {
        if let Some(picking) = &mut self.picking {
            picking.start_over(number);
        } else if let Some(track) = self.tracks.get_mut(number) {
            track.streak = Streak::default();
            track.progress.end();
        }
    }

    /// Returns the progress of a target's match, by the target's number; with `pick`, by the GPU's.
    pub(crate) fn progress(&mut self, number: usize) -> Option<&mut Progress> {
        match &mut self.picking {
            Some(picking) => picking.progress(number),
            None => self.tracks.get_mut(number).map(|track| &mut track.progress),
        }
    }

    /// Records that a notification of a match was delivered. `number` is the target's; with `pick` the match is
    /// found by its subject.
    pub(crate) fn delivered(&mut self, number: Option<usize>, subject: &TargetId) {
        let progress = match &mut self.picking {
            Some(picking) => picking.progress_of(subject).collect(),
            None => Vec::from_iter(number.and_then(|number| self.progress(number))),
        };
        for progress in progress.into_iter().filter(|progress| progress.warned) {
            progress.delivered = true;
        }
    }

    /// Returns the last outcome for the match of a target, by the target's number; with `pick`, for the
    /// workload picked on a GPU. `None` if there is no such match.
    pub(crate) fn outcome(&self, number: usize, subject: &TargetId) -> Option<Truth> {
        if let Some(picking) = &self.picking {
            return picking.outcome(number, subject);
        }
        let track = self.tracks.get(number).filter(|track| track.progress.in_flight)?;
        track.outcome
    }

    /// Returns whether a target matched in the last snapshot, by its number.
    pub(crate) fn matches(&self, number: usize) -> bool {
        self.tracks.get(number).is_some_and(|track| track.outcome == Some(Truth::True))
    }

    /// Returns the progress of every match.
    pub(crate) fn matches_mut(&mut self) -> impl Iterator<Item = &mut Progress> {
        let picked = self.picking.iter_mut().flat_map(Picking::matches_mut);
        self.tracks.iter_mut().map(|track| &mut track.progress).chain(picked)
    }

    /// Resets every streak; flags stay.
    pub(crate) fn begin_again(&mut self) {
        for track in &mut self.tracks {
            track.streak = Streak::default();
            track.progress.end();
        }
        if let Some(picking) = &mut self.picking {
            picking.begin_again();
        }
    }

    /// Removes the state of all targets.
    pub(crate) fn forget(&mut self) {
        self.tracks.clear();
        if let Some(picking) = &mut self.picking {
            picking.forget();
        }
    }
}

/// Converts a step into the verdict that reports it.
pub(crate) fn verdict_of(action: &Action) -> What {
    match action {
        Action::Flag(severity) => What::Flag(*severity),
        Action::Notify(channels) => What::Notify(channels.clone()),
        destructive => What::Due(destructive.clone()),
    }
}

impl Track {
    /// Returns the match of the target at this place of the view.
    fn matched(&self, place: usize) -> Match {
        Match { owner: place, subject: place, streak: self.streak.count }
    }

    /// Applies missed intervals and then this sample; returns whether a streak ended.
    pub(crate) fn feed(&mut self, outcome: Truth, missed: u32, max_gap: u32) -> bool {
        let ran = self.streak.count > 0;
        self.outcome = Some(outcome);
        let held = missed == 0 || self.streak.miss(missed, max_gap);
        let kept = self.streak.feed(outcome, max_gap);
        ran && !(held && kept)
    }

    /// Ends a match; returns the reason if the target had been notified or was due.
    fn reprieved(&mut self, outcome: Truth) -> Option<&'static str> {
        let warned = self.progress.warned;
        self.progress.end();
        warned.then_some(match outcome {
            Truth::False => "the target no longer matches",
            Truth::True | Truth::Unknown => "the condition was unknown for too long",
        })
    }

    /// Returns whether a flag is cleared: after `enough` consecutive samples that are not true.
    fn flag_down(&mut self, outcome: Truth, enough: u32) -> bool {
        self.progress.off = match outcome {
            Truth::True => 0,
            Truth::False | Truth::Unknown => self.progress.off.saturating_add(1),
        };
        self.progress.flagged.is_some() && u32::from(self.progress.off) >= enough
    }
}
