//! The oracle. It keeps every past outcome, and computes at each tick what the specification allows and requires. It
//! does not use the engine's code, and adopts the engine's verdicts only after checking them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bailiff_engine::Kind;
use bailiff_engine::engine::{Now, Skip};
use bailiff_engine::policy::{Action, Limits, Mode, Severity};
use bailiff_engine::verdict::{Hold, Outcome, Verdict, What};
use bailiff_engine::view::View;
use bailiff_snapshot::{Fault, PidNamespace, Truth, Word};

use crate::observed::{self, Coverage, ObservedTarget, Traces};
use crate::plan::{Plan, RulePlan, samples};
use crate::track::{Found, Mark, MatchState, Track, absent, count, is_gone};

macro_rules! ensure {
    ($holds:expr, $($format:tt)+) => {
        if !$holds {
            return Err(format!($($format)+));
        }
    };
}
pub(crate) use ensure;

pub(crate) type Checked = Result<(), String>;

const HOUR: i128 = 3_600_000;

#[derive(Debug, Clone)]
struct Requested {
    id: u64,
    condition: Arc<str>,
    target: String,
    match_of: u64,
    boot: Option<String>,
    boot_ms: u64,
    wall_ms: u64,
    uid: Option<u32>,
    gpus: Vec<String>,
    memory: Option<u64>,
    pids: Vec<u32>,
    mode: Mode,
    /// Whether it was the rule's last step and ends its target.
    is_last: bool,
    outcome: Option<Outcome>,
    /// Whether at some tick, according to one of the clocks, the action had begun at least an hour before.
    past: bool,
}

impl Requested {
    /// Returns how much memory the action freed.
    fn freed(&self) -> Option<u64> {
        if self.outcome.is_some_and(Outcome::failure) { Some(0) } else { self.memory }
    }

    /// Returns whether the action was performed or may have been performed.
    fn counts(&self) -> bool {
        use Outcome::{Cancelled, DryRun, Gone, IdentityChanged, Refused, Reprieved};
        self.mode == Mode::Enforce
            && !matches!(
                self.outcome,
                Some(Cancelled | Gone | IdentityChanged | Refused | Reprieved | DryRun)
            )
    }
}

