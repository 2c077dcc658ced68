//! The witness: it knows the truth, reads what was sent and written, and reports violations.

mod checks;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::time::Duration;

use bailiff_snapshot::wire;
use serde_json::Value;

use self::checks::CONT;
use crate::policy::Policy;
use crate::relay::Sent;
use crate::trace::Signal;
use crate::world::{Process, World};

/// Delay after which all records about a moment have been read.
const LATE: Duration = Duration::from_secs(2);
/// Results of actions that count towards budgets.
const COUNTED: [&str; 8] = [
    "released",
    "gone_not_released",
    "unkillable",
    "undetermined",
    "failed",
    "done",
    "cancelled",
    "interrupted",
];
const STOP: i32 = 19;

/// An action according to the audit log.
#[derive(Debug, Default)]
struct Action {
    id: u64,
    begun: Duration,
    ended: Option<Duration>,
    result: Option<String>,
    rule: String,
    policy: String,
    target: String,
    uid: Option<u64>,
    gpus: Vec<String>,
    /// Time of the first harmful signal.
    first: Option<Duration>,
    /// Process index, signal number and time.
    sent: Vec<(usize, i32, Duration)>,
}

/// The content of a snapshot.
struct ObservedSnapshot {
    at: Duration,
    seq: u64,
    boot: Duration,
    /// Highest utilization of each process, by pid and start tick.
    used: BTreeMap<(u32, u64), u32>,
    /// CPU time in seconds.
    cpu: BTreeMap<(u32, u64), f64>,
}

impl ObservedSnapshot {
    /// Returns the share of a core that a process has used since an earlier snapshot.
    fn cpu_since(&self, before: &Self, key: (u32, u64)) -> Option<f64> {
        let seconds = self.boot.checked_sub(before.boot)?.as_secs_f64();
        Some((self.cpu.get(&key)? - before.cpu.get(&key)?) / seconds)
    }
}

/// A violation.
pub(crate) struct Violation {
    pub(crate) at: Duration,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// The affected target.
    pub(crate) root: Option<usize>,
}

impl Violation {
    /// Returns whether an event is about the target of this action.
    pub(crate) fn is_about(&self, event: &str) -> bool {
        let target = self.text.split_once(" against ").and_then(|(_, rest)| rest.split_once(": "));
        target.is_some_and(|(target, _)| event.contains(target))
    }
}

/// Everything that was observed.
#[derive(Default)]
pub(crate) struct Witness {
    seen: VecDeque<ObservedSnapshot>,
    actions: Vec<Action>,
    /// When the machine was busy, and by how much that delayed the trial.
    delays: VecDeque<(Duration, Duration)>,
    /// Signals that have not been checked yet.
    signals: VecDeque<Signal>,
    /// Number of signals from the enforcer to processes in the trial, by process index and signal
    /// number.
    traced: BTreeMap<(usize, i32), usize>,
    logged: BTreeMap<(usize, i32), usize>,
    /// Rules files by SHA-256.
    pub(crate) policies: BTreeMap<String, Policy>,
    /// When each policy came into force.
    applied: Vec<(Duration, String)>,
    /// Pauses, from the response to the pause until the request to resume.
    pub(crate) pauses: Vec<(Duration, Duration)>,
    /// When budgets were lost together with the state file.
    pub(crate) forgotten: Duration,
    /// Threads of the enforcer, each with the time at which it was last seen.
    threads: BTreeMap<u32, Duration>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: BTreeMap<String, u64>,
}

impl Witness {
    pub(crate) fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn violate(
        &mut self,
        at: Duration,
        kind: &'static str,
        (text, root): (String, Option<usize>),
    ) {
        self.count(format!("violation {kind}"));
        self.violations.push(Violation { at, kind, text, root });
    }

    /// Records how much later than requested the trial was woken up.
    pub(crate) fn slept(&mut self, from: Duration, late: Duration) {
        if late > Duration::from_millis(3) {
            self.delays.push_back((from, late));
        }
        if self.delays.len() > 2_000 {
            self.delays.pop_front();
        }
    }

    /// Returns the longest time for which a program may have waited for a CPU between two moments.
    fn delay(&self, from: Duration, to: Duration) -> Duration {
        let between = self.delays.iter().filter(|(begun, late)| *begun <= to && *begun + *late >= from);
        between.map(|(_, late)| *late).max().unwrap_or_default()
    }

