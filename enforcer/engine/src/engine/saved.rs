//! State that survives a restart or a reload: streaks by condition, budgets, cooldowns, waits, breakers, the pause, holds of
//! owners. An action in flight does not survive: its step is due again from its beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{Streak, Truth, millis};
use serde::{Deserialize, Serialize};

use super::back_off::BackOffs;
use super::breakers::Breakers;
use super::evaluator::{RuleEvaluator, Track};
use super::in_flight::{OLDEST_TURN, Turn};
use super::ledger::{Ledger, Stamp};
use super::owner_holds::OwnerHold;
use super::picking::{Picked, Picking};
use super::population::{Population, Slot};
use super::progress::Progress;
use super::{Engine, Now, Pause, SETTLING};
use crate::Kind;
use crate::policy::{Mode, Policy, Rule};
use crate::view::TargetId;

/// Version of the file format.
const VERSION: u32 = 3;

/// Saved state of an engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saved {
    version: u32,
    /// Boot id; streaks are valid only on the same boot.
    boot_id: Option<String>,
    /// Set only at an orderly shutdown; after a crash, streaks may have ended unrecorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    streaks: Option<Streaks>,
    ledger: Ledger,
    turns: Vec<(Turn, Stamp)>,
    breakers: Breakers,
    #[serde(default)]
    failed: BTreeSet<TargetId>,
    paused: Option<Pause>,
    #[serde(default)]
    owner_holds: Vec<OwnerHold>,
    /// Waits before a service is asked again; valid only on the same boot.
    #[serde(default)]
    back_offs: BackOffs,
    next_id: u64,
}

/// Saved streaks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Streaks {
    /// Time of the last evaluated snapshot, in milliseconds since boot.
    boot_ms: u64,
    /// Its sampling interval, in milliseconds.
    interval_ms: Option<u64>,
    rules: Vec<SavedRule>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedRule {
    name: String,
    condition: String,
    mode: Mode,
    /// The steps as text, for comparison.
    steps: String,
    tracks: Vec<SavedTrack>,
    /// State of a rule with `pick`.
    #[serde(default)]
    picks: SavedPicks,
}

/// Saved streaks and picks of a rule with `pick`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct SavedPicks {
    /// Streaks of workloads, which have no steps of their own.
    streaks: Vec<SavedTrack>,
    picked: Vec<SavedPicked>,
    given_up: BTreeSet<TargetId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedPicked {
    gpu: TargetId,
    target: TargetId,
    since: u32,
    progress: Progress,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedTrack {
    target: TargetId,
    pids: Vec<u32>,
    gpus: Vec<String>,
    streak: Streak,
    progress: Progress,
}

impl SavedTrack {
    /// Returns `None` if there is nothing to save.
    fn of(slot: &Slot, streak: Streak, progress: Progress) -> Option<Self> {
        (streak != Streak::default() || progress != Progress::default()).then(|| Self {
            target: slot.id.clone(),
            pids: slot.pids.clone(),
            gpus: slot.gpus.iter().map(ToString::to_string).collect(),
            streak,
            progress,
        })
    }
}

/// Effect of a reload on an action in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Id of the action to cancel, because no rule requests it any more.
    pub cancel: Option<u64>,
}

impl Saved {
    /// Returns the part of the state that survives a crash.
    pub fn without_streaks(self) -> Self {
        Self { streaks: None, ..self }
    }

    /// Returns whether this program can read the format version.
    pub const fn understood(&self) -> bool {
        self.version == VERSION
    }
}

impl Engine {
    /// Returns the state that survives an orderly shutdown.
    pub fn saved(&self) -> Saved {
        let before = self.before.as_ref().map(|(_, at)| millis(*at));
        let last = self.last.as_ref().map(|view| view.snapshot.boot_ms);
        let streaks = Streaks {
            boot_ms: last.or(before).unwrap_or_default(),
            interval_ms: self.interval.map(millis),
            rules: self.saved_rules(),
        };
        Saved { streaks: Some(streaks), ..self.saved_for_a_crash() }
    }

    /// Returns budgets, cooldowns, breakers and the pause, which survive a crash.
    pub fn saved_for_a_crash(&self) -> Saved {
        // Before the first snapshot of this run, the saved values of the previous run apply.
        let before = self.before.as_ref().map(|(id, _)| id.clone());
        let last = self.last.as_ref().map(|view| view.snapshot.boot_id.clone());
        let (next_id, ledger, turns) = self.actions.foreseen();
        Saved {
            version: VERSION,
            boot_id: last.unwrap_or(before),
            streaks: None,
            ledger,
            turns: turns.into_iter().collect(),
            breakers: self.actions.breakers.clone(),
            failed: self.actions.failed.clone(),
            paused: self.paused.clone(),
            owner_holds: self.owner_holds.clone(),
            back_offs: self.actions.back_offs.clone(),
            next_id,
        }
    }

