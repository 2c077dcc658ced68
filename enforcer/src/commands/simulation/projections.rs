//! Follows targets that would have been ended: how long they continued to run, what they held, and whether they
//! became busy again.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bailiff_snapshot::ProcessKey;

use super::report::{At, Freed, ProjectedAction, Regret};
use bailiff_engine::value::Value;
use bailiff_engine::verdict::Subject;
use bailiff_engine::view::{Health, TargetId, View};

/// A target that becomes busy within this time counts as a regret.
const SOON: Duration = Duration::from_mins(30);
/// A higher utilization counts as busy.
const BUSY: f64 = 0.01;

/// All actions and their targets.
#[derive(Debug, Default)]
pub(super) struct Projections {
    pub(super) actions: Vec<Done>,
    /// Processes that would have been ended and still run.
    alive: HashMap<ProcessKey, ProjectedEnd>,
    /// Actions whose target may become busy soon.
    watched: Vec<usize>,
    freed: HashMap<Scope, Sum>,
    boot: Option<String>,
}

/// An action with its owner.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) rule: usize,
    pub(super) projection: ProjectedAction,
    pub(super) owner: String,
    /// Whether this is the first action that would have ended the target.
    pub(super) first: bool,
    target: TargetId,
    alive: usize,
}

#[derive(Debug, Default)]
struct ProjectedEnd {
    actions: Vec<usize>,
    /// Time at which the process was last observed, in milliseconds.
    last: Option<u64>,
}

/// Key of freed memory-time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Scope {
    All,
    Rule(usize),
    Owner(String),
    ProjectedAction(usize),
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    gpu_ms: u64,
    byte_ms: u128,
}

impl Projections {
    /// Adds an action on a subject.
    pub(super) fn add(&mut self, (rule, projection): (usize, ProjectedAction), subject: &Subject, now: u64) {
        let keys: BTreeSet<ProcessKey> =
            subject.members.iter().filter(|member| member.holds).filter_map(|member| member.key).collect();
        let ends = projection.action == "terminate" && !projection.again;
        let known = !keys.is_empty() && keys.iter().all(|key| self.alive.contains_key(key));
        let first = ends && !known;
        let place = self.actions.len();
        if ends {
            self.watched.push(place);
            for key in &keys {
                let projected_ends = self.alive.entry(*key).or_default();
                projected_ends.actions.push(place);
                projected_ends.last.get_or_insert(now);
            }
        }
        let owner = subject.user.clone().or_else(|| subject.uid.map(|uid| uid.to_string()));
        self.actions.push(Done {
            rule,
            projection,
            owner: owner.unwrap_or_else(|| "unknown".to_owned()),
            first,
            target: subject.id.clone(),
            alive: keys.len(),
        });
    }

    /// Updates all targets from a view.
    pub(super) fn follow(&mut self, view: &View) {
        let now = view.snapshot.boot_ms;
        if self.boot != view.snapshot.boot_id {
            self.boot.clone_from(&view.snapshot.boot_id);
            self.alive.clear();
            self.watched.clear();
        }
        if !self.alive.is_empty() {
            self.sum_up(view, now);
            self.bury(view, now);
        }
        self.regret(view);
    }

    fn sum_up(&mut self, view: &View, now: u64) {
        let mut gpus: HashMap<(Scope, usize), u64> = HashMap::new();
        for (place, process) in view.snapshot.processes.iter().enumerate() {
            let Some(projected_ends) = process.key().and_then(|key| self.alive.get_mut(&key)) else {
                continue;
            };
            let passed = projected_ends.last.map_or(0, |last| now.saturating_sub(last));
            projected_ends.last = Some(now);
            let mut scopes = BTreeSet::from([Scope::All]);
            for projection in &projected_ends.actions {
                let done = &self.actions[*projection];
                scopes.extend([
                    Scope::ProjectedAction(*projection),
                    Scope::Rule(done.rule),
                    Scope::Owner(done.owner.clone()),
                ]);
            }
            for (gpu, holder) in view.holdings_of(place) {
                let gpu = view.snapshot.gpus.iter().position(|other| std::ptr::eq(other, gpu));
                for scope in &scopes {
                    let longest = gpus.entry((scope.clone(), gpu.unwrap_or_default())).or_default();
                    *longest = passed.max(*longest);
                    let held = u128::from(holder.memory.unwrap_or_default());
                    self.freed.entry(scope.clone()).or_default().byte_ms += held * u128::from(passed);
                }
            }
        }
        for ((scope, _), passed) in gpus {
            self.freed.entry(scope).or_default().gpu_ms += passed;
        }
    }

    /// Marks processes as exited that healthy sources no longer list.
    fn bury(&mut self, view: &View, now: u64) {
        let well = [view.source("nvml"), view.source("proc")].iter().all(|source| *source == Health::Well);
        if !well || view.blind() {
            return;
        }
        let at = At(view.snapshot.wall_ms);
        let actions = &mut self.actions;
        self.alive.retain(|_, projected_ends| {
            if projected_ends.last == Some(now) {
                return true;
            }
            for projection in &projected_ends.actions {
                let done = &mut actions[*projection];
                done.alive = done.alive.saturating_sub(1);
                if done.alive == 0 {
                    done.projection.ended = Some(at);
                }
            }
            false
        });
    }

    fn regret(&mut self, view: &View) {
        let actions = &mut self.actions;
        let now = view.snapshot.wall_ms;
        self.watched.retain(|place| {
            let done = &mut actions[*place];
            let passed = now.saturating_sub(done.projection.at.0);
            if Duration::from_millis(passed) > SOON {
                return false;
            }
            let Some(target) = view.targets.iter().find(|target| target.id == done.target) else {
                return true;
            };
            match view.most(target, |holder| holder.utilization.map(|percent| f64::from(percent) / 100.0)) {
                Value::Number(gpu_util) | Value::AtLeast(gpu_util) if gpu_util > BUSY => {
                    done.projection.regret = Some(Regret { after_seconds: passed / 1000, gpu_util });
                    false
                }
                _ => true,
            }
        });
    }

    /// Returns the memory that would have been free.
    pub(super) fn freed(&self, scope: &Scope) -> Freed {
        const HOUR_MS: f64 = 3_600_000.0;
        const GIB: f64 = 1_073_741_824.0;
        let sum = self.freed.get(scope).copied().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "hours with a few digits")]
        Freed { gpu_hours: sum.gpu_ms as f64 / HOUR_MS, gib_hours: sum.byte_ms as f64 / HOUR_MS / GIB }
    }
}
