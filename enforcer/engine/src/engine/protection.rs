//! Exemptions: from every rule by the built-in protection and by the policy's `protect`, from one rule by its exceptions. An
//! entry is evaluated for each member of a process or workload, and one matching member exempts the target.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{Place, ProcessKey, Truth, wire};

use crate::Kind;
use crate::engine::subject::Leaves;
use crate::engine::texts::{self, MemberFacts};
use crate::guard::{self, Root, Traits};
use crate::policy::{Condition, Exception, Field, Policy};
use crate::process::ProcessInfo;
use crate::process::{CommandLine, Program};
use crate::verdict::Asked;
use crate::view::{Target, TargetId, View, key};

/// Whether a target is protected. One protected member protects all of a workload.
pub(crate) fn of(policy: &Policy, target: &Target, (view, ours): (&View, &BTreeSet<ProcessKey>)) -> Truth {
    let protect = || {
        let entries = in_force(policy, view).map(|entry| exempts(&entry.condition, target, view));
        entries.fold(Truth::False, Truth::or)
    };
    // What is built in is about processes: that of a lease goes on.
    if target.kind == Kind::Lease {
        return protect();
    }
    // A GPU has no owner, and an MPS server is ended through its daemon.
    if !is_of_people(target) || is_gone(target, view) {
        return Truth::False;
    }
    if builtin(policy, target, (view, ours)).is_some() {
        return Truth::True;
    }
    protect()
}

/// The entries of `protect` that hold when a snapshot was taken.
pub(crate) fn in_force<'a>(policy: &'a Policy, view: &View) -> impl Iterator<Item = &'a Exception> {
    let now = Duration::from_millis(view.snapshot.wall_ms);
    policy.protect.iter().filter(move |entry| entry.in_force(now))
}

/// Why the built-in list protects a target; `ours` are this program's processes and the exporter's.
pub(crate) fn builtin(
    policy: &Policy,
    target: &Target,
    (view, ours): (&View, &BTreeSet<ProcessKey>),
) -> Option<&'static str> {
    let root = if policy.allow_root { Root::Allowed } else { Root::Protected };
    let contained = |process: &wire::Process| {
        let place = process.facts.as_ref().map(|facts| &facts.place);
        place.is_some_and(|place| place.container.is_some() || place.pod_uid.is_some())
    };
    let is_ours = |key: ProcessKey| ours.contains(&key).then_some("it is this program or the exporter");
    let holders = view.processes(target).find_map(|process| {
        let facts = process.facts.as_ref();
        let comm = facts.map_or("", |facts| &facts.comm);
        let uid = facts.and_then(|facts| facts.uid);
        let traits = Traits { pid: process.pid, comm, uid, contained: contained(process) };
        key(process).and_then(is_ours).or_else(|| guard::builtin(&traits, root))
    });
    holders.or_else(|| {
        let inside = view.processes(target).all(contained);
        view.relatives(target).find_map(|relative| {
            let traits =
                Traits { pid: relative.pid, comm: &relative.comm, uid: relative.uid, contained: inside };
            let key = ProcessKey { pid: relative.pid, start_ticks: relative.start_ticks };
            is_ours(key).or_else(|| guard::builtin(&traits, root))
        })
    })
}

/// A pid that only the driver lists: there is no process to protect or to harm.
pub(super) fn is_gone(target: &Target, view: &View) -> bool {
    is_of_people(target) && view.processes(target).all(|process| process.state == "gone")
}

fn is_of_people(target: &Target) -> bool {
    matches!(target.kind, Kind::Process | Kind::Workload)
}

/// Whether an entry of `protect` or `except` means a target: one of the members of a process or workload, or any other
/// target as a whole. What is not known of a member is unknown.
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

/// The members of a process or workload: those that hold memory and those that do not. Where these were not looked for,
/// there may be one of which nothing is known. Of another target there is one question.
fn members<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = Option<MemberFacts<'a>>> {
    let people = is_of_people(target);
    let holders = view.processes(target).map(MemberFacts::holder);
    let relatives = view.relatives(target).chain(view.below(target));
    let relatives = relatives.map(|relative| MemberFacts::relative(relative, view));
    let unseen = target.relatives.is_none().then(MemberFacts::default);
    let all = holders.chain(relatives).chain(unseen).filter(move |_| people);
    all.map(Some).chain((!people).then_some(None))
}

/// Evaluates selectors for the member, if there is one, and all else for its target.
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

/// Which member an entry exempts its target for, and what of the entry says so; the first of which it is true, else the
/// first of which it is unknown.
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
    let name = match (member.pid, member.comm) {
        (Some(pid), Some(comm)) => format!("process {pid} ({comm})"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "not all of its processes are known: one of them".to_owned(),
    };
    if meant == Truth::True { format!("{name} is exempt") } else { format!("{name} may be exempt") }
}

/// What the policy and a rule's exceptions say of a process that is met at the moment of an action.
#[derive(Debug)]
pub struct Exemptions {
    policy: Arc<Policy>,
    rule: Arc<str>,
    target: TargetId,
    view: Arc<View>,
    /// The wall clock when the action was decided.
    now: Duration,
}

impl Exemptions {
    /// For an action of a rule against a target of this view.
    #[must_use]
    pub fn new(
        policy: Arc<Policy>,
        (rule, target): (Arc<str>, TargetId),
        view: Arc<View>,
        now: Duration,
    ) -> Self {
        Self { policy, rule, target, view, now }
    }

    /// Each entry, and what it is called.
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

    /// Whether command lines are to be read.
    #[must_use]
    pub fn command_line(&self) -> CommandLine {
        let conditions =
            |(entry, _): (&Condition, String)| entry.selectors().any(|one| one.field == Field::Cmdline);
        if self.entries().any(conditions) { CommandLine::Needed } else { CommandLine::Ignored }
    }

    /// Why a process, which runs this, exempts the target; none if it does not.
    #[must_use]
    pub fn exempt(&self, person: &ProcessInfo, program: &Program) -> Option<String> {
        let Some(target) = self.view.targets.iter().find(|target| target.id == self.target) else {
            return Some("its target is not in the snapshot".to_owned());
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

    /// Where it runs, with the names of its pod, which the snapshot has of others in it.
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
