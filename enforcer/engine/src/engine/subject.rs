//! The subject of a verdict and its evidence, in a form that can be recorded.

use crate::Kind;
use crate::engine::population::Slot;
use crate::engine::texts::{self, MemberFacts};
use crate::policy::{Condition, Selector};
use crate::value::{Unit, Value};
use crate::verdict::{Asked, Member, Subject};
use crate::view::{Target, View};
use bailiff_snapshot::SubordinateUids;

/// Maximum number of listed processes without memory: an action reads all processes again.
const MOST_OTHERS: usize = 64;

/// A process younger than this many sampling intervals is new.
const NEW_INTERVALS: u32 = 2;

/// Returns the owner of a target, if all its processes have the same one.
pub(crate) fn owner(target: &Target, view: &View) -> Option<u32> {
    if target.kind == Kind::Lease {
        return view.held(target)?.uid;
    }
    if let Some(job) = view.job(target) {
        return Some(job.uid);
    }
    let holders = view.processes(target).map(|process| process.facts.as_ref().and_then(|facts| facts.uid));
    let mut uids = holders.chain(view.relatives(target).map(|relative| relative.uid));
    let first = uids.next()??;
    uids.all(|uid| uid == Some(first)).then_some(first)
}

/// Returns whether a process belongs to a target, or holds memory on a target that is a GPU.
pub(crate) fn has_process(target: &Target, pid: u32, view: &View) -> bool {
    let holds = view.processes(target).any(|process| process.pid == pid);
    let belongs = view.relatives(target).any(|relative| relative.pid == pid);
    let on_it = target.kind == Kind::Gpu
        && view.gpus(target).any(|gpu| gpu.holders.iter().any(|holder| holder.pid == pid));
    holds || belongs || on_it
}

/// Returns the uid that budgets and failures are counted for, as [`Subject::charged`].
pub(crate) fn charged(target: &Target, view: &View) -> Option<u32> {
    owner(target, view).or_else(|| holders(target, view).chain(others(target, view)).next()?.uid)
}

/// A user, or the namespace of a pod.
pub(crate) type Author = (Option<u32>, Option<String>);

/// Returns whose target it is. Users in pods choose their uids, so the namespace counts.
pub(crate) fn author(target: &Target, view: &View, uids: &SubordinateUids) -> Author {
    if target.kind != Kind::Pod {
        return (owner(target, view).map(|uid| uids.user(uid)), None);
    }
    let namespace = view.pod(target).map(|pod| pod.namespace().to_owned());
    // A pod has processes of several users: one is that which waits for its containers.
    let uid = charged(target, view).filter(|_| namespace.is_none());
    (uid.map(|uid| uids.user(uid)), namespace)
}

/// Returns the memory of a target's processes; `None` if that of one is unknown, or if there is none.
pub(crate) fn memory(target: &Target, view: &View) -> Option<u64> {
    let mut each = target.processes.iter().map(|place| vram(*place, view)).peekable();
    each.peek()?;
    sum(each)
}

fn vram(process: usize, view: &View) -> Option<u64> {
    sum(view.holdings_of(process).map(|(_, holder)| holder.memory))
}

/// Returns the sum; `None` if one value is unknown.
fn sum(mut values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.try_fold(0_u64, |sum, value| Some(sum.saturating_add(value?)))
}

/// Returns the subject for a target of a view.
pub(crate) fn of(target: &Target, view: &View) -> Subject {
    with_members(target, view, holders(target, view).chain(others(target, view)).collect())
}

/// The same with only two of its processes with memory.
pub(crate) fn in_short(target: &Target, view: &View) -> Subject {
    with_members(target, view, holders(target, view).take(2).collect())
}

fn with_members(target: &Target, view: &View, members: Vec<Member>) -> Subject {
    Subject {
        id: target.id.clone(),
        kind: target.kind,
        uid: owner(target, view),
        user: user(target, view),
        gpus: view.gpus(target).filter_map(|gpu| gpu.uuid.clone()).collect(),
        job: view.job(target).cloned(),
        pod: view.pod(target),
        members,
    }
}

/// Returns the name of the owner.
pub(crate) fn user(target: &Target, view: &View) -> Option<String> {
    match (view.held(target), view.job(target)) {
        (Some(held), _) => held.user.clone(),
        (_, Some(job)) => job.user.clone(),
        _ => {
            let uid = owner(target, view);
            let facts = view.processes(target).filter_map(|process| process.facts.as_ref());
            facts.filter(|facts| facts.uid == uid).find_map(|facts| facts.user.clone())
        }
    }
}

/// Returns the subject for a target that is not in the view.
pub(crate) fn absent(kind: Kind, slot: &Slot) -> Subject {
    Subject {
        id: slot.id.clone(),
        kind,
        uid: None,
        user: None,
        gpus: slot.gpus.iter().map(ToString::to_string).collect(),
        job: None,
        pod: None,
        members: Vec::new(),
    }
}

fn holders<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = Member> + 'a {
    target.processes.iter().filter_map(|place| {
        let process = view.snapshot.processes.get(*place)?;
        let facts = process.facts.as_ref();
        Some(Member {
            key: process.key(),
            pid: process.pid,
            uid: facts.and_then(|facts| facts.uid),
            comm: facts.map(|facts| facts.comm.clone()).unwrap_or_default(),
            exe: facts.and_then(|facts| facts.exe.clone()),
            cgroup: facts.map(|facts| facts.place.cgroup.clone()).unwrap_or_default(),
            confinement: facts.map(|facts| facts.place.confinement().to_owned()).unwrap_or_default(),
            notebook: facts.and_then(|facts| facts.notebook.clone()),
            vram: vram(*place, view),
            holds: true,
        })
    })
}

