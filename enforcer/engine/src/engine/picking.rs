//! The state of `pick`: candidate workloads with their streaks, the order among them, and the workload picked on each GPU.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bailiff_snapshot::{Streak, SubordinateUids, Truth};

use super::Tick;
use super::program::{ConditionTable, Node};
use super::progress::Progress;
use super::subject::{self, Author};
use crate::policy::{Condition, Order, Pick, Span};
use crate::value::Test;
use crate::view::{Target, TargetId, View};

/// A workload that was passed over, because steps against it were withheld, is picked last for this time.
const PASSED_OVER: Duration = Duration::from_hours(1);
/// All workloads of a user are picked last after this many picks that ended before an action, because the workload became busy,
/// exited or freed its memory. Otherwise a user could delay the rule without end, with workloads that take turns.
const MOST_EARLY_ENDS: u8 = 3;

/// State of a rule with `pick`.
#[derive(Debug)]
pub(crate) struct Picking {
    pub(super) from: Node,
    pub(super) idle_for: Span,
    order: Vec<Order>,
    /// Bytes that should be free on the GPU: the upper limit of `vram_free` in the rule's condition, if any.
    wanted: Option<f64>,
    /// Streak of each workload, by its number.
    pub(super) streaks: Vec<Streak>,
    /// Picked workload of each GPU, by the GPU's number.
    pub(super) picked: HashMap<usize, Picked>,
    /// Workloads that the rule does not try again.
    pub(super) given_up: BTreeSet<TargetId>,
    /// Workloads that were passed over, and when, since boot.
    passed_over: BTreeMap<TargetId, Duration>,
    /// Users of whom picks ended early, with the number of these picks, and when the latest one ended.
    early_ends: BTreeMap<Author, (u8, Duration)>,
}

/// The workload that was picked on a GPU.
#[derive(Debug)]
pub(super) struct Picked {
    pub(super) target: TargetId,
    /// Number of true samples since the pick.
    pub(super) since: u32,
    pub(super) progress: Progress,
    /// Outcome of the last tick: the GPU's need, the workload's condition, and whether it holds the GPU.
    pub(super) outcome: Truth,
    pub(super) author: Author,
    /// An action has ended the workload.
    pub(super) is_ended: bool,
}

/// State of one workload in one tick.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) place: usize,
    pub(super) outcome: Truth,
    pub(super) streak: Streak,
    /// Whether its owner holds it, so that it is not picked.
    pub(super) held: bool,
    /// Whether a step against it would be withheld.
    pub(super) withheld: bool,
}

impl Picking {
    pub(crate) fn new(pick: &Pick, when: &Condition, table: &mut ConditionTable) -> Self {
        Self {
            from: Node::of(&pick.from, table),
            idle_for: pick.idle_for,
            order: pick.order.clone(),
            wanted: wanted_free(when),
            streaks: Vec::new(),
            picked: HashMap::new(),
            given_up: BTreeSet::new(),
            passed_over: BTreeMap::new(),
            early_ends: BTreeMap::new(),
        }
    }

    /// Returns whether a candidate is picked only if no other is eligible.
    pub(super) fn comes_last(&self, seen: &Candidate, (view, uids): (&View, &SubordinateUids)) -> bool {
        let target = &view.targets[seen.place];
        let ends_early = || {
            let ends = self.early_ends.get(&subject::author(target, view, uids));
            ends.is_some_and(|(count, _)| *count >= MOST_EARLY_ENDS)
        };
        seen.withheld
            || self.passed_over.contains_key(&target.id)
            || (!self.early_ends.is_empty() && ends_early())
    }

    /// Takes note that a pick ended because of its workload.
    pub(super) fn end_early(&mut self, picked: &Picked, tick: &Tick<'_>) {
        if !picked.is_ended && !picked.progress.acted && !picked.progress.in_flight {
            let ends = self.early_ends.entry(picked.author.clone()).or_default();
            *ends = (ends.0.saturating_add(1), tick.now.boot);
        }
    }

    pub(super) fn pass_over(&mut self, id: TargetId, tick: &Tick<'_>) {
        self.passed_over.insert(id, tick.now.boot);
    }

