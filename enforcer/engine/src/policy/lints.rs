//! Warnings about valid but dangerous rules: periods that are too short, missing notifications, and conditions on
//! GPU idleness alone.

use std::time::Duration;

use super::steps::Placed;
use super::{Action, Condition, Field, Rule, Span, Step};
use crate::Kind;
use crate::value::Test;
use crate::yaml::{Fault, Faults, Fields};

/// Fewer samples may be coincidence.
const LEAST_SAMPLES: u32 = 3;

/// A shorter time may be coincidence.
const LEAST_TIME: Duration = Duration::from_secs(30);

/// Places of the parts of a rule.
pub(super) struct Places<'a> {
    /// Names of the channels that write to terminals.
    pub(super) ttys: &'a [&'a str],
    /// Keys of the rule.
    pub(super) fields: Fields<'a>,
    /// Steps of the rule.
    pub(super) placed: Vec<Placed<'a>>,
}

/// Checks a valid rule.
pub(super) fn check(rule: &Rule, places: &Places<'_>, interval: Option<Duration>, faults: &mut Faults) {
    let Some(first) = places.placed.iter().find(|placed| placed.step.action.destructive()) else { return };
    if !long_enough(rule.span, first.step.after, interval) {
        too_short(places, "for", "a destructive step needs a longer window", faults);
    }
    if let Some(pick) = &rule.pick
        && !long_enough(pick.idle_for, Span::Samples(0), interval)
    {
        too_short(places, "pick", "a destructive step needs a longer `idle_for`", faults);
    }
    notice_first(rule, places, faults);
    grace(places, faults);
    idle_by_gpu_alone(rule, places, faults);
    memory_is_free(rule, places, faults);
    health_ends_processes(rule, places, faults);
    started_again(rule, places, faults);
}

/// Warns about the termination of processes in pods, which does not end them for good.
fn started_again(rule: &Rule, places: &Places<'_>, faults: &mut Faults) {
    let mut selectors = rule.select.iter().flat_map(Condition::selectors);
    if !selectors.any(|selector| matches!(selector.field, Field::Namespaces | Field::Pods)) {
        return;
    }
    let ends = |placed: &&Placed<'_>| matches!(placed.step.action, Action::Terminate { .. });
    if let Some(placed) = places.placed.iter().find(ends) {
        let message =
            "in a pod with `restartPolicy: Always`, the default, the kubelet starts the container again";
        let help = "use `target: pod` and `evict_pod` (docs/kubernetes.md)";
        faults.warn(&placed.entry.at, message, help);
    }
}

fn too_short(places: &Places<'_>, key: &str, message: &str, faults: &mut Faults) {
    let Some(entry) = places.fields.entry(key) else { return };
    let help =
        "use at least 3 samples and 30s: a shorter observation can be a pause, a checkpoint or a slow read";
    faults.error(&entry.at, message, help);
}

/// Returns whether a span is long enough, in samples or in time. If the interval is known, it must be long enough
/// in samples.
fn long_enough(span: Span, after: Span, interval: Option<Duration>) -> bool {
    let (mut samples, mut time) = (0_u32, Duration::ZERO);
    for span in [span, after] {
        match span {
            Span::Samples(more) => samples = samples.saturating_add(more),
            Span::Time(more) => time = time.saturating_add(more),
        }
    }
    let intervals = interval.map(|interval| span.samples(interval).saturating_add(after.samples(interval)));
    (samples >= LEAST_SAMPLES || time >= LEAST_TIME)
        && intervals.is_none_or(|intervals| intervals >= LEAST_SAMPLES)
}

/// Warns if the owner is not notified in time before a termination, on a channel that can reach them.
fn notice_first(rule: &Rule, places: &Places<'_>, faults: &mut Faults) {
    let Some(end) = places.placed.iter().position(|placed| placed.step.action.ends_processes()) else {
        return;
    };
    let (before, placed) = (&places.placed[..end], &places.placed[end]);
    let notices = before.iter().filter_map(|before| match &before.step.action {
        Action::Notify(channels) => Some((&before.step, channels)),
        _ => None,
    });
    let notices: Vec<(&Step, &Vec<String>)> = notices.collect();
    let name = placed.step.action.name();
    let fault = match notices.last() {
        None if rule.requires_notice(end) => Fault::error(
            &placed.entry.at,
            "no earlier step sends a notification, so this step would be held forever",
        )
        .help("add `{notify: [owner]}` before it, or remove `requires_notice`"),
        None => Fault::warning(&placed.entry.at, format!("the owner is not notified before this `{name}`"))
            .help("notify the owner first: `{notify: [owner]}`, and `after: 20m` for this step"),
        Some((notice, _)) if notice.after == placed.step.after => {
            let message = format!("this `{name}` is due in the same sample as the notification before it");
            Fault::warning(&placed.entry.at, message)
                .help("give the owner time to react: `after: 20m` for this step")
        }
        Some(_) => {
            let mut channels = notices.iter().flat_map(|(_, channels)| *channels);
            let by_tty = channels.all(|channel| places.ttys.contains(&channel.as_str()));
            if !by_tty || places.placed.iter().any(says_whether_notice_is_required) {
                return;
            }
            let message = format!(
                "before this `{name}`, the owner is notified only on terminals, but might not be logged in"
            );
            let help = "batch jobs and notebooks have no terminal: add a webhook or a program, or set `requires_notice` of `terminate` to `true` (wait until a notification was delivered) or `false`";
            Fault::warning(&placed.entry.at, message).help(help)
        }
    };
    faults.push(fault);
}

