//! Texts of a target, such as names and paths, and how selectors match them.

use std::borrow::Cow;

use bailiff_snapshot::pod_resources::PodAllocation;
use bailiff_snapshot::slurm::JobRecord;
use bailiff_snapshot::{Place, Truth, redact, wire};

use crate::Kind;
use crate::policy::{Field, Pattern, Selector};
use crate::process::ProcessInfo;
use crate::process::Program;
use crate::view::{Target, View};

/// A text of a process.
enum Text<'a> {
    Known(Cow<'a, str>),
    /// The text is longer than what is known of it.
    Cut(&'a str),
    /// The text exists, but was not read.
    Unread,
}

/// Known facts about one process of a target: a process with memory, one without, or one read at the time of an
/// action. By default, nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MemberFacts<'a> {
    pub(crate) pid: Option<u32>,
    pub(crate) comm: Option<&'a str>,
    uid: Option<u32>,
    user: Option<&'a str>,
    groups: Option<&'a [String]>,
    exe: Option<&'a str>,
    command: Option<&'a str>,
    place: Option<&'a Place>,
    ended: Ended,
    /// The Slurm job, if this stands for a job and not for a process.
    pub(crate) job: Option<&'a JobRecord>,
    /// An allocation of the pod, if this stands for a pod of which no process was read.
    pub(crate) allocation: Option<&'a PodAllocation>,
}

/// Whether a process has exited; then it is known to have no program and no command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Ended {
    #[default]
    No,
    Yes,
}

impl Ended {
    fn of(state: &str) -> Self {
        if matches!(state, "zombie" | "dead") { Self::Yes } else { Self::No }
    }
}

impl<'a> MemberFacts<'a> {
    pub(crate) fn holder(process: &'a wire::Process) -> Self {
        let Some(facts) = &process.facts else { return Self { pid: Some(process.pid), ..Self::default() } };
        Self {
            pid: Some(process.pid),
            comm: Some(&facts.comm),
            uid: facts.uid,
            user: facts.user.as_deref(),
            groups: facts.groups.as_deref(),
            exe: facts.exe.as_deref(),
            command: facts.command.as_deref(),
            place: Some(&facts.place),
            ended: Ended::of(&process.state),
            ..Self::default()
        }
    }

    pub(crate) fn relative(relative: &'a wire::Relative, view: &'a View) -> Self {
        let groups = relative.uid.and_then(|uid| view.snapshot.groups.get(&uid));
        Self {
            pid: Some(relative.pid),
            comm: Some(&relative.comm),
            uid: relative.uid,
            user: relative.user.as_deref(),
            groups: groups.map(Vec::as_slice),
            exe: relative.exe.as_deref(),
            command: relative.command.as_deref(),
            place: Some(&relative.place),
            ended: Ended::of(&relative.state),
            ..Self::default()
        }
    }

    /// Creates the facts of a Slurm job, which has an owner and an id, but no program and no cgroup.
    pub(crate) fn job(job: &'a JobRecord, view: &'a View) -> Self {
        Self {
            uid: Some(job.uid),
            user: job.user.as_deref().or_else(|| user_named(view, job.uid)),
            groups: groups_of(view, Some(job.uid)),
            job: Some(job),
            ..Self::default()
        }
    }

    /// Creates the facts of a pod of which no process was read: only its name is known.
    pub(crate) fn pod(allocation: &'a PodAllocation) -> Self {
        Self { allocation: Some(allocation), ..Self::default() }
    }

    /// Creates the facts of a process read at the time of an action. Names of users and groups come from the
    /// view; `place` is the process's own, with the names of its pod.
    pub(crate) fn met(
        person: &'a ProcessInfo,
        (program, place): (&'a Program, &'a Place),
        view: &'a View,
    ) -> Self {
        let ended = crate::process::is_over(person.stat.state) && person.stat.threads < 2;
        Self {
            pid: Some(person.stat.key.pid),
            comm: Some(&person.stat.comm),
            uid: Some(person.uid),
            user: user_named(view, person.uid),
            groups: groups_of(view, Some(person.uid)),
            exe: program.exe.as_deref(),
            command: program.command.as_deref(),
            place: Some(place),
            ended: if ended { Ended::Yes } else { Ended::No },
            ..Self::default()
        }
    }
}

/// Returns whether a selector matches one of a target's processes.
pub(crate) fn select(selector: &Selector, target: &Target, view: &View) -> Truth {
    if selector.field == Field::Gpus {
        let seen = any(view.gpus(target).map(|gpu| meant(selector, gpu_texts(gpu))));
        // On a lost GPU, or one without a process list, the target may have further processes.
        let more = || !matches!(target.kind, Kind::Gpu | Kind::Lease) && view.may_hold_more(target);
        return if seen == Truth::False && more() { Truth::Unknown } else { seen };
    }
    if let Some(held) = view.held(target)
        && matches!(selector.field, Field::Users | Field::Groups)
    {
        return match selector.field {
            Field::Users => is_owned(selector, held.uid, held.user.as_deref()),
            _ => meant(selector, groups(groups_of(view, held.uid))),
        };
    }
    any(matched(target, view).map(|member| select_member(selector, &member, (target, view))))
}