    /// Restores the state of a previous run.
    pub fn restore(&mut self, saved: Saved, now: Now) {
        if saved.version != VERSION {
            return;
        }
        self.actions.ledger = saved.ledger;
        let fresh = |at: &Stamp| at.ago(now, saved.boot_id.as_deref()) < OLDEST_TURN;
        self.actions.turns = saved.turns.into_iter().filter(|(_, at)| fresh(at)).collect::<BTreeMap<_, _>>();
        self.actions.breakers = saved.breakers;
        self.actions.failed = saved.failed;
        self.paused = saved.paused;
        self.owner_holds = saved.owner_holds;
        self.actions.back_offs = saved.back_offs;
        self.actions.next_id = saved.next_id;
        if let Some(boot_id) = saved.boot_id {
            let streaks = saved.streaks.unwrap_or_default();
            self.before = Some((boot_id, Duration::from_millis(streaks.boot_ms)));
            self.interval = streaks.interval_ms.map(Duration::from_millis);
            self.take_over(streaks.rules);
        }
        // The action in flight has ended with the previous run: its match continues, and its step is due from
        // its beginning.
        for progress in self.evaluators.iter_mut().flat_map(RuleEvaluator::matches_mut) {
            progress.acted |= progress.in_flight;
            progress.in_flight = false;
        }
    }

    /// Replaces the policy. Unchanged conditions keep their streaks.
    pub fn reload(&mut self, policy: Arc<Policy>, cap: Mode) -> Reloaded {
        let rules = self.saved_rules();
        let mut next = Self::new(policy, cap);
        std::mem::swap(&mut next.actions, &mut self.actions);
        next.outside = std::mem::take(&mut self.outside);
        next.paused = self.paused.take();
        next.owner_holds = std::mem::take(&mut self.owner_holds);
        next.only = self.only;
        std::mem::swap(&mut next.table.ours, &mut self.table.ours);
        next.tick = self.tick;
        next.last = self.last.take();
        next.booted = self.booted.take();
        next.before = self.before.take();
        next.interval = self.interval;
        next.warm_up = self.warm_up;
        next.settling = SETTLING;
        next.actions.clear_choice();
        next.take_over(rules);
        let cancel = next.follow_request(&self.evaluators);
        *self = next;
        Reloaded { cancel }
    }

    /// Finds the rule of the action in flight in the new policy; returns the action's id if no rule requests it
    /// any more.
    fn follow_request(&mut self, before: &[RuleEvaluator]) -> Option<u64> {
        let in_flight = self.actions.in_flight.as_mut()?;
        let old = before.get(in_flight.rule)?;
        let heirs = self.evaluators.iter().enumerate();
        let heir = heirs.filter(|(_, evaluator)| evaluator.rule.condition == old.rule.condition);
        let heir = heir.max_by_key(|(_, evaluator)| evaluator.rule.name == old.rule.name);
        let wanted =
            heir.filter(|(_, evaluator)| evaluator.mode >= old.mode && evaluator.rule.then == old.rule.then);
        // An index past the end stands for no rule; the report is then ignored.
        in_flight.rule = wanted.map_or(usize::MAX, |(place, _)| place);
        // A target that the new file exempts is evaluated again before SIGTERM as well, not only before
        // SIGKILL.
        Some(in_flight.id)
    }

    fn saved_rules(&self) -> Vec<SavedRule> {
        self.evaluators.iter().map(|evaluator| self.saved_rule(evaluator)).collect()
    }

    fn saved_rule(&self, evaluator: &RuleEvaluator) -> SavedRule {
        let population = &self.populations[evaluator.rule.target as usize];
        let tracks = evaluator.tracks.iter().enumerate().filter_map(|(number, track)| {
            SavedTrack::of(population.slot(number)?, track.streak, track.progress)
        });
        SavedRule {
            name: evaluator.rule.name.to_string(),
            condition: evaluator.rule.condition.clone(),
            mode: evaluator.mode,
            steps: format!("{:?}", evaluator.rule.then),
            tracks: tracks.collect(),
            picks: evaluator.picking.as_ref().map(|picking| self.saved_picks(picking)).unwrap_or_default(),
        }
    }

