//! All outcomes of one target, and what follows from them by the table of the specification.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bailiff_enforcer::policy::Action;
use bailiff_enforcer::verdict::{Hold, What};
use bailiff_enforcer::view::View;
use bailiff_snapshot::Truth;

use crate::oracle::{Checked, ensure};
use crate::plan::{RulePlan, samples};
use crate::seen::Traces;

/// One sample, or missed samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mark {
    Seen(Truth),
    Missed(u32),
    /// The interval has changed.
    Anew,
}

/// All outcomes of one target under one condition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    pub(crate) marks: Vec<Mark>,
    /// The gap allowed at each mark: a reload may change it.
    pub(crate) gaps: Vec<u32>,
    pub(crate) traces: Traces,
    pub(crate) stage: Stage,
    /// The tick of the first true sample of the streak.
    pub(crate) began: u64,
}

/// What was done about it.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage {
    /// It matches.
    pub(crate) open: bool,
    /// The tick since which it matches.
    pub(crate) begins: bool,
    /// Steps done in this match.
    pub(crate) done: usize,
    /// Its owner was notified.
    pub(crate) told: bool,
    /// Or an action was due.
    pub(crate) warned: bool,
    pub(crate) acted: bool,
    /// After a reload or a restart it is uncertain what was done.
    pub(crate) fuzzy: bool,
    pub(crate) flagged: bool,
    pub(crate) withheld: Option<(u64, Hold)>,
    pub(crate) due: Option<(u64, usize)>,
    /// The last action had no effect, and may be repeated.
    pub(crate) again: bool,
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

/// Every source that could report the target has answered.
pub(crate) fn is_gone(traces: &Traces, view: &View) -> bool {
    let snapshot = &view.snapshot;
    let up = |name: &str| snapshot.sources.get(name).is_some_and(|source| source.up);
    let told = |uuid: &String| {
        let gpu = snapshot.gpus.iter().find(|gpu| gpu.uuid.as_ref() == Some(uuid));
        gpu.is_some_and(|gpu| gpu.fault.is_none() && gpu.listed.is_some())
    };
    // A listed pid without further facts may still be the process.
    let unconfirmed = snapshot.processes.iter().any(|process| {
        process.start_ticks.is_none() && process.state != "gone" && traces.pids.contains(&process.pid)
    });
    up("nvml") && up("proc") && traces.gpus.iter().all(told) && !unconfirmed
}

/// Targets not observed: gone if every source that could report them has answered, else unknown.
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
            if track.stage.open && count(track) == 0 {
                track.stage = Stage { flagged: track.stage.flagged, ..Stage::default() };
            }
            track.stage.flagged &= track.not_true() < rule.clear_after;
        }
    }
    for key in gone {
        tracks.remove(&key);
    }
}