    /// Forgets given up workloads that no longer exist. Those that were passed over are forgotten after a time, because a user can
    /// make a workload absent for one snapshot.
    pub(super) fn prune(&mut self, tick: &Tick<'_>) {
        let exists = |id: &TargetId| tick.view.targets.iter().any(|target| target.id == *id);
        self.given_up.retain(exists);
        let is_recent = |at: &Duration| tick.now.boot.saturating_sub(*at) < PASSED_OVER;
        self.passed_over.retain(|_, at| is_recent(at));
        self.early_ends.retain(|_, (_, at)| is_recent(at));
    }

    pub(crate) fn progress(&mut self, gpu: usize) -> Option<&mut Progress> {
        self.picked.get_mut(&gpu).map(|picked| &mut picked.progress)
    }

    /// Returns the progress of each match that picked this workload.
    pub(crate) fn progress_of(&mut self, subject: &TargetId) -> impl Iterator<Item = &mut Progress> {
        let picked = self.picked.values_mut().filter(move |picked| picked.target == *subject);
        picked.map(|picked| &mut picked.progress)
    }

    /// Returns the last outcome for a workload picked on a GPU, by the GPU's number.
    pub(crate) fn outcome(&self, gpu: usize, subject: &TargetId) -> Option<Truth> {
        let picked = self.picked.get(&gpu).filter(|picked| picked.target == *subject)?;
        picked.progress.in_flight.then_some(picked.outcome)
    }

    /// Returns picked workloads with a flag.
    pub(crate) fn flagged(&self) -> impl Iterator<Item = (&TargetId, crate::policy::Severity)> {
        self.picked.values().filter_map(|picked| Some((&picked.target, picked.progress.flagged?)))
    }

    /// Returns the progress of every match.
    pub(crate) fn matches_mut(&mut self) -> impl Iterator<Item = &mut Progress> {
        self.picked.values_mut().map(|picked| &mut picked.progress)
    }

    /// Resets every streak; flags stay until the next sample clears them.
    pub(crate) fn begin_again(&mut self) {
        self.streaks.clear();
        for picked in self.picked.values_mut() {
            picked.since = 0;
            picked.progress.end();
        }
    }

    /// Starts the steps against the workload that was picked on a GPU from the beginning.
    pub(super) fn start_over(&mut self, gpu: usize) {
        if let Some(picked) = self.picked.get_mut(&gpu) {
            (picked.since, picked.is_ended) = (0, true);
            picked.progress.end();
        }
    }

    pub(crate) fn forget(&mut self) {
        self.streaks.clear();
        self.picked.clear();
    }

    pub(super) fn feed(&mut self, number: usize, outcome: Truth, (missed, max_gap): (u32, u32)) -> Streak {
        if self.streaks.len() <= number {
            self.streaks.resize(number + 1, Streak::default());
        }
        let streak = &mut self.streaks[number];
        if missed > 0 {
            streak.miss(missed, max_gap);
        }
        streak.feed(outcome, max_gap);
        *streak
    }

