//! The texts that name a target, and whether a selector means it.

use std::borrow::Cow;

use bailiff_snapshot::wire;

use crate::policy::{Field, Kind, Pattern, Selector};
use crate::view::{Target, View};
use bailiff_snapshot::Truth;

/// What is known of one text.
enum Text<'a> {
    Known(Cow<'a, str>),
    /// There is something that was not read.
    Unread,
}

/// Whether one of a target's processes is meant.
pub(crate) fn select(selector: &Selector, target: &Target, view: &View) -> Truth {
    if selector.field == Field::Gpus {
        let seen = any(view.gpus(target).map(|gpu| meant(selector, gpu_texts(gpu))));
        // On one that did not tell who holds it, or that is lost, it may hold memory as well.
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
    any(view.processes(target).map(|process| {
        // The most common questions, without a list of texts being made for each.
        match (selector.field, &process.facts) {
            (Field::Comms, Some(facts)) => is_named(selector, &facts.comm).into(),
            (Field::Users, Some(facts)) => is_owned(selector, facts.uid, facts.user.as_deref()),
            _ => meant(selector, texts(selector.field, process)),
        }
    }))
}

/// Whether nothing of what a selector looks at could be read.
pub(crate) fn unread(field: Field, target: &Target, view: &View) -> bool {
    let all = all(field, target, view);
    !all.is_empty() && all.iter().all(|text| matches!(text, Text::Unread))
}

/// Whether a process that holds nothing is meant. Only its owner, its name and its cgroup are known; what is
/// true of its workload is asked of those that hold.
pub(crate) fn select_relative(selector: &Selector, relative: &wire::Relative, view: &View) -> Truth {
    match selector.field {
        Field::Comms => is_named(selector, &relative.comm).into(),
        Field::Cgroups if relative.cgroup.is_empty() => Truth::Unknown,
        Field::Cgroups => is_named(selector, &relative.cgroup).into(),
        Field::Users => is_owned(selector, relative.uid, user_named(view, relative.uid)),
        _ => Truth::False,
    }
}

fn is_named(selector: &Selector, text: &str) -> bool {
    selector.patterns.iter().any(|pattern| pattern.matches(text))
}

/// An owner is named by name or by number.
fn is_owned(selector: &Selector, uid: Option<u32>, name: Option<&str>) -> Truth {
    let Some(uid) = uid else { return Truth::Unknown };
    let numbered = |pattern: &Pattern| match pattern {
        Pattern::Text(text) => text.parse() == Ok(uid),
        Pattern::Glob(_) | Pattern::Regex(_) => false,
    };
    match name {
        _ if selector.patterns.iter().any(numbered) => Truth::True,
        Some(name) => is_named(selector, name).into(),
        // Where all patterns are numbers, no name is needed.
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
        Text::Unread => Truth::Unknown,
    }))
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

/// The groups of a user who owns one of the snapshot's holders.
fn groups_of(view: &View, uid: Option<u32>) -> Option<&[String]> {
    let facts = view.snapshot.processes.iter().filter_map(|process| process.facts.as_ref());
    facts.filter(|facts| facts.uid == uid).find_map(|facts| facts.groups.as_deref())
}

/// All texts of a target that a field is about.
fn all<'a>(field: Field, target: &'a Target, view: &'a View) -> Vec<Text<'a>> {
    match (field, view.held(target)) {
        (Field::Gpus, _) => view.gpus(target).flat_map(gpu_texts).collect(),
        (Field::Users, Some(held)) => owner(held.uid, held.user.as_deref()),
        (Field::Groups, Some(held)) => groups(groups_of(view, held.uid)),
        _ => view.processes(target).flat_map(|process| texts(field, process)).collect(),
    }
}

/// The name of a user who owns one of the snapshot's holders.
fn user_named(view: &View, uid: Option<u32>) -> Option<&str> {
    let facts = view.snapshot.processes.iter().filter_map(|process| process.facts.as_ref());
    facts.filter(|facts| facts.uid == uid).find_map(|facts| facts.user.as_deref())
}

fn texts(field: Field, process: &wire::Process) -> Vec<Text<'_>> {
    let Some(facts) = &process.facts else { return vec![Text::Unread] };
    let place = &facts.place;
    match field {
        Field::Users => owner(facts.uid, facts.user.as_deref()),
        Field::Groups => groups(facts.groups.as_deref()),
        Field::Comms => vec![known(&facts.comm)],
        Field::Exe => or_unread(facts.exe.as_deref()),
        Field::Cmdline => or_unread(facts.command.as_deref()),
        Field::Cgroups => or_unread(Some(place.cgroup.as_str()).filter(|path| !path.is_empty())),
        // Without a cgroup nothing is known of pods, containers and jobs either.
        _ if place.cgroup.is_empty() => vec![Text::Unread],
        Field::Namespaces if place.pod_uid.is_some() => or_unread(place.namespace.as_deref()),
        Field::Pods if place.pod_uid.is_some() => {
            let name = place.pod.as_deref().map_or(Text::Unread, known);
            place.pod_uid.as_deref().map(known).into_iter().chain([name]).collect()
        }
        Field::Containers => place.container.as_deref().map(known).into_iter().collect(),
        Field::SlurmJobs => place.slurm_job.as_deref().map(known).into_iter().collect(),
        Field::Namespaces | Field::Pods | Field::Gpus => Vec::new(),
    }
}

/// What a selector's field says of a target, for people.
pub(crate) fn shown(field: Field, target: &Target, view: &View) -> String {
    let mut shown: Vec<String> = Vec::new();
    for text in all(field, target, view) {
        let text = match text {
            Text::Known(text) => text.into_owned(),
            Text::Unread => "unknown".to_owned(),
        };
        if !shown.contains(&text) && shown.len() < 8 {
            shown.push(text);
        }
    }
    shown.join(", ")
}