    fn saved_picks(&self, picking: &Picking) -> SavedPicks {
        let workloads = &self.populations[Kind::Workload as usize];
        let gpus = &self.populations[Kind::Gpu as usize];
        let streaks = picking.streaks.iter().enumerate();
        let streaks = streaks.filter_map(|(number, streak)| {
            SavedTrack::of(workloads.slot(number)?, *streak, Progress::default())
        });
        let picked = picking.picked.iter().filter_map(|(number, picked)| {
            let gpu = gpus.slot(*number)?.id.clone();
            let Picked { target, since, progress, .. } = picked;
            Some(SavedPicked { gpu, target: target.clone(), since: *since, progress: *progress })
        });
        SavedPicks {
            streaks: streaks.collect(),
            picked: picked.collect(),
            given_up: picking.given_up.clone(),
        }
    }

    /// Passes streaks on to the rules with the same condition.
    fn take_over(&mut self, mut saved: Vec<SavedRule>) {
        let mut heirs: Vec<bool> = vec![false; self.evaluators.len()];
        // An existing rule takes precedence over a removed one with the same condition.
        let is_there = |old: &SavedRule| {
            let same = |rule: &Rule| *rule.name == *old.name && rule.condition == old.condition;
            self.evaluators.iter().any(|evaluator| same(&evaluator.rule))
        };
        saved.sort_by_key(|old| !is_there(old));
        for old in saved {
            let same = |(place, evaluator): &(usize, &RuleEvaluator)| {
                !heirs[*place] && evaluator.rule.condition == old.condition
            };
            let found = self.evaluators.iter().enumerate().filter(same);
            let heir =
                found.max_by_key(|(_, evaluator)| *evaluator.rule.name == *old.name).map(|(place, _)| place);
            let Some(place) = heir else { continue };
            heirs[place] = true;
            // A target is not ended because of a time in which the rule was in dry-run mode.
            if self.evaluators[place].mode > old.mode {
                continue;
            }
            let same_steps = format!("{:?}", self.evaluators[place].rule.then) == old.steps;
            for track in old.tracks {
                self.take_over_track(place, track, same_steps);
            }
            self.take_over_picks(place, old.picks, same_steps);
        }
    }

    fn take_over_track(&mut self, place: usize, saved: SavedTrack, same_steps: bool) {
        let Some(evaluator) = self.evaluators.get_mut(place) else { return };
        let mut streak = saved.streak;
        let progress = saved.progress.taken_over(same_steps);
        let number = known(&mut self.populations, evaluator.rule.target, saved);
        if !same_steps {
            // Changed steps count from now on, so that no target is due for a step that it was not notified of.
            streak.count = streak.count.min(evaluator.rule.counted_from());
        }
        if evaluator.tracks.len() <= number {
            evaluator.tracks.resize(number + 1, Track::default());
        }
        evaluator.tracks[number] = Track { streak, progress, outcome: None };
    }

    fn take_over_picks(&mut self, place: usize, saved: SavedPicks, same_steps: bool) {
        let Some(picking) = self.evaluators.get_mut(place).and_then(|evaluator| evaluator.picking.as_mut())
        else {
            return;
        };
        for track in saved.streaks {
            let streak = track.streak;
            let number = known(&mut self.populations, Kind::Workload, track);
            if picking.streaks.len() <= number {
                picking.streaks.resize(number + 1, Streak::default());
            }
            picking.streaks[number] = streak;
        }
        for SavedPicked { gpu, target, since, progress } in saved.picked {
            // The track of the GPU itself was taken over before.
            let Some(number) = self.populations[Kind::Gpu as usize].number(&gpu) else { continue };
            let since = if same_steps { since } else { 0 };
            let progress = progress.taken_over(same_steps);
            let (author, is_ended) = ((None, None), false);
            let picked = Picked { target, since, progress, outcome: Truth::Unknown, author, is_ended };
            picking.picked.insert(number, picked);
        }
        picking.given_up = saved.given_up;
    }
}

/// Returns the number of a target that was known earlier.
fn known(populations: &mut [Population; Kind::COUNT], kind: Kind, saved: SavedTrack) -> usize {
    let population = &mut populations[kind as usize];
    population.number(&saved.target).unwrap_or_else(|| {
        let gpus = saved.gpus.iter().map(|uuid| Arc::from(uuid.as_str())).collect();
        population.add(Slot::known(saved.target, saved.pids, gpus))
    })
}

impl Rule {
    /// Returns the streak at which a match begins, if that is known without the interval.
    fn counted_from(&self) -> u32 {
        match self.span {
            crate::policy::Span::Samples(samples) => samples,
            // The interval is known only at the next snapshot, so the streak starts below any match.
            crate::policy::Span::Time(_) => 0,
        }
    }
}