/// Returns what `select` considers of a target: its processes with memory, and the job itself, or the pod if it has none.
fn matched<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = MemberFacts<'a>> {
    let job = view.job(target).map(|job| MemberFacts::job(job, view));
    let without_holders = || target.processes.is_empty();
    let pod = view.pod_allocations(target).next().filter(|_| without_holders());
    let pod = pod.map(MemberFacts::pod);
    view.processes(target).map(MemberFacts::holder).chain(job).chain(pod)
}

/// Returns whether a selector matches a member. GPUs are those of the whole target.
pub(crate) fn select_member(
    selector: &Selector,
    member: &MemberFacts<'_>,
    (target, view): (&Target, &View),
) -> Truth {
    // The most frequent fields are evaluated without allocating a list of texts.
    match (selector.field, member.comm) {
        (Field::Gpus, _) => select(selector, target, view),
        (Field::Comms, Some(comm)) => is_named(selector, comm).into(),
        (Field::Users, _) => is_owned(selector, member.uid, member.user),
        (field, _) => meant(selector, texts(field, member)),
    }
}

/// Returns whether all texts of a selector were unreadable.
pub fn unread(field: Field, target: &Target, view: &View) -> bool {
    let all = all(field, target, view);
    !all.is_empty() && all.iter().all(|text| matches!(text, Text::Unread))
}

fn is_named(selector: &Selector, text: &str) -> bool {
    selector.patterns.iter().any(|pattern| pattern.matches(text))
}

/// Owners are matched by name or by number.
fn is_owned(selector: &Selector, uid: Option<u32>, name: Option<&str>) -> Truth {
    let Some(uid) = uid else { return Truth::Unknown };
    let numbered = |pattern: &Pattern| match pattern {
        Pattern::Text(text) => text.parse() == Ok(uid),
        Pattern::Glob(_) | Pattern::Regex(_) => false,
    };
    match name {
        _ if selector.patterns.iter().any(numbered) => Truth::True,
        Some(name) => is_named(selector, name).into(),
        // If all patterns are numbers, no name is needed.
        None if selector.patterns.iter().all(is_number) => Truth::False,
        None => Truth::Unknown,
    }
}

fn is_number(pattern: &Pattern) -> bool {
    matches!(pattern, Pattern::Text(text) if text.parse::<u32>().is_ok())
}

fn any(each: impl Iterator<Item = Truth>) -> Truth {
    each.fold(Truth::False, Truth::or)
}

fn meant(selector: &Selector, texts: Vec<Text<'_>>) -> Truth {
    any(texts.into_iter().map(|text| match text {
        Text::Known(text) => is_named(selector, &text).into(),
        Text::Cut(text)
            if selector.patterns.iter().any(|pattern| is_open(pattern) && pattern.matches(text)) =>
        {
            Truth::True
        }
        Text::Cut(_) | Text::Unread => Truth::Unknown,
    }))
}

/// Returns whether a pattern matches a text regardless of what follows the known part.
fn is_open(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Text(_) => false,
        Pattern::Glob(glob) => glob.glob().glob().ends_with('*'),
        Pattern::Regex(_) => pattern.to_string().ends_with(".*"),
    }
}

fn known(text: &str) -> Text<'_> {
    Text::Known(Cow::Borrowed(text))
}

fn or_unread(text: Option<&str>) -> Vec<Text<'_>> {
    vec![text.map_or(Text::Unread, known)]
}

fn gpu_texts(gpu: &wire::Gpu) -> Vec<Text<'_>> {
    let uuid = gpu.uuid.as_deref().map_or(Text::Unread, known);
    let parent = gpu.parent_uuid.as_deref().map(known);
    [known(&gpu.index), uuid].into_iter().chain(parent).collect()
}

fn owner(uid: Option<u32>, name: Option<&str>) -> Vec<Text<'_>> {
    let Some(uid) = uid else { return vec![Text::Unread] };
    vec![Text::Known(Cow::Owned(uid.to_string())), name.map_or(Text::Unread, known)]
}

fn groups(groups: Option<&[String]>) -> Vec<Text<'_>> {
    groups.map_or_else(|| vec![Text::Unread], |groups| groups.iter().map(|group| known(group)).collect())
}

