//! All outcomes of a target, and what follows from them according to the table in the specification.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bailiff_engine::policy::{Action, Severity};
use bailiff_engine::verdict::{Hold, What};
use bailiff_engine::view::View;
use bailiff_snapshot::{State, Truth};

use crate::observed::Traces;
use crate::oracle::{Checked, ensure};
use crate::plan::{RulePlan, samples};

/// A sample, or a number of missed samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mark {
    Sample(Truth),
    Missed(u32),
    /// The interval has changed.
    Reset,
}

/// All outcomes of one target under one condition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    pub(crate) marks: Vec<Mark>,
    /// The rule's `max_gap` when each mark was recorded. A reload may change it.
    pub(crate) gaps: Vec<u32>,
    pub(crate) traces: Traces,
    pub(crate) state: MatchState,
    /// Tick of the first true sample in the streak.
    pub(crate) began: u64,
}

/// What was done about a match.
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
#[derive(Debug, Clone, Default)]
pub(crate) struct MatchState {
    /// Whether the target matches.
    pub(crate) open: bool,
    /// Whether the match begins at this tick.
    pub(crate) begins: bool,
    /// Number of steps done in this match.
    pub(crate) done: usize,
    /// Whether the owner was notified.
    pub(crate) notified: bool,
    /// Whether an action was due.
    pub(crate) warned: bool,
    pub(crate) acted: bool,
    /// Whether it is uncertain, after a reload or a restart, what was done.
    pub(crate) fuzzy: bool,
    pub(crate) flagged: bool,
    pub(crate) withheld: Option<(u64, Hold)>,
    pub(crate) due: Option<(u64, usize)>,
    /// Whether the last action had no effect and may be repeated.
    pub(crate) again: bool,
    /// Number of actions without effect.
    pub(crate) without_effect: u32,
}

/// What was found for one target at this tick.
pub(crate) struct Found {
    pub(crate) outcome: Truth,
    pub(crate) count: u32,
    pub(crate) needed: u32,
    pub(crate) interval: u64,
    pub(crate) protected: Truth,
    pub(crate) workload: Option<String>,
}

/// Returns whether a target is gone: every source that could report it was read.
pub(crate) fn is_gone(traces: &Traces, view: &View) -> bool {
    let snapshot = &view.snapshot;
    let up = |name: &str| snapshot.sources.get(name).is_some_and(|source| source.up);
    let notified = |uuid: &String| {
        let gpu = snapshot.gpus.iter().find(|gpu| gpu.uuid.as_ref() == Some(uuid));
        gpu.is_some_and(|gpu| gpu.fault.is_none() && gpu.listed.is_some())
    };
    // A listed pid without further facts may still be the process.
    let unconfirmed = snapshot.processes.iter().any(|process| {
        process.start_ticks.is_none() && process.state != State::Gone && traces.pids.contains(&process.pid)
    });
    up("nvml") && up("proc") && traces.gpus.iter().all(notified) && !unconfirmed
}

/// Handles targets that are not observed. They are gone if every source that could report them was read,
/// otherwise unknown.
pub(crate) fn absent(
    tracks: &mut BTreeMap<(Arc<str>, String), Track>,
    rule: &RulePlan,
    (present, missed): (&BTreeSet<&str>, u32),
    view: &View,
) {
    let mut gone = Vec::new();
    for ((of, id), track) in tracks.iter_mut() {
        if *of != rule.condition || present.contains(id.as_str()) {
            continue;
        }
        if is_gone(&track.traces, view) {
            gone.push((of.clone(), id.clone()));
        } else {
            track.feed(Truth::Unknown, (missed, rule.max_gap), track.traces.clone());
            if track.state.open && count(track) == 0 {
                track.state = MatchState { flagged: track.state.flagged, ..MatchState::default() };
            }
            track.state.flagged &= track.not_true() < rule.clear_after;
        }
    }
    for key in gone {
        tracks.remove(&key);
    }
}

/// Returns the streak according to the table in the specification, computed from the first mark on.
pub(crate) fn count(track: &Track) -> u32 {
    let (mut count, mut unknown) = (0, 0_u32);
    for (mark, max_gap) in track.marks.iter().zip(&track.gaps) {
        match mark {
            Mark::Sample(Truth::True) => (count, unknown) = (count + 1, 0),
            Mark::Sample(Truth::False) | Mark::Reset => (count, unknown) = (0, 0),
            Mark::Sample(Truth::Unknown) => unknown += 1,
            Mark::Missed(missed) => unknown = unknown.saturating_add(*missed),
        }
        if unknown > *max_gap {
            count = 0;
        }
    }
    count
}

impl Track {
    pub(crate) fn put(&mut self, mark: Mark, max_gap: u32) {
        self.marks.push(mark);
        self.gaps.push(max_gap);
    }

    pub(crate) fn feed(&mut self, outcome: Truth, (missed, max_gap): (u32, u32), traces: Traces) {
        if missed > 0 {
            self.put(Mark::Missed(missed), max_gap);
        }
        self.put(Mark::Sample(outcome), max_gap);
        self.traces = traces;
    }

    pub(crate) fn now(&self) -> Truth {
        self.samples().next().unwrap()
    }

    pub(crate) fn before(&self) -> Option<Truth> {
        self.samples().nth(1)
    }