/// The table of the specification, from the first mark on.
pub(crate) fn count(track: &Track) -> u32 {
    let (mut count, mut unknown) = (0, 0_u32);
    for (mark, max_gap) in track.marks.iter().zip(&track.gaps) {
        match mark {
            Mark::Seen(Truth::True) => (count, unknown) = (count + 1, 0),
            Mark::Seen(Truth::False) | Mark::Anew => (count, unknown) = (0, 0),
            Mark::Seen(Truth::Unknown) => unknown += 1,
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
        self.put(Mark::Seen(outcome), max_gap);
        self.traces = traces;
    }

    pub(crate) fn now(&self) -> Truth {
        self.seen().next().unwrap()
    }

    pub(crate) fn before(&self) -> Option<Truth> {
        self.seen().nth(1)
    }

    pub(crate) fn seen(&self) -> impl Iterator<Item = Truth> {
        self.marks.iter().rev().filter_map(|mark| match mark {
            Mark::Seen(truth) => Some(*truth),
            Mark::Missed(_) | Mark::Anew => None,
        })
    }

    /// Samples since the last true one, without missed ones.
    pub(crate) fn not_true(&self) -> u32 {
        u32::try_from(self.seen().take_while(|truth| *truth != Truth::True).count()).unwrap()
    }

    /// Checks the notices and flags that are required or allowed now; returns the number of flags raised.
    pub(crate) fn check_quiet(
        &mut self,
        rule: &RulePlan,
        found: &Found,
        said: &[&What],
    ) -> Result<u64, String> {
        self.check_end(found, said)?;
        let matches = found.outcome == Truth::True && found.count >= found.needed;
        let expected = if matches { self.stage.due_now(rule, found) } else { Vec::new() };
        self.check_told(rule, found, (&expected, said))?;
        self.check_flag(rule, said)
    }

    /// The match ends with its streak, and the notified owner is notified of the end.
    pub(crate) fn check_end(&mut self, found: &Found, said: &[&What]) -> Checked {
        let stage = &mut self.stage;
        let ended = stage.open && found.outcome != Truth::True && found.count == 0;
        // Also if a gap came between two true samples.
        let again = stage.open && found.outcome == Truth::True && found.count == 1;
        let reprieved = said.iter().any(|what| matches!(what, What::Reprieved(_)));
        if ended || again {
            let must = ended && found.outcome == Truth::False && stage.told && !stage.fuzzy;
            ensure!(!must || reprieved, "not reprieved");
            ensure!(!reprieved || stage.warned || stage.fuzzy || stage.done > 0, "reprieved from nothing");
            *stage = Stage { flagged: stage.flagged, ..Stage::default() };
        } else {
            let lost = stage.fuzzy || found.count < found.needed;
            ensure!(!reprieved || lost, "reprieved, and nothing has changed");
        }
        Ok(())
    }

    /// Checks that flags and notices are reported in order, and no others.
    pub(crate) fn check_told(
        &mut self,
        rule: &RulePlan,
        found: &Found,
        (expected, said): (&[What], &[&What]),
    ) -> Checked {
        let stage = &mut self.stage;
        let open = stage.fuzzy || stage.acted;
        let matches = found.outcome == Truth::True && found.count >= found.needed;
        for what in said {
            let action = match what {
                What::Flag(severity) => Action::Flag(*severity),
                What::Notify(channels) => Action::Notify(channels.clone()),
                _ => continue,
            };
            let step = rule.steps.iter().position(|step| step.action == action);
            let Some(step) = step else { return Err(format!("no such step: {what:?}")) };
            let due = found.needed + samples(rule.steps[step].after, found.interval);
            ensure!(matches && found.count >= due, "too early: {what:?}");
            ensure!(open || expected.contains(what), "not in its turn: {what:?}");
            if open {
                stage.done = stage.done.max(step + 1);
                stage.told |= matches!(what, What::Notify(_));
                stage.warned |= stage.told;
            }
        }
        for what in expected.iter().filter(|_| !open) {
            let up = stage.flagged && matches!(what, What::Flag(_));
            ensure!(up || said.contains(&what), "not said: {what:?}");
        }
        Ok(())
    }

    /// A flag clears after this many samples that are not true; returns the number of flags raised.
    pub(crate) fn check_flag(&mut self, rule: &RulePlan, said: &[&What]) -> Result<u64, String> {
        let since = self.not_true();
        let stage = &mut self.stage;
        let cleared = said.iter().any(|what| matches!(what, What::Clear(_)));
        let over = since >= rule.clear_after;
        ensure!(!cleared || over || stage.fuzzy, "cleared after {since} samples that were not true");
        let must = stage.flagged && !stage.fuzzy && over;
        ensure!(!must || cleared, "not cleared after {since} samples that were not true");
        let flags = said.iter().filter(|what| matches!(what, What::Flag(_))).count();
        stage.flagged = (stage.flagged || flags > 0) && !cleared;
        Ok(u64::try_from(flags).unwrap())
    }
}

impl Stage {
    /// The non-destructive steps that are due at a true, matching sample.
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
            self.told |= matches!(step.action, Action::Notify(_));
            self.warned |= self.told;
            self.done += 1;
        }
        due
    }
}
