//! Checks for violations, one function per kind.

use std::time::Duration;

use super::{Action, Witness};
use crate::policy::rule;
use crate::trace::Signal;
use crate::world::{Process, World};

/// Time within which the enforcer reads and evaluates a snapshot that was written to its socket. The delay of the
/// trial itself on a busy machine is added.
const TRANSPORT: Duration = Duration::from_millis(50);
/// Delay after which a response takes effect, because time passes between the last check and the system call.
const ANSWERED: Duration = Duration::from_millis(10);
/// CPU use above the level that the rules consider idle, with a margin for the resolution of ticks.
const ENOUGH_CPU: f64 = 0.30;
const KILL: i32 = 9;
const TERM: i32 = 15;
pub(super) const CONT: i32 = 18;

/// A kind of violation and its details.
type Fault = (&'static str, String);

impl Witness {
    /// Returns the violations that a signal commits.
    pub(super) fn faults(
        &self,
        action: &Action,
        (signal, index): (Signal, usize),
        world: &World,
    ) -> Vec<Fault> {
        let Signal { at, number, .. } = signal;
        let process = &world.processes[index];
        let mut faults = Vec::new();
        if action.ended.is_some_and(|ended| ended + Duration::from_millis(2) < at) {
            faults.push(("a signal after its action had ended", format!("{:?}", action.result)));
        }
        if number == CONT {
            return faults;
        }
        if let Some(why) = not_a_member(action, process, world) {
            faults.push(("a process that was never a member", why));
        }
        faults.extend(self.exempt(action, at, (process, world)).map(|why| ("an exempt process", why)));
        if self.pauses.iter().any(|(from, to)| at > *from + ANSWERED + self.delay(*from, at) && at < *to) {
            faults.push(("a signal during a pause", String::new()));
        }
        let earlier = |expected: i32| {
            action.sent.iter().find(|(receiver, sent, _)| *receiver == index && *sent == expected)
        };
        match number {
            KILL => {
                faults.extend(kill_violations(action, (at, process), earlier(TERM).map(|(_, _, at)| *at)));
            }
            TERM if earlier(TERM).is_some() => faults.push(("a second TERM by one action", String::new())),
            _ => {}
        }
        if action.first.is_none() {
            faults.extend(self.busy(action, (at, index), world));
        }
        faults
    }

    /// Returns why a process was exempt.
    fn exempt(&self, action: &Action, at: Duration, (process, world): (&Process, &World)) -> Option<String> {
        let in_force = self.applied.iter().rfind(|(applied, _)| *applied + ANSWERED < at);
        let names = [Some(&action.policy), in_force.map(|(_, name)| name)];
        let mut policies = names.into_iter().flatten().filter_map(|name| self.policies.get(name));
        let why = policies.find_map(|policy| {
            policy.exempts(process).or_else(|| policy.watch.then(|| "its rule watches".to_owned()))
        });
        // A helper's own age does not matter, only the age of its target (of a workload: of its oldest process).
        let age = action.begun.saturating_sub(world.processes[process.root].born);
        let young = rule(&action.rule)
            .filter(|rule| age < rule.startup_grace && action.target.starts_with("process:"));
        why.or_else(|| young.map(|rule| format!("it was {age:?} old, of {:?}", rule.startup_grace)))
    }

    /// Returns the process of the target that was busy when the first signal was sent.
    fn busy(&self, action: &Action, (at, index): (Duration, usize), world: &World) -> Option<Fault> {
        let newest =
            self.seen.iter().rposition(|seen| seen.at + TRANSPORT + self.delay(seen.at, at) <= at)?;
        let seen = &self.seen[newest];
        let before = newest.checked_sub(1).map(|before| &self.seen[before]);
        let root = world.processes[index].root;
        let whole = action.target.starts_with("workload:container:");
        let container = world.processes[index].container.as_ref();
        let mut of_target = world.processes.iter().filter(|process| {
            let there = process.born <= at && process.ended.is_none_or(|ended| ended > at);
            let member = process.root == root
                || (whole && process.container.is_some() && process.container.as_ref() == container);
            there && member && !process.gpus.is_empty()
        });
        of_target.find_map(|process| {
            let key = (process.pid, process.ticks?);
            let figure = seen.used.get(&key);
            let cpu =
                before.filter(|_| action.rule == "computing").and_then(|before| seen.cpu_since(before, key));
            let age = at.saturating_sub(seen.at).as_millis();
            let snapshot = format!("in snapshot {}, sent {age} ms before the signal", seen.seq);
            match figure {
                Some(figure) if *figure > 1 => {
                    Some(("a busy process", format!("{} was at {figure}% {snapshot}", process.name())))
                }
                _ if cpu.is_some_and(|cpu| cpu > ENOUGH_CPU) => {
                    Some(("a busy process", format!("{} used {cpu:?} of a core {snapshot}", process.name())))
                }
                _ if process.surely_busy(seen.boot, seen.at) => {
                    let text = format!("{} was busy, and {figure:?} stood {snapshot}", process.name());
                    Some(("a process that was busy unseen", text))
                }
                _ => None,
            }
        })
    }
}

/// Returns why a process does not belong to the target of an action.
fn not_a_member(action: &Action, process: &Process, world: &World) -> Option<String> {
    if let Some(path) = action.target.strip_prefix("workload:container:") {
        let own = process.container.as_deref();
        let is_own = own.is_some_and(|id| path.ends_with(&format!(".slice/docker-{id}.scope")));
        return (!is_own).then(|| format!("its container is {own:?}"));
    }
    let (pid, ticks) = action.target.rsplit(':').next()?.split_once('@')?;
    let (pid, ticks): (u32, u64) = (pid.parse().ok()?, ticks.parse().ok()?);
    let target = world.processes.iter().find(|other| other.pid == pid && other.ticks == Some(ticks));
    match target {
        Some(target) if target.root == process.root => None,
        _ => Some("it is no descendant of the target".to_owned()),
    }
}

/// Returns the violations that a KILL commits.
fn kill_violations(
    action: &Action,
    (at, process): (Duration, &Process),
    term_at: Option<Duration>,
) -> Vec<Fault> {
    let Some(term_at) = term_at else { return vec![("a KILL without a TERM before it", String::new())] };
    let mut faults = Vec::new();
    let grace = rule(&action.rule).map_or(Duration::ZERO, |rule| rule.grace);
    // A process that started after the first TERM gets the rest of the grace period.
    let first = action.first.unwrap_or(term_at);
    let from = if process.born + Duration::from_secs(1) < first { term_at } else { first };
    if at + Duration::from_millis(2) < from + grace {
        faults.push((
            "a KILL before the grace period was over",
            format!("{:?} of {grace:?}", at.saturating_sub(from)),
        ));
    }
    if let Some(since) = process.stopped_at(at) {
        let continued = action.sent.iter().any(|(_, number, when)| *number == CONT && *when > since);
        // A process that was stopped only after the grace period had the whole period to exit.
        if !continued && since + Duration::from_millis(300) < at && since < from + grace {
            let text = format!("it was stopped {:?} before, and not continued", at.saturating_sub(since));
            faults.push(("a KILL of a process that could not run", text));
        }
    }
    faults
}
