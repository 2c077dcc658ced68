//! Exemptions: from every rule by the built-in protection and by the policy's `protect`, from one rule by its exceptions. An
//! entry is evaluated for each member of a process or workload, and one matching member exempts the target.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{Place, ProcessKey, State, Truth, wire};

use crate::Kind;
use crate::engine::subject::Leaves;
use crate::engine::texts::{self, MemberFacts};
use crate::guard::{self, Root, Traits};
use crate::policy::{Condition, Exception, Field, Policy};
use crate::process::ProcessInfo;
use crate::process::{CommandLine, Program};
use crate::verdict::Asked;
use crate::view::{Target, TargetId, View};

/// Returns whether a target is protected. One protected member protects a whole workload.
pub(crate) fn of(policy: &Policy, target: &Target, (view, ours): (&View, &BTreeSet<ProcessKey>)) -> Truth {
    let protect = || {
        let entries = in_force(policy, view).map(|entry| exempts(&entry.condition, target, view));
        entries.fold(Truth::False, Truth::or)
    };
    // The built-in protection applies to processes only, and does not prevent the release of a lease.
    if target.kind == Kind::Lease {
        return protect();
    }
    // A GPU has no owner, and an MPS server is shut down through its daemon.
    if !is_of_people(target) || is_gone(target, view) {
        return Truth::False;
    }
    if builtin(policy, target, (view, ours)).is_some() {
        return Truth::True;
    }
    protect()
}

/// Returns the entries of `protect` in force at the time of the snapshot.
pub(crate) fn in_force<'a>(policy: &'a Policy, view: &View) -> impl Iterator<Item = &'a Exception> {
    let now = Duration::from_millis(view.snapshot.wall_ms);
    policy.protect.iter().filter(move |entry| entry.in_force(now))
}

/// Returns why the built-in list protects a target; `ours` are the processes of this program and the exporter.
pub(crate) fn builtin(
    policy: &Policy,
    target: &Target,
    (view, ours): (&View, &BTreeSet<ProcessKey>),
) -> Option<&'static str> {
    let root = if policy.allow_root { Root::Allowed } else { Root::Protected };
    let contained = |process: &wire::Process| {
        let place = process.facts.as_ref().map(|facts| &facts.place);
        place.is_some_and(|place| place.is_contained())
    };
    let is_ours =
        |key: ProcessKey| ours.contains(&key).then_some("it belongs to the enforcer or the exporter");
    if view.job(target).is_some_and(|job| job.uid == 0) && root == Root::Protected {
        return Some("it is a job of root");
    }
    let holders = view.processes(target).find_map(|process| {
        let facts = process.facts.as_ref();
        let comm = facts.map_or("", |facts| &facts.comm);
        let uid = facts.and_then(|facts| facts.uid);
        let traits = Traits {
            pid: process.pid,
            comm,
            uid,
            contained: contained(process),
            exe: facts.and_then(|facts| facts.exe.as_deref()),
            exe_uid: facts.and_then(|facts| facts.exe_uid),
            restored: facts.is_some_and(|facts| facts.restored),
            reused_pid: facts.is_some_and(|facts| facts.reused_pid),
        };
        process.key().and_then(is_ours).or_else(|| guard::builtin(&traits, root))
    });
    holders.or_else(|| {
        let inside = view.processes(target).all(contained);
        view.relatives(target).find_map(|relative| {
            let traits = Traits {
                pid: relative.pid,
                comm: &relative.comm,
                uid: relative.uid,
                contained: inside,
                exe: relative.exe.as_deref(),
                exe_uid: relative.exe_uid,
                restored: false,
                reused_pid: false,
            };
            is_ours(relative.key()).or_else(|| guard::builtin(&traits, root))
        })
    })
}

/// Returns whether the target is a pid that only the driver lists: there is no process to protect or to signal.
pub(super) fn is_gone(target: &Target, view: &View) -> bool {
    let gone = || view.processes(target).all(|process| process.state == State::Gone);
    !matches!(target.kind, Kind::SlurmJob | Kind::Pod) && is_of_people(target) && gone()
}

fn is_of_people(target: &Target) -> bool {
    matches!(target.kind, Kind::Process | Kind::Workload | Kind::SlurmJob | Kind::Pod)
}

/// Returns whether an entry of `protect` or `except` applies to a target: to one member of a process or
/// workload, or to any other target as a whole. Unknown data of a member makes it unknown.
pub(crate) fn exempts(entry: &Condition, target: &Target, view: &View) -> Truth {
    let mut whole = Truth::False;
    for member in members(target, view) {
        whole = whole.or(condition(entry, member.as_ref(), (target, view)));
        if whole == Truth::True {
            break;
        }
    }
    whole
}

/// Returns the members of a process or workload, with and without memory. If the latter are unknown, one
/// unknown member stands for them. A Slurm job has itself as a member, because its processes without memory are read only
/// when an action is carried out, and so has a pod without GPU memory. Any other target has one entry without a member.
fn members<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = Option<MemberFacts<'a>>> {
    let people = is_of_people(target);
    let holders = view.processes(target).map(MemberFacts::holder);
    let relatives = view.relatives(target).chain(view.below(target));
    let relatives = relatives.map(|relative| MemberFacts::relative(relative, view));
    let unseen = target.relatives.is_none().then(|| {
        let pod = view.pod_allocations(target).next().filter(|_| target.processes.is_empty());
        match (view.job(target), pod) {
            (Some(job), _) => MemberFacts::job(job, view),
            (None, Some(allocation)) => MemberFacts::pod(allocation),
            (None, None) => MemberFacts::default(),
        }
    });
    let all = holders.chain(relatives).chain(unseen).filter(move |_| people);
    all.map(Some).chain((!people).then_some(None))
}