    pub(crate) fn samples(&self) -> impl Iterator<Item = Truth> {
        self.marks.iter().rev().filter_map(|mark| match mark {
            Mark::Sample(truth) => Some(*truth),
            Mark::Missed(_) | Mark::Reset => None,
        })
    }

    /// Returns the number of samples since the last true sample, without missed samples.
    pub(crate) fn not_true(&self) -> u32 {
        u32::try_from(self.samples().take_while(|truth| *truth != Truth::True).count()).unwrap()
    }

    /// Checks the notifications and flags that are required or allowed now. Returns the number of flags
    /// raised.
    pub(crate) fn check_quiet(
        &mut self,
        rule: &RulePlan,
        found: &Found,
        verdicts: &[&What],
    ) -> Result<u64, String> {
        self.check_end(found, verdicts)?;
        let matches = found.outcome == Truth::True && found.count >= found.needed;
        let expected = if matches { self.state.due_now(rule, found) } else { Vec::new() };
        self.check_order(rule, found, (&expected, verdicts))?;
        self.check_flag(rule, verdicts)
    }

    /// Checks the end of a match. A match ends with its streak, and an owner who was notified is notified
    /// of the end.
    pub(crate) fn check_end(&mut self, found: &Found, verdicts: &[&What]) -> Checked {
        let state = &mut self.state;
        let ended = state.open && found.outcome != Truth::True && found.count == 0;
        // A match also ends if there is a gap between two true samples.
        let again = state.open && found.outcome == Truth::True && found.count == 1;
        let reprieved = verdicts.iter().any(|what| matches!(what, What::Reprieved(_)));
        if ended || again {
            let must = ended && found.outcome == Truth::False && state.notified && !state.fuzzy;
            ensure!(!must || reprieved, "not reprieved");
            ensure!(
                !reprieved || state.warned || state.fuzzy || state.done > 0,
                "reprieved although nothing was announced"
            );
            *state = MatchState { flagged: state.flagged, ..MatchState::default() };
        } else {
            let lost = state.fuzzy || found.count < found.needed;
            ensure!(!reprieved || lost, "reprieved although nothing has changed");
        }
        Ok(())
    }

    /// Checks that the expected flags and notifications are reported in order, and no others.
    pub(crate) fn check_order(
        &mut self,
        rule: &RulePlan,
        found: &Found,
        (expected, verdicts): (&[What], &[&What]),
    ) -> Checked {
        let unknown = self.marks.iter().filter(|mark| **mark == Mark::Sample(Truth::Unknown)).count();
        let unknown = u32::try_from(unknown).unwrap();
        let state = &mut self.state;
        let open = state.fuzzy || state.acted;
        let matches = found.outcome == Truth::True && found.count >= found.needed;
        for what in verdicts {
            let action = match what {
                What::Flag(severity) => Action::Flag(*severity),
                What::Notify(channels) => Action::Notify(channels.clone()),
                _ => continue,
            };
            // An unknown sample after a decision drops it.
            if matches!(what, What::Flag(Severity::Warning)) && matches && state.without_effect + unknown >= 3
            {
                continue;
            }
            let step = rule.steps.iter().position(|step| step.action == action);
            let Some(step) = step else { return Err(format!("no such step: {what:?}")) };
            let due = found.needed + samples(rule.steps[step].after, found.interval);
            ensure!(matches && found.count >= due, "too early: {what:?}");
            ensure!(open || expected.contains(what), "out of order: {what:?}");
            if open {
                state.done = state.done.max(step + 1);
                state.notified |= matches!(what, What::Notify(_));
                state.warned |= state.notified;
            }
        }
        for what in expected.iter().filter(|_| !open) {
            let up = state.flagged && matches!(what, What::Flag(_));
            ensure!(up || verdicts.contains(&what), "not reported: {what:?}");
        }
        Ok(())
    }

    /// Checks that a flag is cleared after the required number of samples that are not true. Returns the
    /// number of flags raised.
    pub(crate) fn check_flag(&mut self, rule: &RulePlan, verdicts: &[&What]) -> Result<u64, String> {
        let since = self.not_true();
        let state = &mut self.state;
        let cleared = verdicts.iter().any(|what| matches!(what, What::Clear(_)));
        let over = since >= rule.clear_after;
        ensure!(!cleared || over || state.fuzzy, "cleared after {since} samples that were not true");
        let must = state.flagged && !state.fuzzy && over;
        ensure!(!must || cleared, "not cleared after {since} samples that were not true");
        let flags = verdicts.iter().filter(|what| matches!(what, What::Flag(_))).count();
        state.flagged = (state.flagged || flags > 0) && !cleared;
        Ok(u64::try_from(flags).unwrap())
    }
}

impl MatchState {
    /// Returns the non-destructive steps that are due at a true, matching sample.
    pub(crate) fn due_now(&mut self, rule: &RulePlan, found: &Found) -> Vec<What> {
        let mut due = Vec::new();
        self.begins = !self.open;
        self.open = true;
        while let Some(step) = rule.steps.get(self.done) {
            if found.count < found.needed + samples(step.after, found.interval) {
                break;
            }
            match &step.action {
                Action::Flag(severity) => due.push(What::Flag(*severity)),
                Action::Notify(channels) => due.push(What::Notify(channels.clone())),
                _ => break,
            }
            if self.fuzzy || self.acted {
                break;
            }
            self.notified |= matches!(step.action, Action::Notify(_));
            self.warned |= self.notified;
            self.done += 1;
        }
        due
    }
}
