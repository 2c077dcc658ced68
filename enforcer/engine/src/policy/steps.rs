//! Parses `then`: actions and their times, and whether an action fits the rule's kind of target.

use std::time::Duration;

use super::condition_parser::no_such_name;
use super::program::program;
use super::span::span;
use super::{Action, JobNodes, Recreated, Severity, Signal, Span, Step, keys};
use crate::Kind;
use crate::yaml::{Entry, Faults, Fields, Node, flag, list, many, quoted, text, time, word};

/// Signals that request something of a process. Signals that end or stop it at once, or report a crash, are
/// left out.
pub(super) const SIGNALS: [Signal; 13] = [
    signal("SIGHUP", libc::SIGHUP),
    signal("SIGINT", libc::SIGINT),
    signal("SIGQUIT", libc::SIGQUIT),
    signal("SIGUSR1", libc::SIGUSR1),
    signal("SIGUSR2", libc::SIGUSR2),
    signal("SIGALRM", libc::SIGALRM),
    signal("SIGTERM", libc::SIGTERM),
    signal("SIGCONT", libc::SIGCONT),
    signal("SIGURG", libc::SIGURG),
    signal("SIGXCPU", libc::SIGXCPU),
    signal("SIGVTALRM", libc::SIGVTALRM),
    signal("SIGWINCH", libc::SIGWINCH),
    signal("SIGPWR", libc::SIGPWR),
];

const fn signal(name: &'static str, number: i32) -> Signal {
    Signal { number, name }
}

/// Parts of a rule that its steps refer to.
pub(super) struct Around<'a> {
    /// Kind of target, if known.
    pub(super) of: Option<Kind>,
    /// Whether the rule has `pick`.
    pub(super) picks: bool,
    /// Default grace period of `terminate`.
    pub(super) grace: Duration,
    /// Sampling interval of the file, if any.
    pub(super) interval: Option<Duration>,
    /// Names of the channels.
    pub(super) channels: &'a [&'a str],
}

/// A step with its place.
pub(super) struct Placed<'a> {
    /// The step.
    pub(super) step: Step,
    /// The key of its action.
    pub(super) entry: &'a Entry,
}

/// Parses all steps of a rule; invalid ones are left out.
pub(super) fn read<'a>(node: &'a Node, around: &Around<'_>, faults: &mut Faults) -> Vec<Placed<'a>> {
    let mut steps: Vec<Placed<'a>> = Vec::new();
    for item in list(node, "steps, such as `{flag: warning}`", faults).unwrap_or_default() {
        let Some((placed, at)) = step(item, around, faults) else { continue };
        if let Some(before) = steps.last() {
            in_order(before.step.after, (placed.step.after, at), around.interval, faults);
        }
        steps.push(placed);
    }
    steps
}

fn step<'a>(node: &'a Node, around: &Around<'_>, faults: &mut Faults) -> Option<(Placed<'a>, &'a Node)> {
    let before = faults.errors();
    let fields = Fields::open(node, keys::table("step"), faults)?;
    let after = fields.get("after");
    let at = after.unwrap_or(node);
    let after = after.map_or(Some(Span::Samples(0)), |after| span(after, faults));
    let names = keys::table("step").names();
    let is_action = |entry: &&Entry| entry.name != "after" && names.contains(&entry.name.as_str());
    let actions: Vec<&Entry> = fields.entries.iter().filter(is_action).collect();
    let entry = match actions.as_slice() {
        [only] => *only,
        [] if faults.errors() > before => return None,
        [] => {
            let help = format!("add one of {}", names.split_at(1).1.join(", "));
            faults.error(&node.at, "this step has no action", help);
            return None;
        }
        [_, second, ..] => {
            let help = "move it to a separate step; steps run in order";
            faults.error(&second.at, "a step must have exactly one action", help);
            return None;
        }
    };
    fits(entry, around, faults)?;
    let action = if entry.value.is_null() { None } else { action(entry, around, faults) };
    Some((Placed { step: Step { after: after?, action: action? }, entry }, at))
}

/// Checks that an action fits the rule's kind of target.
fn fits(entry: &Entry, around: &Around<'_>, faults: &mut Faults) -> Option<()> {
    let of = around.of?;
    let help = match (entry.name.as_str(), of) {
        ("signal" | "terminate", Kind::Process | Kind::Workload)
        | ("release_lease", Kind::Lease)
        | ("shutdown_mps", Kind::MpsServer)
        | ("cancel_job", Kind::Workload | Kind::SlurmJob)
        | ("evict_pod" | "stop_owner", Kind::Pod)
        | ("flag" | "notify", _)
        | ("exec", Kind::Process | Kind::Workload | Kind::Gpu | Kind::Lease | Kind::MpsServer) => {
            return Some(());
        }
        ("signal" | "terminate" | "exec", Kind::SlurmJob) => {
            "use `cancel_job`, or a rule with `target: workload`: a job may have no process"
        }
        ("signal" | "terminate" | "exec", Kind::Pod) => {
            "use `evict_pod` or `stop_owner`, or a rule with `target: workload`: after a signal, the kubelet can start the container again"
        }
        ("signal" | "terminate", Kind::Gpu) if around.picks => return Some(()),
        ("signal" | "terminate", Kind::Gpu) => "add `pick` to the rule, to select one of the GPU's holders",
        ("signal" | "terminate", Kind::MpsServer) => {
            "use `shutdown_mps`, which uses the MPS control daemon; a signal can hang an MPS server for all clients"
        }
        ("signal" | "terminate", Kind::Lease) => "use `release_lease`, or a rule with `target: workload`",
        ("cancel_job", _) => "use it in rules with `target: workload` or `target: slurm_job`",
        ("evict_pod" | "stop_owner", _) => "use it in rules with `target: pod`",
        ("release_lease", _) => "use it in rules with `target: lease`",
        _ => "use it in rules with `target: mps_server`",
    };
    let message = format!("`{}` is not possible in a rule with `target: {}`", entry.name, of.name());
    faults.error(&entry.at, message, help);
    None
}