/// Returns the groups of a user, from one of the snapshot's processes.
fn groups_of(view: &View, uid: Option<u32>) -> Option<&[String]> {
    if let Some(groups) = view.snapshot.groups.get(&uid?) {
        return Some(groups);
    }
    let facts = view.snapshot.processes.iter().filter_map(|process| process.facts.as_ref());
    facts.filter(|facts| facts.uid == uid).find_map(|facts| facts.groups.as_deref())
}

/// Returns all texts of a target for a field.
fn all<'a>(field: Field, target: &'a Target, view: &'a View) -> Vec<Text<'a>> {
    match (field, view.held(target)) {
        (Field::Gpus, _) => view.gpus(target).flat_map(gpu_texts).collect(),
        (Field::Users, Some(held)) => owner(held.uid, held.user.as_deref()),
        (Field::Groups, Some(held)) => groups(groups_of(view, held.uid)),
        _ => matched(target, view).flat_map(|member| texts(field, &member)).collect(),
    }
}

/// Returns the name of a user, from one of the snapshot's processes.
fn user_named(view: &View, uid: u32) -> Option<&str> {
    let facts = view.snapshot.processes.iter().filter_map(|process| process.facts.as_ref());
    let holders = facts.map(|facts| (facts.uid, facts.user.as_deref()));
    let relatives = view.snapshot.relatives.iter().flatten();
    let others = relatives.map(|relative| (relative.uid, relative.user.as_deref()));
    holders.chain(others).filter(|(owner, _)| *owner == Some(uid)).find_map(|(_, user)| user)
}

fn texts<'a>(field: Field, member: &MemberFacts<'a>) -> Vec<Text<'a>> {
    match field {
        Field::Users => owner(member.uid, member.user),
        Field::Groups => groups(member.groups),
        _ if let Some(job) = member.job => match field {
            Field::SlurmJobs => {
                [&job.job].into_iter().chain(&job.sluid).map(|id| known(id.as_ref())).collect()
            }
            _ => Vec::new(),
        },
        _ if let Some(allocation) = member.allocation => match field {
            Field::Namespaces => vec![known(&allocation.container.namespace)],
            Field::Pods => {
                let uid = allocation.pod_uid.as_deref().map(known);
                [known(&allocation.container.pod)].into_iter().chain(uid).collect()
            }
            Field::SlurmJobs => Vec::new(),
            _ => vec![Text::Unread],
        },
        Field::Comms => or_unread(member.comm),
        Field::Exe | Field::Cmdline if member.ended == Ended::Yes => Vec::new(),
        Field::Exe => program(member.exe),
        Field::Cmdline => match member.command {
            Some(line) if redact::is_cut(line) => vec![Text::Cut(line)],
            line => or_unread(line),
        },
        // Without a cgroup, pod, container and job are unknown as well.
        _ => match member.place.filter(|place| !place.cgroup.is_empty()) {
            Some(place) => places(field, place),
            None => vec![Text::Unread],
        },
    }
}

/// Returns the path of a program; if the file was replaced on disk, also the path without ` (deleted)`.
fn program(exe: Option<&str>) -> Vec<Text<'_>> {
    let replaced = exe.and_then(|path| path.strip_suffix(" (deleted)"));
    or_unread(exe).into_iter().chain(replaced.map(known)).collect()
}

fn places(field: Field, place: &Place) -> Vec<Text<'_>> {
    match field {
        Field::Cgroups => vec![known(&place.cgroup)],
        Field::Namespaces if place.pod_uid.is_some() => or_unread(place.namespace.as_deref()),
        Field::Pods if place.pod_uid.is_some() => {
            let name = place.pod.as_deref().map_or(Text::Unread, known);
            place.pod_uid.as_deref().map(known).into_iter().chain([name]).collect()
        }
        Field::Containers => place.container.as_deref().map(known).into_iter().collect(),
        Field::SlurmJobs => place.slurm_job.as_deref().map(known).into_iter().collect(),
        // A process without a pod has no pod name; other fields are handled above.
        _ => Vec::new(),
    }
}

/// Formats the value of a selector's field for a target.
pub(crate) fn shown(field: Field, target: &Target, view: &View) -> String {
    listed(all(field, target, view))
}

/// The same for one member.
pub(crate) fn shown_of(field: Field, member: &MemberFacts<'_>, (target, view): (&Target, &View)) -> String {
    if field == Field::Gpus { shown(field, target, view) } else { listed(texts(field, member)) }
}

fn listed(texts: Vec<Text<'_>>) -> String {
    let mut shown: Vec<String> = Vec::new();
    for text in texts {
        let text = match text {
            Text::Known(text) => text.into_owned(),
            Text::Cut(text) => text.to_owned(),
            Text::Unread => "unknown".to_owned(),
        };
        if !shown.contains(&text) && shown.len() < 8 {
            shown.push(text);
        }
    }
    if shown.is_empty() {
        shown.push("none".to_owned());
    }
    shown.join(", ")
}