/// Evaluates selectors for the member, if there is one, and everything else for its target.
fn condition(entry: &Condition, member: Option<&MemberFacts<'_>>, of: (&Target, &View)) -> Truth {
    match (entry, member) {
        (Condition::Leaf(leaf), _) => leaf.test.condition(leaf.attribute.of_target(of.0, of.1)),
        (Condition::Select(selector), Some(member)) => texts::select_member(selector, member, of),
        (Condition::Select(selector), None) => texts::select(selector, of.0, of.1),
        (Condition::All(conditions), _) => {
            conditions.iter().fold(Truth::True, |all, one| all.and(condition(one, member, of)))
        }
        (Condition::Any(conditions), _) => {
            conditions.iter().fold(Truth::False, |any, one| any.or(condition(one, member, of)))
        }
        (Condition::Not(one), _) => !condition(one, member, of),
    }
}

/// Returns the member that decides whether an entry exempts its target, with its comparisons: the first one for
/// which the entry is true, else the first for which it is unknown.
pub(crate) fn decisive(entry: &Condition, target: &Target, view: &View) -> Option<(String, Vec<Asked>)> {
    let find = |wanted: Truth| {
        let meant =
            |member: &Option<MemberFacts<'_>>| condition(entry, member.as_ref(), (target, view)) == wanted;
        let member = members(target, view).find(meant)??;
        Some((named(&member, wanted), Leaves { target, view }.of_member(entry, &member)))
    };
    find(Truth::True).or_else(|| find(Truth::Unknown))
}

fn named(member: &MemberFacts<'_>, meant: Truth) -> String {
    let name = match (member.pid, member.comm, member.job) {
        _ if let Some(allocation) = member.allocation => format!("pod {}", allocation.container.pod),
        (Some(pid), Some(comm), _) => format!("process {pid} ({comm})"),
        (Some(pid), None, _) => format!("process {pid}"),
        (None, _, Some(job)) => format!("job {}", job.job),
        (None, _, None) => "an unknown process of the target (not all of its processes are known)".to_owned(),
    };
    if meant == Truth::True { format!("{name} is exempt") } else { format!("{name} may be exempt") }
}

/// Exemptions by the policy and the rule's exceptions, for processes read at the time of an action.
#[derive(Debug)]
pub struct Exemptions {
    policy: Arc<Policy>,
    rule: Arc<str>,
    target: TargetId,
    view: Arc<View>,
    /// Wall-clock time of the decision.
    now: Duration,
}

impl Exemptions {
    /// Creates the exemptions for an action of a rule against a target of this view.
    pub fn new(
        policy: Arc<Policy>,
        (rule, target): (Arc<str>, TargetId),
        view: Arc<View>,
        now: Duration,
    ) -> Self {
        Self { policy, rule, target, view, now }
    }

    /// Returns each entry with its name.
    fn entries(&self) -> impl Iterator<Item = (&Condition, String)> {
        let rule = self.policy.rules.iter().find(|rule| rule.name == self.rule);
        let exceptions = rule.into_iter().flat_map(|rule| &rule.except);
        let named = |entry: &Exception, what: &str| {
            entry.reason.as_ref().map_or_else(|| what.to_owned(), |reason| format!("{what}: {reason}"))
        };
        let protect = self.policy.protect.iter().map(|entry| (entry, "the policy protects it"));
        let all = protect.chain(exceptions.map(|entry| (entry, "it is an exception")));
        let in_force = all.filter(|(entry, _)| entry.in_force(self.now));
        in_force.map(move |(entry, what)| (&entry.condition, named(entry, what)))
    }

    /// Returns whether command lines must be read.
    pub fn command_line(&self) -> CommandLine {
        let conditions =
            |(entry, _): (&Condition, String)| entry.selectors().any(|one| one.field == Field::Cmdline);
        if self.entries().any(conditions) { CommandLine::Needed } else { CommandLine::Ignored }
    }

    /// Returns why a process that runs this program exempts the target.
    pub fn exempt(&self, person: &ProcessInfo, program: &Program) -> Option<String> {
        let Some(target) = self.view.targets.iter().find(|target| target.id == self.target) else {
            return Some("the target is not in the snapshot".to_owned());
        };
        let place = self.place(person);
        let member = MemberFacts::met(person, (program, &place), &self.view);
        let of = (target, &*self.view);
        self.entries().find_map(|(entry, why)| {
            let meant = condition(entry, Some(&member), of);
            if meant == Truth::False {
                return None;
            }
            let leaves = Leaves { target, view: &self.view }.of_member(entry, &member);
            let same = leaves.into_iter().filter(|leaf| leaf.outcome == meant);
            let find: Vec<String> = same.map(|leaf| format!("{} is {}", leaf.name, leaf.value)).collect();
            let may = if meant == Truth::True { "" } else { "it is unknown whether " };
            Some(format!("{may}{why} ({})", find.join(", ")))
        })
    }

    /// Returns the place of a process, with the pod names that the snapshot has for other processes in its pod.
    fn place(&self, person: &ProcessInfo) -> Place {
        let mut place = Place::clone(&person.place);
        let snapshot = &self.view.snapshot;
        let holders = snapshot.processes.iter().filter_map(|process| Some(&process.facts.as_ref()?.place));
        let others = snapshot.relatives.iter().flatten().map(|relative| &relative.place);
        let mut same =
            holders.chain(others).filter(|other| other.pod_uid.is_some() && other.pod_uid == place.pod_uid);
        if let Some(other) = same.find(|other| other.pod.is_some()) {
            (place.pod, place.namespace) = (other.pod.clone(), other.namespace.clone());
        }
        place
    }
}