fn action(entry: &Entry, around: &Around<'_>, faults: &mut Faults) -> Option<Action> {
    let value = &entry.value;
    match entry.name.as_str() {
        "flag" => word(value, (&Severity::ALL, Severity::name), faults).map(Action::Flag),
        "notify" => notify(value, around.channels, faults).map(Action::Notify),
        "signal" => named_signal(value, faults).map(Action::Signal),
        "terminate" => {
            let fields = Fields::open(value, keys::table("terminate"), faults)?;
            let grace = fields.or(("grace", around.grace), time, faults)?;
            let requires_notice = fields.or(("requires_notice", false), flag, faults)?;
            Some(Action::Terminate { grace, requires_notice })
        }
        "cancel_job" => {
            let fields = Fields::open(value, keys::table("cancel_job"), faults)?;
            let nodes = fields.or(
                ("nodes", JobNodes::One),
                |node, faults| word(node, (&JobNodes::ALL, JobNodes::name), faults),
                faults,
            )?;
            let requires_notice = fields.or(("requires_notice", false), flag, faults)?;
            Some(Action::CancelJob { nodes, requires_notice })
        }
        "evict_pod" => {
            let fields = Fields::open(value, keys::table("evict_pod"), faults)?;
            let recreated = fields.or(
                ("recreated", Recreated::Skip),
                |node, faults| word(node, (&Recreated::ALL, Recreated::name), faults),
                faults,
            )?;
            let requires_notice = fields.or(("requires_notice", false), flag, faults)?;
            Some(Action::EvictPod { recreated, requires_notice })
        }
        "stop_owner" => {
            let fields = Fields::open(value, keys::table("stop_owner"), faults)?;
            let requires_notice = fields.or(("requires_notice", false), flag, faults)?;
            Some(Action::StopOwner { requires_notice })
        }
        "release_lease" => nothing(value, faults).map(|()| Action::ReleaseLease),
        "shutdown_mps" => nothing(value, faults).map(|()| Action::ShutdownMps),
        _ => program(value, faults).map(Action::Exec),
    }
}

fn nothing(node: &Node, faults: &mut Faults) -> Option<()> {
    Fields::open(node, keys::table("nothing"), faults).map(drop)
}

fn notify(node: &Node, channels: &[&str], faults: &mut Faults) -> Option<Vec<String>> {
    let items = many(node, "names of channels", faults)?;
    let mut names = Vec::new();
    for item in items {
        let name = text(item, "the name of a channel", faults)?;
        if channels.contains(&name) {
            names.push(name.to_owned());
        } else {
            faults.push(no_such_name("channel", "notify", (name, &item.at), channels));
        }
    }
    (names.len() == items.len()).then_some(names)
}

fn named_signal(node: &Node, faults: &mut Faults) -> Option<Signal> {
    let name = text(node, "a signal, such as `SIGUSR1`", faults)?;
    let short = name.strip_prefix("SIG").unwrap_or(name);
    if let Some(signal) = SIGNALS.iter().find(|signal| signal.name.strip_prefix("SIG") == Some(short)) {
        return Some(*signal);
    }
    if matches!(short, "KILL" | "STOP") {
        let help = "use `terminate`, which sends SIGTERM first, then SIGKILL, and verifies that the memory is released";
        faults.error(&node.at, format!("a rule cannot send {}", quoted(name)), help);
        return None;
    }
    let names = SIGNALS.map(|signal| signal.name).join(", ");
    let message = format!("{} is not a signal that a rule can send", quoted(name));
    faults.error(&node.at, message, format!("valid signals: {names}"));
    None
}

/// Checks that steps are in the order in which they run.
fn in_order(before: Span, (after, at): (Span, &Node), interval: Option<Duration>, faults: &mut Faults) {
    let zero = |span: Span| span.samples(Duration::from_nanos(1)) == 0;
    let earlier = match (before, after, interval) {
        _ if zero(before) => false,
        _ if zero(after) => true,
        (Span::Samples(before), Span::Samples(after), _) => after < before,
        (Span::Time(before), Span::Time(after), _) => after < before,
        (_, _, Some(interval)) => after.samples(interval) < before.samples(interval),
        (_, _, None) => {
            let help = "write both as samples or both as times, or set `interval` in the file";
            faults.error(
                &at.at,
                "this `after` cannot be compared with the `after` of the previous step",
                help,
            );
            return;
        }
    };
    if earlier {
        let help = "`after` counts from the match for every step; sort the steps by `after`";
        faults.error(&at.at, "this step would run before the previous step", help);
    }
}