/// Failed actions against one user: in a row, and since the last resume.
#[derive(Debug, Clone, Default)]
struct Failures {
    surely: u32,
    perhaps: u32,
    last: Option<(Now, Option<String>)>,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
pub(crate) struct Oracle {
    plan: Plan,
    cap: Mode,
    last: Option<(Option<String>, u64)>,
    interval: Option<u64>,
    tick: u64,
    since_start: u32,
    since_reload: u32,
    tracks: BTreeMap<(Arc<str>, String), Track>,
    /// Outcomes of `from` for workloads, for rules with `pick`.
    picks: BTreeMap<(Arc<str>, String), Track>,
    /// Completed steps of rules with `pick`: rule, step, target, tick.
    picked: Vec<(Arc<str>, usize, String, u64)>,
    requests: Vec<Requested>,
    in_flight: Option<u64>,
    /// Time since boot at which the last action was decided.
    decided_ms: Option<u64>,
    failures: BTreeMap<Option<u32>, Failures>,
    mass_open: bool,
    mass_possible: bool,
    mass_seen: bool,
    /// Time at which a process was last observed busy.
    busy_ms: Option<u64>,
    unknown_possible: bool,
    /// Whether the driver or a GPU did not respond in the last sample, and in two consecutive samples after an action.
    hung: bool,
    hang_possible: bool,
    /// Users against whom actions failed.
    failed: BTreeMap<String, Traces>,
    /// Targets of failed actions, also before the last resume.
    ever_failed: BTreeSet<String>,
    /// Actions that had been decided, and perhaps started, at a restart.
    begun: Vec<String>,
    paused: bool,
    /// Time and boot at which the pause began, and its duration in milliseconds. `None` if the pause lasts until a
    /// resume.
    pause: Option<(Now, Option<String>, u64)>,
    outside: BTreeSet<Hold>,
    matches: u64,
    match_numbers: BTreeMap<(Arc<str>, String), u64>,
    /// Targets that were certainly eligible at the previous tick and not held.
    waiting: Option<BTreeSet<(Arc<str>, String)>>,
    pub(crate) acts: u64,
    pub(crate) enforced: u64,
    pub(crate) flags: u64,
}

impl Oracle {
    pub(crate) fn new(plan: Plan, cap: Mode) -> Self {
        Self {
            plan,
            cap,
            last: None,
            interval: None,
            tick: 0,
            since_start: 0,
            since_reload: u32::MAX,
            tracks: BTreeMap::new(),
            picks: BTreeMap::new(),
            picked: Vec::new(),
            requests: Vec::new(),
            in_flight: None,
            decided_ms: None,
            failures: BTreeMap::new(),
            mass_open: false,
            mass_possible: false,
            mass_seen: false,
            busy_ms: None,
            unknown_possible: false,
            hung: false,
            hang_possible: false,
            failed: BTreeMap::new(),
            ever_failed: BTreeSet::new(),
            begun: Vec::new(),
            paused: false,
            pause: None,
            outside: BTreeSet::new(),
            matches: 0,
            match_numbers: BTreeMap::new(),
            waiting: None,
            acts: 0,
            enforced: 0,
            flags: 0,
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    fn mode(&self, rule: &RulePlan) -> Mode {
        rule.mode.min(self.cap)
    }

    // Events of the engine.

    pub(crate) fn hold(&mut self, hold: Hold, holds: bool) {
        if holds {
            self.outside.insert(hold);
        } else {
            self.outside.remove(&hold);
        }
        self.waiting = None;
    }

    pub(crate) fn pause(&mut self, now: Now, ms: Option<u64>) {
        let boot = self.last.as_ref().and_then(|(boot, _)| boot.clone());
        (self.paused, self.pause) = (true, ms.map(|ms| (now, boot, ms)));
        self.waiting = None;
    }

    pub(crate) fn resume(&mut self) {
        (self.paused, self.pause) = (false, None);
        self.failures.clear();
        // A resume acknowledges the matches. The breaker opens again only after their number has decreased.
        self.mass_seen |= self.mass_possible;
        (self.mass_open, self.mass_possible, self.unknown_possible) = (false, false, false);
        self.hang_possible = false;
        self.failed.clear();
        self.waiting = None;
    }

    pub(crate) fn reported(&mut self, id: u64, outcome: Outcome) {
        if self.in_flight != Some(id) {
            return;
        }
        self.in_flight = None;
        self.waiting = None;
        let request = self.requests.iter_mut().find(|request| request.id == id).unwrap();
        request.outcome = Some(outcome);
        let undone = matches!(
            outcome,
            Outcome::Cancelled
                | Outcome::Gone
                | Outcome::IdentityChanged
                | Outcome::Refused
                | Outcome::Reprieved
        );
        if matches!(outcome, Outcome::GoneNotReleased | Outcome::Unkillable | Outcome::Failed) {
            let failures = self.failures.entry(request.uid).or_default();
            (failures.surely, failures.perhaps) = (failures.surely + 1, failures.perhaps + 1);
            failures.last = None;
            self.failed.insert(
                request.target.clone(),
                Traces { gpus: request.gpus.clone(), pids: request.pids.clone() },
            );
            self.ever_failed.insert(request.target.clone());
        } else {
            self.failures.entry(request.uid).or_default().surely = 0;
        }
        let is_over = request.is_last
            && (!undone || outcome == Outcome::Gone)
            && !outcome.failure()
            && request.mode == Mode::Enforce;
        let (target, condition) = (request.target.clone(), request.condition.clone());
        for ((of, id), track) in &mut self.tracks {
            if undone && *id == target {
                track.state.again = true;
                track.state.without_effect += 1;
            }
            // The target was ended; if it still exists, its match starts over. After a restart of the engine, that is uncertain.
            if is_over && track.state.acted && !track.state.fuzzy && *id == target && *of == condition {
                track.put(Mark::Reset, 0);
                track.state = MatchState { flagged: track.state.flagged, ..MatchState::default() };
            }
        }
    }

    pub(crate) fn reload(&mut self, plan: Plan, cap: Mode) {
        let before = std::mem::replace(&mut self.plan, plan);
        let cap_before = std::mem::replace(&mut self.cap, cap);
        let mut kept: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        for rule in &self.plan.rules {
            let condition = rule.condition.clone();
            let Some(old) = before.rules.iter().find(|old| old.condition == condition) else { continue };
            let armed = old.mode.min(cap_before) == Mode::DryRun && self.mode(rule) == Mode::Enforce;
            if !armed {
                let same = RulePlan { name: String::new(), ..RulePlan::clone(old) }
                    == RulePlan { name: String::new(), ..RulePlan::clone(rule) }
                    && cap == cap_before;
                kept.insert(condition, same);
            }
        }
        for tracks in [&mut self.tracks, &mut self.picks] {
            tracks.retain(|(condition, _), _| kept.contains_key(condition));
            for ((condition, _), track) in tracks.iter_mut() {
                track.state.fuzzy |= !kept[condition];
                (track.state.due, track.state.withheld) = (None, None);
            }
        }
        self.since_reload = 0;
        self.waiting = None;
    }

    pub(crate) fn restarted(&mut self) {
        // Decided actions may have started before the restart, and count as performed.
        let decided = self.tracks.iter().chain(&self.picks).filter_map(|((_, id), track)| {
            track.state.due.filter(|(tick, _)| *tick == self.tick).map(|_| id.clone())
        });
        self.begun.extend(decided);
        self.since_start = 0;
        self.since_reload = u32::MAX;
        (self.in_flight, self.decided_ms) = (None, None);
        self.outside.clear();
        for track in self.tracks.values_mut().chain(self.picks.values_mut()) {
            (track.state.due, track.state.withheld) = (None, None);
            track.state.fuzzy |= track.state.acted;
            track.state.again |= track.state.acted;
        }
        self.waiting = None;
    }

    // Inputs of the engine.

    /// Returns the number of missed intervals, or why a snapshot is skipped.
    fn admit(&mut self, now: Now, view: &View) -> Result<u32, Skip> {
        let snapshot = &view.snapshot;
        if snapshot.interval_ms == 0 {
            return Err(Skip::NoInterval);
        }
        let now_ms = u64::try_from(now.boot.as_millis()).unwrap();
        if snapshot.boot_ms > now_ms {
            return Err(Skip::Future);
        }
        let same_boot = match &self.last {
            Some((boot, _)) => boot.is_some() && *boot == snapshot.boot_id,
            None => false,
        };
        if !same_boot {
            self.tracks.clear();
            self.picks.clear();
            self.failed.clear();
            self.decided_ms = None;
        }
        let mut missed = 0;
        if let (true, Some((_, last))) = (same_boot, &self.last) {
            if snapshot.boot_ms <= *last {
                return Err(Skip::Duplicate);
            }
            let intervals = (snapshot.boot_ms - last + snapshot.interval_ms / 2) / snapshot.interval_ms;
            missed = u32::try_from(intervals.saturating_sub(1)).unwrap_or(u32::MAX);
        }
        if now_ms - snapshot.boot_ms > 2 * snapshot.interval_ms {
            return Err(Skip::Stale);
        }
        self.last = Some((snapshot.boot_id.clone(), snapshot.boot_ms));
        Ok(missed)
    }

    /// Checks the engine's result for a snapshot.
    pub(crate) fn check_tick(
        &mut self,
        now: Now,
        view: &View,
        result: &Result<Vec<Verdict>, Skip>,
    ) -> Checked {
        let missed = match self.admit(now, view) {
            Ok(missed) => missed,
            Err(skip) => {
                ensure!(result.as_ref() == Err(&skip), "{skip:?} expected, not {result:?}");
                return Ok(());
            }
        };
        let Ok(verdicts) = result else { return Err(format!("{result:?}, not verdicts")) };
        self.tick += 1;
        self.since_start += 1;
        self.since_reload = self.since_reload.saturating_add(1);
        let timeout = |fault: &Option<Word<Fault>>| fault.as_deref() == Some("timeout");
        let hung = timeout(&view.snapshot.sources["nvml"].fault)
            || view.snapshot.gpus.iter().any(|gpu| timeout(&gpu.fault));
        let acted = !self.requests.is_empty() || !self.begun.is_empty();
        self.hang_possible |= acted && hung && self.hung;
        self.hung = hung;
        let interval = view.snapshot.interval_ms;
        if self.interval.replace(interval).is_some_and(|before| before != interval) {
            // Samples with different intervals cannot be added.
            for track in self.tracks.values_mut().chain(self.picks.values_mut()) {
                track.put(Mark::Reset, 0);
                track.state = MatchState { flagged: track.state.flagged, ..MatchState::default() };
            }
            self.waiting = None;
        }
        let wall = u64::try_from(now.wall.as_millis()).unwrap();
        self.end_pause(now, view);
        self.forget_failures(now, view);
        let sight = Coverage::new(view);
        let found = self.find(&sight, missed, wall);
        self.failed.retain(|id, traces| {
            let there = [Kind::Process, Kind::Workload].into_iter().find_map(|kind| sight.find(kind, id));
            if let Some(there) = there {
                *traces = there.traces();
            }
            there.is_some() || !is_gone(traces, view)
        });
        self.breakers(&sight, &found);
        let context = EvalContext { now, view, sight: &sight, found: &found, verdicts };
        let late = self.is_late(view);
        for request in &mut self.requests {
            request.past |= context.since(request) >= HOUR;
        }
        self.quiet_steps(&context)?;
        self.picked_steps(&context)?;
        self.requests(&context, missed)?;
        self.check_missing_actions(&context, missed > 0 || late)
    }

    /// Ends a pause that is over. The wall clock may be stepped, so within a boot the time since boot is used.
    fn end_pause(&mut self, now: Now, view: &View) {
        let over = |(since, boot, ms): &mut (Now, Option<String>, u64)| {
            let same = boot.is_some() && *boot == view.snapshot.boot_id;
            let passed =
                if same { now.boot.checked_sub(since.boot) } else { now.wall.checked_sub(since.wall) };
            passed.unwrap_or_default().as_millis() >= u128::from(*ms)
        };
        if self.pause.take_if(over).is_some() {
            self.paused = false;
        }
    }

    /// Resets users without failures for the time `breaker_reset`.
    fn forget_failures(&mut self, now: Now, view: &View) {
        let boot = &view.snapshot.boot_id;
        let reset = self.plan.limits.breaker_reset;
        self.failures.retain(|_, failures| {
            let (last, of) = failures.last.get_or_insert_with(|| (now, boot.clone()));
            let same = of.is_some() && of == boot;
            let clean = if same { now.boot.checked_sub(last.boot) } else { now.wall.checked_sub(last.wall) };
            failures.surely < 3 || clean.unwrap_or_default() < reset
        });
    }

    /// Returns whether three actions in a row against this user have failed.
    fn failing(&self, uid: Option<u32>) -> bool {
        self.failures.get(&uid).is_some_and(|failures| failures.surely >= 3)
    }

    /// Returns whether this many actions in a row have failed against at least two users.
    fn all_failing(&self) -> bool {
        self.failures.values().filter(|failures| failures.surely >= 3).count() >= 2
    }

    /// Updates every track, and returns what was found for each target.
    fn find(&mut self, sight: &Coverage<'_>, missed: u32, wall: u64) -> BTreeMap<(Arc<str>, String), Found> {
        let mut found = BTreeMap::new();
        let view = sight.view;
        let rules = self.plan.rules.clone();
        for rule in &rules {
            let condition = rule.condition.clone();
            let targets = sight.of(rule.target);
            let present: BTreeSet<&str> = targets.iter().map(|target| target.id.as_str()).collect();
            absent(&mut self.tracks, rule, (&present, missed), view);
            for target in targets {
                let protected = target.protected(&self.plan);
                let outcome = gates(rule, target, (protected, wall));
                let track = self.tracks.entry((condition.clone(), target.id.clone())).or_default();
                track.feed(outcome, (missed, rule.max_gap), target.traces());
                let count = count(track);
                if outcome == Truth::Unknown || missed > 0 {
                    self.unknown_possible = true;
                }
                found.insert(
                    (condition.clone(), target.id.clone()),
                    Found {
                        outcome,
                        count,
                        needed: samples(rule.span, view.snapshot.interval_ms),
                        interval: view.snapshot.interval_ms,
                        protected,
                        workload: target
                            .processes
                            .first()
                            .and_then(|it| observed::workload(it))
                            .map(str::to_owned),
                    },
                );
            }
            if let Some((from, ..)) = &rule.pick {
                let workloads = sight.of(Kind::Workload);
                let present: BTreeSet<&str> = workloads.iter().map(|target| target.id.as_str()).collect();
                absent(&mut self.picks, rule, (&present, missed), view);
                for target in workloads {
                    let track = self.picks.entry((condition.clone(), target.id.clone())).or_default();
                    track.feed(target.evaluate(from), (missed, rule.max_gap), target.traces());
                    let streak = count(track);
                    if streak == 0 || streak == 1 && track.now() == Truth::True {
                        track.began = self.tick;
                    }
                }
            }
        }
        found
    }

    /// Returns whether no holder was busy in the time that any rule considers.
    fn none_busy(&mut self, sight: &Coverage<'_>) -> bool {
        let snapshot = &sight.view.snapshot;
        let mut holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
        if holders.any(|holder| holder.utilization > Some(0)) {
            self.busy_ms = Some(snapshot.boot_ms);
        }
        let ago = self.busy_ms.map(|at| snapshot.boot_ms.saturating_sub(at));
        let interval = snapshot.interval_ms;
        let longest = self.plan.rules.iter().map(|rule| u64::from(samples(rule.span, interval))).max();
        ago.is_none_or(|ago| ago > longest.unwrap_or_default() * interval)
    }

    fn breakers(&mut self, sight: &Coverage<'_>, found: &BTreeMap<(Arc<str>, String), Found>) {
        let processes = &sight.view.snapshot.processes;
        let loose = processes.iter().filter(|process| observed::workload(process).is_none()).count();
        let workloads = sight.of(Kind::Workload).len();
        let picks = self.plan.rules.iter().any(|rule| rule.destructive() && rule.pick.is_some());
        let (mut surely, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
        for rule in self.plan.rules.iter().filter(|rule| rule.destructive()) {
            let condition = rule.condition.clone();
            for ((of, id), it) in found.iter().filter(|((of, _), _)| *of == condition) {
                let matches = it.outcome == Truth::True && it.count >= it.needed;
                if !matches {
                    continue;
                }
                perhaps.insert(it.workload.clone().unwrap_or_else(|| format!("{of} {id}")));
                if rule.pick.is_some() {
                    perhaps.extend(sight.of(Kind::Workload).iter().map(|target| target.id.clone()));
                }
                let counted = self.mode(rule) == Mode::Enforce
                    && it.protected == Truth::False
                    && rule.target != Kind::Gpu;
                if let (true, Some(workload)) = (counted, &it.workload) {
                    surely.insert(workload.clone());
                }
            }
        }
        let Limits { mass_share, mass_min, .. } = self.plan.limits;
        let number = |count: usize| f64::from(u32::try_from(count).unwrap());
        let reached = |some: usize, all: usize| some > 0 && number(some) / number(all) >= mass_share;
        let none_busy = self.none_busy(sight);
        let owners = |matching: &dyn Fn(&str) -> bool| {
            let all = sight.of(Kind::Workload).iter().filter(|it| it.protected(&self.plan) == Truth::False);
            let those = all.filter(|it| matching(&it.id["workload:".len()..]));
            those.map(ObservedTarget::uid).collect::<BTreeSet<_>>().len()
        };
        // One user cannot open it while other users have workloads.
        let users = owners(&|_| true);
        let by_users = |matching: usize| matching >= users.min(2);
        let possible = workloads + loose >= mass_min as usize
            && reached(perhaps.len(), workloads.max(1))
            && (picks || by_users(owners(&|name| perhaps.contains(name))));
        self.mass_seen &= possible;
        self.mass_open |= !self.mass_seen
            && none_busy
            && workloads >= mass_min as usize
            && reached(surely.len(), workloads + loose)
            && by_users(owners(&|name| surely.contains(name)));
        self.mass_possible |= possible;
    }

    /// Returns the hold on all destructive actions, if any.
    fn held(&self, view: &View) -> Option<Hold> {
        if self.paused {
            Some(Hold::Paused)
        } else if self.since_start <= 3 {
            Some(Hold::Started)
        } else if self.since_reload <= 2 {
            Some(Hold::Reloaded)
        } else if self.plan.interval.is_some_and(|interval| interval != view.snapshot.interval_ms) {
            Some(Hold::OtherInterval)
        } else if view.snapshot.pid_namespace != PidNamespace::Host || view.snapshot.boot_id.is_none() {
            Some(Hold::Untrusted)
        } else if let Some(hold) = self.outside.first() {
            Some(*hold)
        } else if self.mass_open {
            Some(Hold::MassBreaker)
        } else if self.all_failing() {
            Some(Hold::FailureBreaker)
        } else {
            None
        }
    }

    /// Checks flags and notifications, and how they end.
    fn quiet_steps(&mut self, context: &EvalContext<'_>) -> Checked {
        let rules = self.plan.rules.clone();
        for rule in rules.iter().filter(|rule| rule.pick.is_none()) {
            let condition = rule.condition.clone();
            for ((_, id), found) in context.found.iter().filter(|((of, _), _)| *of == condition) {
                let key = (condition.clone(), id.clone());
                let track = self.tracks.get_mut(&key).unwrap();
                let format: Vec<&What> = context.about(&rule.name, id).map(|verdict| &verdict.what).collect();
                self.flags += track.check_quiet(rule, found, &format).map_err(|error| {
                    format!(
                        "{} about {id}: {error}; streak {} of {}; {:?}; {format:?}",
                        rule.name, found.count, found.needed, track.marks
                    )
                })?;
                if std::mem::take(&mut track.state.begins) {
                    self.matches += 1;
                    self.match_numbers.insert(key, self.matches);
                }
            }
        }
        for verdict in context.verdicts {
            let rule = rules.iter().find(|rule| *rule.name == *verdict.rule);
            let Some(rule) = rule else { return Err(format!("no such rule: {verdict:?}")) };
            ensure!(verdict.mode == self.mode(rule), "the mode differs from the rule's: {verdict:?}");
            let present =
                context.found.contains_key(&(rule.condition.clone(), verdict.subject.id.to_string()));
            let late = matches!(verdict.what, What::Clear(_) | What::Reprieved(_));
            ensure!(
                present || late || rule.pick.is_some(),
                "the verdict is about an absent target: {verdict:?}"
            );
        }
        Ok(())
    }

    /// Checks the targets of rules with `pick`.
    fn picked_steps(&mut self, context: &EvalContext<'_>) -> Checked {
        let rules = self.plan.rules.clone();
        for verdict in context.verdicts {
            let Some(rule) = rules.iter().find(|rule| *rule.name == *verdict.rule) else { continue };
            let Some(action) = action_of(&verdict.what) else { continue };
            let Some((_, idle_for, _)) = &rule.pick else { continue };
            let confirmed = u32::from(matches!(verdict.what, What::Act(..)));
            let id = verdict.subject.id.to_string();
            let condition = rule.condition.clone();
            let pick = self.picks.get(&(condition.clone(), id.clone()));
            let Some(step) = rule.steps.iter().position(|step| step.action == action) else {
                // A flag follows several decisions without effect.
                let is_extra = action == Action::Flag(Severity::Warning);
                ensure!(is_extra && pick.is_some_and(|pick| pick.state.warned), "no such step: {verdict:?}");
                continue;
            };
            let Some(pick) = pick else { return Err(format!("picked an absent target: {verdict:?}")) };
            let idle = count(pick);
            ensure!(pick.now() == Truth::True, "picked, and `from` is {:?}: {verdict:?}", pick.now());
            ensure!(idle >= idle_for + confirmed, "idle {idle} of {idle_for}: {:?}: {verdict:?}", pick.marks);
            let interval = context.view.snapshot.interval_ms;
            let due = samples(rule.span, interval) + samples(rule.steps[step].after, interval) + confirmed;
            let long_enough = |uuid: &String| {
                let gpu = context.found.get(&(condition.clone(), format!("gpu:{uuid}")));
                gpu.is_some_and(|gpu| gpu.outcome == Truth::True && gpu.count >= due)
            };
            ensure!(
                pick.traces.gpus.iter().any(long_enough),
                "no GPU of the target has matched for long enough: {verdict:?}"
            );
            let completed = |before: usize| {
                self.picked.iter().any(|(name, step, target_id, tick)| {
                    *name == condition && *step == before && *target_id == id && *tick >= pick.began
                })
            };
            let fuzzy = pick.state.fuzzy;
            ensure!(
                fuzzy || (0..step).all(completed),
                "an earlier step was skipped for this target: {:?}: {verdict:?}",
                self.picked
            );
            if !matches!(verdict.what, What::Due(_)) {
                self.picked.push((condition, step, id, self.tick));
            }
        }
        Ok(())
    }

    fn requests(&mut self, context: &EvalContext<'_>, missed: u32) -> Checked {
        let held = self.held(context.view);
        // A late snapshot does not confirm an action, and a budget that is not yet on the disk delays it. The decision
        // then waits for the next snapshot.
        let late = self.is_late(context.view);
        let disk =
            held == Some(Hold::State) && self.outside.len() == 1 && !self.mass_open && !self.all_failing();
        let counted: BTreeSet<Arc<str>> = self
            .plan
            .rules
            .iter()
            .filter(|rule| disk && self.mode(rule) == Mode::Enforce)
            .map(|rule| rule.condition.clone())
            .collect();
        let tracks = self.tracks.iter_mut().chain(&mut self.picks);
        let waits = |condition: &Arc<str>| missed == 0 && (late || counted.contains(condition));
        for (_, track) in tracks.filter(|((condition, _), _)| waits(condition)) {
            let due = track.state.due.filter(|(tick, _)| *tick + 1 == self.tick);
            track.state.due = due.map(|(_, step)| (self.tick, step)).or(track.state.due);
        }
        let acts = context.verdicts.iter().filter(|verdict| matches!(verdict.what, What::Act(..))).count();
        ensure!(acts <= 1, "{acts} actions in one tick");
        ensure!(missed == 0 || acts == 0, "confirmed over {missed} missed snapshots: {:?}", context.verdicts);
        for verdict in context.verdicts {
            match &verdict.what {
                What::Due(_) => {
                    ensure!(
                        held.is_none() || verdict.mode == Mode::DryRun,
                        "decided under {held:?}: {verdict:?}"
                    );
                    self.check_request(verdict, context, 0)?;
                    self.decided_ms = u64::try_from(context.now.boot.as_millis()).ok();
                }
                What::Act(id, _) => {
                    ensure!(
                        held.is_none() || verdict.mode == Mode::DryRun,
                        "done under {held:?}: {verdict:?}"
                    );
                    ensure!(self.in_flight.is_none(), "two actions are in flight: {verdict:?}");
                    ensure!(!self.is_late(context.view), "confirmed by an earlier sample: {verdict:?}");
                    ensure!(
                        self.requests.iter().all(|request| request.id < *id),
                        "an id was used twice: {verdict:?}"
                    );
                    self.check_request(verdict, context, 1)?;
                    self.begin(verdict, *id, context);
                }
                What::Withheld(_, hold) => self.check_withheld(verdict, *hold, context)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether the sample was taken before the last decision.
    fn is_late(&self, view: &View) -> bool {
        self.decided_ms.is_some_and(|decided| view.snapshot.boot_ms <= decided)
    }

    /// Checks that an action is due and that it is not held.
    fn check_request(&mut self, verdict: &Verdict, context: &EvalContext<'_>, confirmed: u32) -> Checked {
        let rule = self.plan.rules.iter().find(|rule| *rule.name == *verdict.rule).unwrap().clone();
        let id = verdict.subject.id.to_string();
        let (What::Due(action) | What::Act(_, action)) = &verdict.what else { unreachable!("an action") };
        ensure!(action.destructive(), "{verdict:?}");
        let kind = if rule.pick.is_some() { Kind::Workload } else { rule.target };
        let Some(target) = context.sight.find(kind, &id) else {
            return Err(format!("against an absent target: {verdict:?}"));
        };
        ensure!(
            verdict.mode == Mode::DryRun || !self.failing(target.charged()),
            "three actions against this user have failed: {verdict:?}"
        );
        let protected = target.protected(&self.plan);
        ensure!(protected == Truth::False, "protected ({protected:?}): {verdict:?}");
        let young = !rule.grace.is_zero()
            && target.youngest_ms().is_none_or(|age| u128::from(age) < rule.grace.as_millis());
        ensure!(!young, "young: {verdict:?}");
        ensure!(
            verdict.subject.members.iter().all(|member| member.key.is_some()),
            "not confirmed: {verdict:?}"
        );
        ensure!(verdict.mode == Mode::DryRun || !self.failed.contains_key(&id), "failed before: {verdict:?}");
        self.check_budgets(verdict, target)?;
        self.check_cooldown(&rule, &id, context)?;
        let step = rule.steps.iter().position(|step| step.action == *action);
        let Some(step) = step else { return Err(format!("no such step: {verdict:?}")) };
        let key = (rule.condition.clone(), id);
        let tracks = if rule.pick.is_some() { &mut self.picks } else { &mut self.tracks };
        let track = tracks.get_mut(&key).unwrap();
        if confirmed == 1 {
            ensure!(
                track.state.due == Some((self.tick - 1, step)),
                "not decided at the previous interval: {verdict:?}"
            );
            ensure!(track.before() == Some(Truth::True), "not true at the previous interval: {verdict:?}");
        } else {
            track.state.due = Some((self.tick, step));
        }
        track.state.warned = true;
        if rule.pick.is_some() {
            return Ok(());
        }
        let found = &context.found[&key];
        ensure!(found.outcome == Truth::True, "{:?} now: {verdict:?}", found.outcome);
        let due = found.needed + samples(rule.steps[step].after, found.interval) + confirmed;
        ensure!(found.count >= due, "{} of {due} true: {:?}: {verdict:?}", found.count, track.marks);
        let state = &track.state;
        let in_turn = state.done == step || state.fuzzy || (state.again && state.done == step + 1);
        ensure!(in_turn, "step {step} after {} steps: {verdict:?}", state.done);
        Ok(())
    }

    fn check_budgets(&self, verdict: &Verdict, target: &ObservedTarget<'_>) -> Checked {
        if verdict.mode != Mode::Enforce {
            return Ok(());
        }
        let limits = &self.plan.limits;
        let recent: Vec<&Requested> =
            self.requests.iter().filter(|request| request.counts() && !request.past).collect();
        let of = |limit: u32, count: usize| usize::try_from(limit).unwrap() > count;
        // Beyond a budget, a target must hold more than all of the counted actions freed.
        let within = |limit: u32, counted: &[&Requested]| {
            let freed: Option<u64> = counted.iter().map(|request| request.freed()).sum();
            let more = target.memory().zip(freed).is_some_and(|(memory, freed)| memory > freed);
            of(limit, counted.len()) || limit > 0 && more
        };
        let mut by_user: BTreeMap<Option<u32>, Vec<&Requested>> = BTreeMap::new();
        for request in &recent {
            by_user.entry(request.uid).or_default().push(request);
        }
        // Of each user, the largest actions count; those of unknown size are the largest.
        let most = usize::try_from(limits.per_user_hour).unwrap();
        let counted = by_user.into_values().flat_map(|mut of_user| {
            of_user.sort_by_key(|request| std::cmp::Reverse(request.freed().unwrap_or(u64::MAX)));
            of_user.into_iter().take(most)
        });
        let node: Vec<&Requested> = counted.collect();
        ensure!(within(limits.per_node_hour, &node), "the node's budget is used up: {verdict:?}");
        let free = |limit: u32, which: &dyn Fn(&Requested) -> bool| {
            let counted: Vec<&Requested> = recent.iter().copied().filter(|request| which(request)).collect();
            within(limit, &counted)
        };
        // A target with several owners is not charged, because the action will be refused.
        ensure!(
            target.charged().is_none()
                || free(limits.per_user_hour, &|request| request.uid == target.charged()),
            "the user's budget is used up: {verdict:?}"
        );
        for gpu in target.gpus() {
            let free = free(limits.per_gpu_hour, &|request| request.gpus.contains(&gpu));
            ensure!(free, "the budget of {gpu} is used up: {verdict:?}");
        }
        Ok(())
    }

    fn check_cooldown(&self, rule: &RulePlan, id: &str, context: &EvalContext<'_>) -> Checked {
        let cooldown = i128::try_from(rule.cooldown.as_millis()).unwrap();
        let refused = self.requests.iter().rev().find(|request| {
            use Outcome::{IdentityChanged, Refused};
            request.condition == rule.condition
                && request.target == id
                && request.mode == Mode::Enforce
                && matches!(request.outcome, Some(IdentityChanged | Refused))
        });
        if let Some(refused) = refused.filter(|_| rule.pick.is_none() && self.mode(rule) == Mode::Enforce) {
            let ago = context.since(refused);
            ensure!(ago >= cooldown, "{id}: refused {ago} ms ago, with {cooldown} ms of cooldown");
        }
        let number =
            self.match_numbers.get(&(rule.condition.clone(), id.to_owned())).copied().unwrap_or_default();
        let before = self.requests.iter().rev().find(|request| {
            request.condition == rule.condition
                && request.target == id
                && request.match_of != number
                && request.counts()
        });
        let Some(before) = before.filter(|_| rule.pick.is_none() && self.mode(rule) == Mode::Enforce) else {
            return Ok(());
        };
        // The cooldown began with the first action in that match.
        let first =
            self.requests.iter().find(|request| request.match_of == before.match_of && request.target == id);
        let check_missing_actions = context.since(first.unwrap_or(before));
        ensure!(
            check_missing_actions >= cooldown,
            "{id}: {check_missing_actions} ms of {cooldown} ms of cooldown"
        );
        Ok(())
    }

    fn begin(&mut self, verdict: &Verdict, id: u64, context: &EvalContext<'_>) {
        let rule = self.plan.rules.iter().find(|rule| *rule.name == *verdict.rule).unwrap();
        let target = verdict.subject.id.to_string();
        let key = (rule.condition.clone(), target.clone());
        let What::Act(_, action) = &verdict.what else { unreachable!("an action") };
        let step = rule.steps.iter().position(|step| step.action == *action).unwrap();
        let tracks = if rule.pick.is_some() { &mut self.picks } else { &mut self.tracks };
        let state = &mut tracks.get_mut(&key).unwrap().state;
        (state.done, state.acted, state.again, state.due) = (step + 1, true, false, None);
        let kind = if rule.pick.is_some() { Kind::Workload } else { rule.target };
        let observed = context.sight.find(kind, &target).unwrap();
        self.in_flight = Some(id);
        self.acts += 1;
        self.enforced += u64::from(verdict.mode == Mode::Enforce);
        self.requests.push(Requested {
            id,
            condition: rule.condition.clone(),
            target,
            match_of: self.match_numbers.get(&key).copied().unwrap_or_default(),
            boot: context.view.snapshot.boot_id.clone(),
            boot_ms: u64::try_from(context.now.boot.as_millis()).unwrap(),
            wall_ms: u64::try_from(context.now.wall.as_millis()).unwrap(),
            uid: observed.charged(),
            gpus: observed.gpus(),
            memory: observed.memory(),
            pids: observed.traces().pids,
            mode: verdict.mode,
            is_last: matches!(action, Action::Terminate { .. })
                && rule.steps.iter().skip(step + 1).all(|step| !step.action.destructive()),
            outcome: None,
            past: false,
        });
    }

    fn check_withheld(&mut self, verdict: &Verdict, hold: Hold, context: &EvalContext<'_>) -> Checked {
        let snapshot = &context.view.snapshot;
        let plan = &self.plan;
        let holds = match hold {
            Hold::Paused => self.paused,
            Hold::Started => self.since_start <= 3,
            Hold::Reloaded => self.since_reload <= 2,
            Hold::OtherInterval => plan.interval.is_some_and(|interval| interval != snapshot.interval_ms),
            Hold::Untrusted => snapshot.pid_namespace != PidNamespace::Host || snapshot.boot_id.is_none(),
            Hold::MassBreaker => self.mass_possible,
            Hold::FailureBreaker => self.failures.values().filter(|of| of.perhaps >= 3).count() >= 2,
            Hold::UserFailureBreaker => self.failures.values().any(|of| of.perhaps >= 3),
            Hold::UnknownBreaker => self.unknown_possible,
            Hold::DriverHangBreaker => self.hang_possible,
            Hold::Failed => self.ever_failed.contains(&verdict.subject.id.to_string()),
            Hold::GpuBudget | Hold::UserBudget | Hold::NodeBudget => {
                !self.requests.is_empty() || !self.begun.is_empty()
            }
            // With `pick`, the cooldown is that of the GPU.
            Hold::Cooldown => {
                self.requests.iter().map(|request| &request.target).chain(&self.begun).any(|target| {
                    *target == verdict.subject.id.to_string()
                        || self
                            .plan
                            .rules
                            .iter()
                            .any(|rule| *rule.name == *verdict.rule && rule.pick.is_some())
                })
            }
            outside => self.outside.contains(&outside),
        };
        ensure!(holds, "withheld without a reason: {verdict:?}");
        let rule = plan.rules.iter().find(|rule| *rule.name == *verdict.rule).unwrap();
        let key = (rule.condition.clone(), verdict.subject.id.to_string());
        if let Some(track) = self.tracks.get_mut(&key) {
            let again = track.state.withheld == Some((self.tick - 1, hold));
            ensure!(!again || rule.pick.is_some(), "reported again: {verdict:?}");
            track.state.withheld = Some((self.tick, hold));
        }
        Ok(())
    }

    /// Checks that no required action is delayed without a reason.
    fn check_missing_actions(&mut self, context: &EvalContext<'_>, excused: bool) -> Checked {
        let mut surely = BTreeSet::new();
        let mut perhaps = BTreeSet::new();
        for rule in &self.plan.rules {
            let condition = rule.condition.clone();
            for (key, found) in context.found.iter().filter(|((of, _), _)| *of == condition) {
                let matches = found.outcome == Truth::True && found.count >= found.needed;
                if !matches || !rule.destructive() {
                    continue;
                }
                perhaps.insert(key.clone());
                if rule.pick.is_some() {
                    continue;
                }
                let state = &self.tracks[key].state;
                let Some(step) = rule.steps.get(state.done) else {
                    if !state.fuzzy && !state.again {
                        perhaps.remove(key);
                    }
                    continue;
                };
                let due = found.count >= found.needed + samples(step.after, found.interval);
                let not_actionable = found.protected != Truth::False || key.1.contains('#');
                // A step that was not carried out may be due again, before the next one is.
                if !state.fuzzy && !state.again && (!step.action.destructive() || !due || not_actionable) {
                    perhaps.remove(key);
                    continue;
                }
                let free = rule.pick.is_none() && !state.fuzzy && !state.again && self.unburdened(rule, key);
                if free && due && step.action.destructive() {
                    surely.insert(key.clone());
                }
            }
        }
        let acted = context.verdicts.iter().any(|verdict| matches!(verdict.what, What::Act(..)));
        let still = self.held(context.view).is_none()
            && !self.mass_possible
            && !self.unknown_possible
            && !self.hang_possible
            && self.failures.values().all(|of| of.perhaps < 3)
            && self.in_flight.is_none()
            && !acted;
        if let (Some(before), true, false) = (&self.waiting, still, excused) {
            let same = !before.is_empty() && before.is_subset(&surely);
            ensure!(!same, "an action is missing without a reason: {before:?}: {:?}", context.verdicts);
        }
        self.waiting = (still && perhaps.is_subset(&surely)).then_some(surely);
        Ok(())
    }

    fn unburdened(&self, rule: &RulePlan, (_, id): &(Arc<str>, String)) -> bool {
        let number =
            self.match_numbers.get(&(rule.condition.clone(), id.clone())).copied().unwrap_or_default();
        let rested = rule.cooldown.is_zero()
            || !self.begun.contains(id)
                && !self.requests.iter().any(|request| request.target == *id && request.match_of != number);
        let enforced = self.requests.iter().filter(|request| request.mode == Mode::Enforce).count();
        let limits = &self.plan.limits;
        let least = limits.per_node_hour.min(limits.per_user_hour).min(limits.per_gpu_hour);
        rested
            && !self.ever_failed.contains(id)
            && enforced + self.begun.len() < usize::try_from(least).unwrap()
    }
}

/// A tick, and what the engine has reported for it.
struct EvalContext<'a> {
    now: Now,
    view: &'a View,
    sight: &'a Coverage<'a>,
    found: &'a BTreeMap<(Arc<str>, String), Found>,
    verdicts: &'a [Verdict],
}

impl EvalContext<'_> {
    fn about<'b>(&'b self, rule: &'b str, id: &'b str) -> impl Iterator<Item = &'b Verdict> {
        self.verdicts.iter().filter(move |verdict| *verdict.rule == *rule && *verdict.subject.id.0 == *id)
    }

    /// Returns the time since an action, on the clock on which it is longest. The oracle makes no claim if the clocks
    /// differ.
    fn since(&self, request: &Requested) -> i128 {
        let wall = i128::try_from(self.now.wall.as_millis()).unwrap() - i128::from(request.wall_ms);
        let boot = i128::try_from(self.now.boot.as_millis()).unwrap() - i128::from(request.boot_ms);
        let same = request.boot.is_some() && request.boot == self.view.snapshot.boot_id;
        if same { wall.abs().max(boot) } else { wall.abs() }
    }
}

/// Evaluates the gates in order. The first gate that stops a target determines the result.
fn gates(rule: &RulePlan, target: &ObservedTarget<'_>, (protected, wall): (Truth, u64)) -> Truth {
    match protected {
        Truth::False => {}
        Truth::True => return Truth::False,
        Truth::Unknown => return Truth::Unknown,
    }
    if let Some(select) = &rule.select {
        match target.evaluate(select) {
            Truth::True => {}
            stopped => return stopped,
        }
    }
    if let Some((exception, until)) = &rule.except
        && until.is_none_or(|until| wall <= until)
    {
        match target.exempts(exception) {
            Truth::False => {}
            Truth::True => return Truth::False,
            Truth::Unknown => return Truth::Unknown,
        }
    }
    if rule.target != Kind::Gpu && !rule.grace.is_zero() && !target.gone() {
        match target.youngest_ms() {
            None => return Truth::Unknown,
            Some(age) if u128::from(age) < rule.grace.as_millis() => return Truth::False,
            Some(_) => {}
        }
    }
    let on_hold = || target.processes.iter().any(|it| matches!(&*it.state, "stopped" | "traced" | "frozen"));
    if rule.exempts_on_hold() && on_hold() {
        return Truth::False;
    }
    target.evaluate(&rule.when)
}

/// Returns the step that a verdict reports.
fn action_of(what: &What) -> Option<Action> {
    match what {
        What::Flag(severity) => Some(Action::Flag(*severity)),
        What::Notify(channels) => Some(Action::Notify(channels.clone())),
        What::Due(action) | What::Act(_, action) => Some(action.clone()),
        _ => None,
    }
}