fn says_whether_notice_is_required(placed: &Placed<'_>) -> bool {
    placed.entry.value.get("requires_notice").is_some()
}

/// Warns about a grace period of 0, in which a program cannot save anything.
fn grace(places: &Places<'_>, faults: &mut Faults) {
    for placed in &places.placed {
        if matches!(placed.step.action, Action::Terminate { grace, .. } if grace.is_zero()) {
            let help = "give the processes time to save their work: `terminate: {grace: 60s}`";
            faults.warn(
                &placed.entry.at,
                "SIGKILL follows SIGTERM immediately, because the grace is 0s",
                help,
            );
        }
    }
}

/// Warns about `pick` without a condition on free memory, because its purpose is to free memory.
fn memory_is_free(rule: &Rule, places: &Places<'_>, faults: &mut Faults) {
    let (Some(_), Some(entry)) = (&rule.pick, places.fields.entry("when")) else { return };
    if wants_free_memory(&rule.when) {
        let help = "to act while memory is short, write `vram_free: {below: 8GiB}`";
        faults.warn(&entry.at, "a workload is picked even while a lot of memory is free", help);
    }
}

fn wants_free_memory(condition: &Condition) -> bool {
    match condition {
        Condition::Leaf(leaf) => {
            let lower = matches!(leaf.test, Test::Within(bounds) if bounds.min.or(bounds.above).is_some() && bounds.max.or(bounds.below).is_none());
            leaf.attribute.name == "vram_free" && lower
        }
        Condition::Select(_) | Condition::Not(_) => false,
        Condition::All(conditions) | Condition::Any(conditions) => conditions.iter().any(wants_free_memory),
    }
}

/// Warns about ending processes because of the health of a GPU, for which they may not be the cause.
fn health_ends_processes(rule: &Rule, places: &Places<'_>, faults: &mut Faults) {
    const HEALTH: [&str; 6] = [
        "recovery_action",
        "row_remap_pending",
        "row_remap_failed",
        "ecc_uncorrected",
        "clock_event",
        "xid_class",
    ];
    let ends = places.placed.iter().find(|placed| placed.step.action.ends_processes());
    let health = HEALTH.into_iter().find(|attribute| rule.when.compares(attribute));
    if let (Some(placed), Some(attribute)) = (ends, health) {
        let message =
            format!("`{attribute}` shows a problem of the GPU, which its processes may not have caused");
        faults.warn(
            &placed.entry.at,
            message,
            "use only `flag` and `notify`, so that an administrator can drain the node",
        );
    }
}

/// Warns about conditions on GPU idleness alone: data loading, checkpoints and compilation leave the GPU idle
/// and the CPU busy.
fn idle_by_gpu_alone(rule: &Rule, places: &Places<'_>, faults: &mut Faults) {
    let (key, condition) = match (&rule.pick, rule.target) {
        (Some(pick), _) => ("pick", &pick.from),
        (None, Kind::Process | Kind::Workload) => ("when", &rule.when),
        _ => return,
    };
    if wants_idle_gpu(condition)
        && !condition.compares("cpu_util")
        && let Some(entry) = places.fields.entry(key)
    {
        let help = "the process may be loading data, compiling or writing a checkpoint: add `cpu_util: {max: 5%}`, and `io_rate` if it can be read";
        faults.warn(&entry.at, "an idle GPU alone is not a reliable sign of an idle process", help);
    }
}

fn wants_idle_gpu(condition: &Condition) -> bool {
    match condition {
        Condition::Leaf(leaf) => {
            let upper = matches!(leaf.test, Test::Within(bounds) if bounds.max.or(bounds.below).is_some());
            leaf.attribute.name == "gpu_util" && upper
        }
        Condition::Select(_) => false,
        Condition::All(conditions) | Condition::Any(conditions) => conditions.iter().any(wants_idle_gpu),
        Condition::Not(condition) => condition.compares("gpu_util"),
    }
}
