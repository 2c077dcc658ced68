//! Who is protected from every rule: by what is built in, and by the policy's own list.

use bailiff_snapshot::wire;

use crate::census::Person;
use crate::engine::texts;
use crate::guard::{self, Root, Traits};
use crate::policy::{Ask, Kind, Policy};
use crate::view::{Target, View};
use bailiff_snapshot::Truth;

/// Whether a target is protected. One protected member protects all of a workload.
pub(crate) fn of(policy: &Policy, target: &Target, view: &View) -> Truth {
    // What is built in is about processes: that of a lease goes on.
    if target.kind == Kind::Lease {
        return policy.protect.as_ref().map_or(Truth::False, |protect| ask(protect, target, view));
    }
    // A GPU is nobody, and what ends a server of MPS asks it nicely.
    if !is_of_people(target) || is_gone(target, view) {
        return Truth::False;
    }
    if builtin(policy, target, view).is_some() {
        return Truth::True;
    }
    policy.protect.as_ref().map_or(Truth::False, |protect| asked(protect, target, view))
}

/// Why the built-in list protects a target.
pub(crate) fn builtin(policy: &Policy, target: &Target, view: &View) -> Option<&'static str> {
    let root = if policy.allow_root { Root::Allowed } else { Root::Protected };
    let contained = |process: &wire::Process| {
        let place = process.facts.as_ref().map(|facts| &facts.place);
        place.is_some_and(|place| place.container.is_some() || place.pod_uid.is_some())
    };
    let holders = view.processes(target).find_map(|process| {
        let facts = process.facts.as_ref();
        let comm = facts.map_or("", |facts| &facts.comm);
        let uid = facts.and_then(|facts| facts.uid);
        guard::builtin(&Traits { pid: process.pid, comm, uid, contained: contained(process) }, root)
    });
    holders.or_else(|| {
        let inside = view.processes(target).all(contained);
        view.relatives(target).find_map(|relative| {
            let traits =
                Traits { pid: relative.pid, comm: &relative.comm, uid: relative.uid, contained: inside };
            guard::builtin(&traits, root)
        })
    })
}

/// Why the policy's list protects a process that is met at the moment of a deed; none where it does not.
#[must_use]
pub fn protects(policy: &Policy, view: &View, person: &Person) -> Option<String> {
    let relative = wire::Relative {
        pid: person.stat.key.pid,
        start_ticks: person.stat.key.start_ticks,
        ppid: person.stat.ppid,
        uid: Some(person.uid),
        comm: person.stat.comm.clone(),
        state: person.stat.state.name().to_owned(),
        workload: String::new(),
        cgroup: person.place.cgroup.clone(),
        cpu_seconds: 0.0,
        reaped_cpu_seconds: 0.0,
    };
    let protect = policy.protect.as_ref()?;
    // A user whose name nobody knows is asked of by number; he was judged by name in the snapshot.
    (ask_relative(protect, &relative, view) == Truth::True).then(|| "the policy protects it".to_owned())
}

/// A pid that only the driver knows: nobody is there to be protected, and nobody to be harmed.
pub(super) fn is_gone(target: &Target, view: &View) -> bool {
    is_of_people(target) && view.processes(target).all(|process| process.state == "gone")
}

fn is_of_people(target: &Target) -> bool {
    matches!(target.kind, Kind::Process | Kind::Workload)
}

/// Asks the policy's list of the target, and of its processes that hold nothing.
fn asked(protect: &Ask, target: &Target, view: &View) -> Truth {
    let of_target = ask(protect, target, view);
    if of_target == Truth::True {
        return of_target;
    }
    let relatives = view.relatives(target).map(|relative| ask_relative(protect, relative, view));
    relatives.fold(of_target, Truth::or)
}

fn ask(ask_of: &Ask, target: &Target, view: &View) -> Truth {
    match ask_of {
        Ask::Leaf(leaf) => leaf.test.ask(super::program::read(leaf.attribute, target, view)),
        Ask::Select(selector) => texts::select(selector, target, view),
        Ask::All(asks) => asks.iter().fold(Truth::True, |all, one| all.and(ask(one, target, view))),
        Ask::Any(asks) => asks.iter().fold(Truth::False, |any, one| any.or(ask(one, target, view))),
        Ask::Not(one) => !ask(one, target, view),
    }
}

/// Asks of a process that holds nothing.
fn ask_relative(ask: &Ask, relative: &wire::Relative, view: &View) -> Truth {
    match ask {
        // Attributes are not known of it, and what is not known of it speaks for nobody's protection.
        Ask::Leaf(_) | Ask::Not(_) => Truth::False,
        Ask::Select(selector) => texts::select_relative(selector, relative, view),
        Ask::All(asks) => {
            asks.iter().fold(Truth::True, |all, one| all.and(ask_relative(one, relative, view)))
        }
        Ask::Any(asks) => {
            asks.iter().fold(Truth::False, |any, one| any.or(ask_relative(one, relative, view)))
        }
    }
}