fn others<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = Member> + 'a {
    view.relatives(target).take(MOST_OTHERS).map(|relative| Member {
        key: Some(relative.key()),
        pid: relative.pid,
        uid: relative.uid,
        comm: relative.comm.clone(),
        exe: relative.exe.clone(),
        cgroup: relative.place.cgroup.clone(),
        confinement: relative.place.confinement().to_owned(),
        notebook: None,
        vram: Some(0),
        holds: false,
    })
}

/// A target, and how its comparisons are recorded.
pub(crate) struct Leaves<'a> {
    pub(crate) target: &'a Target,
    pub(crate) view: &'a View,
}

impl Leaves<'_> {
    /// Returns every comparison of a condition, in the order of the file.
    pub(crate) fn of(&self, condition: &Condition) -> Vec<Asked> {
        self.asked(condition, None)
    }

    /// The same, with selectors evaluated for one member of the target.
    pub(crate) fn of_member(&self, condition: &Condition, member: &MemberFacts<'_>) -> Vec<Asked> {
        self.asked(condition, Some(member))
    }

    fn selected(&self, selector: &Selector, member: Option<&MemberFacts<'_>>) -> Asked {
        let patterns: Vec<String> = selector.patterns.iter().map(ToString::to_string).collect();
        let (field, of) = (selector.field, (self.target, self.view));
        let (value, outcome) = match member {
            Some(member) => (texts::shown_of(field, member, of), texts::select_member(selector, member, of)),
            None => (texts::shown(field, of.0, of.1), texts::select(selector, of.0, of.1)),
        };
        Asked {
            name: field.name().to_owned(),
            value,
            comparison: patterns.join(", "),
            outcome,
            source: "proc".to_owned(),
        }
    }

    fn asked(&self, condition: &Condition, member: Option<&MemberFacts<'_>>) -> Vec<Asked> {
        match condition {
            Condition::Leaf(leaf) => {
                let value = leaf.attribute.of_target(self.target, self.view);
                vec![Asked {
                    name: leaf.attribute.name.to_owned(),
                    value: shown(value, leaf.attribute.unit),
                    comparison: leaf.comparison.clone(),
                    outcome: leaf.test.condition(value),
                    source: leaf.attribute.source.to_owned(),
                }]
            }
            Condition::Select(selector) => vec![self.selected(selector, member)],
            Condition::All(conditions) | Condition::Any(conditions) => {
                conditions.iter().flat_map(|condition| self.asked(condition, member)).collect()
            }
            Condition::Not(condition) => {
                let mut asked = self.asked(condition, member);
                for leaf in &mut asked {
                    leaf.comparison = format!("not ({})", leaf.comparison);
                    leaf.outcome = !leaf.outcome;
                }
                asked
            }
        }
    }
}

/// Formats a value.
pub(crate) fn shown(value: Value, unit: Unit) -> String {
    match value {
        Value::Unknown(why) => format!("unknown: {why}"),
        Value::Number(figure) => number(figure, unit),
        Value::AtLeast(figure) => format!("at least {}", number(figure, unit)),
        Value::Flag(flag) => flag.to_string(),
        Value::Words { seen, complete } => {
            let Unit::Words(words) = unit else { return String::new() };
            let seen = words.iter().enumerate().filter(|(bit, _)| seen & (1 << bit) != 0);
            let mut seen: Vec<&str> = seen.map(|(_, word)| *word).collect();
            if !complete {
                seen.push("unknown");
            }
            if seen.is_empty() {
                seen.push("none");
            }
            seen.join(", ")
        }
    }
}

/// Formats a number with its unit.
pub fn number(number: f64, unit: Unit) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "parts of a byte are not shown")]
    let bytes = || format!("{:#}", bailiff_size::Bytes(number as i128));
    match unit {
        Unit::Percent => format!("{:.1}%", number * 100.0).replace(".0%", "%"),
        Unit::Bytes => bytes(),
        Unit::BytesPerSecond => format!("{}/s", bytes()),
        Unit::Duration => {
            let whole = std::time::Duration::try_from_secs_f64(number.max(0.0).floor());
            whole.map_or_else(|_| number.to_string(), |time| humantime::format_duration(time).to_string())
        }
        Unit::Count | Unit::Flag | Unit::Words(_) => number.to_string(),
    }
}

/// Returns whether nothing can be known about a target, so that it does not count as unknown: one of its processes is
/// younger than two intervals, it is a pod without GPU memory, or it is a Slurm job. After a restart of the exporter, the state of
/// a job's GPUs stays unknown until the job uses them.
pub(crate) fn is_unknown_by_nature(target: &Target, view: &View) -> bool {
    target.kind == Kind::SlurmJob
        || (target.kind == Kind::Pod && target.processes.is_empty())
        || view.processes(target).any(|process| match (view.age(process), process.first_seq) {
            (Some(age), _) => age < view.interval() * NEW_INTERVALS,
            (None, Some(first)) => view.snapshot.seq.saturating_sub(first) < u64::from(NEW_INTERVALS),
            (None, None) => false,
        })
}