    /// Records a line of the stream that was written to the enforcer.
    pub(crate) fn snapshot(&mut self, sent: &Sent) {
        let Ok(snapshot) = wire::parse(&sent.line) else { return };
        let ticks: BTreeMap<u32, u64> = snapshot
            .processes
            .iter()
            .filter_map(|process| Some((process.pid, process.start_ticks?)))
            .collect();
        let mut used: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        for holder in snapshot.gpus.iter().flat_map(|gpu| &gpu.holders) {
            if let Some((ticks, figure)) = ticks.get(&holder.pid).zip(holder.utilization) {
                let most = used.entry((holder.pid, *ticks)).or_default();
                *most = figure.max(*most);
            }
        }
        self.count("snapshots");
        let cpu = snapshot.processes.iter().filter_map(|process| {
            Some(((process.pid, process.start_ticks?), process.facts.as_ref()?.cpu_seconds))
        });
        let (cpu, boot) = (cpu.collect(), Duration::from_millis(snapshot.boot_ms));
        self.seen.push_back(ObservedSnapshot { at: sent.at, seq: snapshot.seq, boot, used, cpu });
        if self.seen.len() > 500 {
            self.seen.pop_front();
        }
    }

    /// Records a line of the audit log, with its time since boot.
    pub(crate) fn audit(&mut self, line: &Value, at: Duration) {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let (step, result) = (text("step"), text("result"));
        match (step.as_str(), result.as_str(), line["id"].as_u64()) {
            (_, "begun", Some(id)) => {
                let gpus = line["target"]["gpus"].as_array().into_iter().flatten();
                let action = Action {
                    id,
                    begun: at,
                    rule: text("rule"),
                    policy: text("policy"),
                    target: line["target"]["id"].as_str().unwrap_or_default().to_owned(),
                    uid: line["target"]["uid"].as_u64(),
                    gpus: gpus.filter_map(|gpu| Some(gpu.as_str()?.to_owned())).collect(),
                    ..Action::default()
                };
                self.count(format!("begun by rule {}", action.rule));
                self.check_budgets(&action);
                self.actions.push(action);
            }
            // Events before SIGKILL are not results.
            (_, "stopping", Some(_)) => self.count("held still"),
            (_, _, Some(id)) => {
                self.count(format!("action {step} {result}"));
                let begun =
                    self.actions.iter_mut().rev().find(|action| action.id == id && action.ended.is_none());
                if let Some(action) = begun {
                    (action.ended, action.result) = (Some(at), Some(result));
                }
            }
            (_, "withheld", _) => self.count(format!("withheld: {}", text("detail"))),
            ("start", _, None) | ("reload", "done", None) => self.applied.push((at, text("policy"))),
            _ => {}
        }
    }

    fn check_budgets(&mut self, new: &Action) {
        let Some(policy) = self.policies.get(&new.policy) else { return };
        let [gpu, user, node] = policy.limits;
        let hour = new.begun.saturating_sub(Duration::from_hours(1)).max(self.forgotten);
        let counted = |action: &&Action| {
            // An action that was cancelled before its first signal does not count.
            let unsent = action.result.as_deref() == Some("cancelled") && action.first.is_none();
            let counts = action.result.as_deref().is_none_or(|result| COUNTED.contains(&result));
            action.begun > hour && counts && !unsent
        };
        let count = |of: &dyn Fn(&Action) -> bool| {
            self.actions.iter().filter(counted).filter(|action| of(action)).count()
        };
        let most =
            new.gpus.iter().map(|gpu| count(&|action| action.gpus.contains(gpu))).max().unwrap_or_default();
        let used = [most, count(&|action| action.uid == new.uid), count(&|_| true)];
        if used[0] >= gpu || used[1] >= user || used[2] >= node {
            let text =
                format!("action {} of {}: {used:?} of {:?} were used", new.id, new.target, policy.limits);
            self.violate(new.begun, "more actions than budgets allow", (text, None));
        }
    }

    /// Returns the number of actions that count towards the node's budget.
    pub(crate) fn budget_used(&self) -> u64 {
        let counts =
            |action: &&Action| action.result.as_deref().is_none_or(|result| COUNTED.contains(&result));
        self.actions.iter().filter(|action| action.begun > self.forgotten).filter(counts).count() as u64
    }

    /// Records a signal that a target has logged.
    pub(crate) fn logged(&mut self, index: usize, number: i32, sender: u32) {
        if self.threads.contains_key(&sender) {
            *self.logged.entry((index, number)).or_default() += 1;
        }
    }