    /// Returns the first candidate on a GPU: those against which no step is withheld first, in the rule's order.
    pub(super) fn best(
        &self,
        gpu: usize,
        seen: &[Candidate],
        (tick, uids): (&Tick<'_>, &SubordinateUids),
    ) -> Option<Candidate> {
        let view = tick.view;
        let needed = self.idle_for.samples(tick.interval);
        let place = *view.targets[gpu].gpus.first()?;
        let eligible = seen.iter().filter(|seen| {
            let target = &view.targets[seen.place];
            seen.outcome == Truth::True
                && !seen.held
                && seen.streak.count >= needed
                && target.gpus.contains(&place)
                && !self.given_up.contains(&target.id)
        });
        let shortage = self.wanted.and_then(|wanted| Some(wanted - free(view, place)?));
        let ranked = eligible.map(|seen| Ranked {
            seen: *seen,
            comes_last: self.comes_last(seen, (view, uids)),
            held: held(&view.targets[seen.place], (view, place)),
            age: youngest(&view.targets[seen.place], view),
            priority: view.priority(&view.targets[seen.place], place),
        });
        ranked.min_by(|one, other| one.compare(other, (&self.order, shortage))).map(|ranked| ranked.seen)
    }

    /// Returns whether another candidate on a GPU is eligible against which no step is withheld.
    pub(super) fn has_other(
        &self,
        (gpu, place): (usize, usize),
        seen: &[Candidate],
        (tick, uids): (&Tick<'_>, &SubordinateUids),
    ) -> bool {
        let is_other =
            |other: &&Candidate| other.place != place && !self.comes_last(other, (tick.view, uids));
        let others = seen.iter().filter(is_other).copied();
        self.best(gpu, &others.collect::<Vec<_>>(), (tick, uids)).is_some()
    }
}

/// A candidate with the values that orders compare.
struct Ranked {
    seen: Candidate,
    comes_last: bool,
    /// Bytes held on this GPU.
    held: u64,
    /// Milliseconds since its youngest process started.
    age: u128,
    /// Priority of its lease for the GPU; 0 without a lease, `None` if unknown.
    priority: Option<i32>,
}

impl Ranked {
    fn compare(&self, other: &Self, (order, shortage): (&[Order], Option<f64>)) -> Ordering {
        let by = |order: &Order| match order {
            // An unknown priority may be the highest one.
            Order::LowestPriority => {
                (self.priority.is_none(), self.priority).cmp(&(other.priority.is_none(), other.priority))
            }
            Order::SmallestSufficient => self.sufficiency(shortage).cmp(&other.sufficiency(shortage)),
            Order::LongestIdle => other.seen.streak.count.cmp(&self.seen.streak.count),
            Order::Largest => other.held.cmp(&self.held),
            Order::Youngest => self.age.cmp(&other.age),
        };
        let by_order = || order.iter().map(by).find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal);
        self.comes_last.cmp(&other.comes_last).then_with(by_order)
    }

    /// Candidates that hold enough come first, smallest first; then the others, largest first.
    fn sufficiency(&self, shortage: Option<f64>) -> (bool, u64, Reverse<u64>) {
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
        let enough = shortage.is_none_or(|shortage| self.held as f64 >= shortage);
        if enough { (false, self.held, Reverse(0)) } else { (true, 0, Reverse(self.held)) }
    }
}

/// Returns whether a target holds memory on a GPU; both are places in the view.
pub(super) fn holds(target: usize, gpu: usize, view: &View) -> Truth {
    let gpu = &view.targets[gpu];
    if view.targets[target].gpus.iter().any(|held| gpu.gpus.contains(held)) {
        return Truth::True;
    }
    let lists_holders = |gpu: &bailiff_snapshot::wire::Gpu| gpu.fault.is_none() && gpu.listed.is_some();
    if view.gpu_of(gpu).is_some_and(lists_holders) { Truth::False } else { Truth::Unknown }
}

fn held(target: &Target, (view, gpu): (&View, usize)) -> u64 {
    let on_it = |gpu_held: &&bailiff_snapshot::wire::Gpu| {
        view.snapshot.gpus.get(gpu).is_some_and(|gpu| gpu.index == gpu_held.index)
    };
    let holdings = view.holdings(target).filter(|(gpu, _)| on_it(gpu));
    holdings.filter_map(|(_, holder)| holder.memory).fold(0, u64::saturating_add)
}

fn youngest(target: &Target, view: &View) -> u128 {
    let ages = view.processes(target).filter_map(|process| view.age(process));
    ages.min().map_or(0, |age| age.as_millis())
}

#[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
fn free(view: &View, gpu: usize) -> Option<f64> {
    view.snapshot.gpus.get(gpu)?.memory.as_ref().map(|memory| memory.free as f64)
}

/// Returns the limit of the first comparison of `vram_free` in a condition.
fn wanted_free(when: &Condition) -> Option<f64> {
    match when {
        Condition::Leaf(leaf) if leaf.attribute.name == "vram_free" => match leaf.test {
            Test::Within(bounds) => bounds.below.or(bounds.max),
            _ => None,
        },
        Condition::All(conditions) | Condition::Any(conditions) => conditions.iter().find_map(wanted_free),
        _ => None,
    }
}