    /// Records the enforcer's running threads.
    pub(crate) fn run(&mut self, threads: impl IntoIterator<Item = u32>, now: Duration) {
        self.threads.extend(threads.into_iter().map(|thread| (thread, now)));
    }

    /// Returns whether a signal was sent by the enforcer. Thread ids are reused soon, so the time
    /// is compared too.
    fn is_enforcer(&self, signal: &Signal) -> bool {
        let last = self.threads.get(&signal.sender);
        last.is_some_and(|last| signal.at <= *last + Duration::from_millis(50) + self.delay(*last, signal.at))
    }

    /// Records a signal reported by the kernel.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if signal.code <= 0 && signal.sender != std::process::id() {
            self.signals.push_back(signal);
        }
    }

    /// Checks the signals for which all records have been read.
    pub(crate) fn check_due(&mut self, now: Duration, world: &World) {
        while let Some(signal) = self.signals.pop_front_if(|signal| signal.at + LATE < now) {
            let ours = self.is_enforcer(&signal);
            match world.at(signal.pid, signal.at) {
                Some(index) if ours => self.check(signal, index, world),
                None if ours && !signal.to_watchdog => {
                    let text =
                        format!("signal {} to pid {}, which is not of the trial", signal.number, signal.pid);
                    self.violate(signal.at, "a process that was never a member", (text, None));
                }
                _ => {}
            }
        }
        self.check_stopped(now, world);
    }

    fn check(&mut self, signal: Signal, index: usize, world: &World) {
        let process = &world.processes[index];
        let Signal { at, number, .. } = signal;
        self.count(format!("signal {number}"));
        *self.traced.entry((index, number)).or_default() += 1;
        // Times in the audit log are truncated to milliseconds.
        let Some(latest) =
            self.actions.iter().rposition(|action| action.begun <= at + Duration::from_millis(1))
        else {
            let text = format!("signal {number} to {}", process.name());
            return self.violate(at, "a signal without a line in the audit log", (text, Some(process.root)));
        };
        let mut action = std::mem::take(&mut self.actions[latest]);
        for (kind, why) in self.faults(&action, (signal, index), world) {
            let text = format!(
                "signal {number} to {} by action {} of rule {:?} against {}: {why}",
                process.name(),
                action.id,
                action.rule,
                action.target
            );
            self.violate(at, kind, (text, Some(process.root)));
        }
        if number != CONT {
            action.first.get_or_insert(at);
        }
        action.sent.push((index, number, at));
        self.actions[latest] = action;
    }

    /// Checks that processes that were stopped by a finished action are running again or have
    /// exited.
    fn check_stopped(&mut self, now: Duration, world: &World) {
        let mut left = Vec::new();
        for action in &mut self.actions {
            let over = action.ended.is_some_and(|ended| ended + LATE < now)
                || action.begun + Duration::from_secs(30) < now;
            if !over || !action.sent.iter().any(|(_, number, _)| *number == STOP) {
                continue;
            }
            for (index, _, at) in action.sent.extract_if(.., |(_, number, _)| *number == STOP) {
                let process = &world.processes[index];
                if process.ended.is_none() && process.stopped_at(now).is_none() && stopped(process) {
                    let text = format!("{} since action {} ({:?})", process.name(), action.id, action.result);
                    left.push((at, (text, Some(process.root))));
                    world.signal(index, rustix::process::Signal::CONT);
                }
            }
        }
        for (at, text) in left {
            self.violate(at, "a process that stays stopped", text);
        }
    }

    /// Checks, at the end of the trial, that the kernel reported every signal that a target has
    /// logged.
    pub(crate) fn compare(&mut self, now: Duration, world: &World) {
        let missing: Vec<_> = self
            .logged
            .iter()
            .filter(|(key, count)| self.traced.get(*key) < Some(*count))
            .map(|(key, _)| *key)
            .collect();
        for (index, number) in missing {
            let text = format!(
                "{} has logged signal {number} more often than it was traced",
                world.processes[index].name()
            );
            self.violate(now, "a signal that was not traced", (text, Some(world.processes[index].root)));
        }
    }
}

fn stopped(process: &Process) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", process.pid)).ok();
    let stat = stat.and_then(|stat| bailiff_snapshot::stat::parse(&stat));
    stat.is_some_and(|stat| stat.state == bailiff_snapshot::State::Stopped)
}
