//! `check`: the errors of a file, or one line per rule that says what is flagged, notified or terminated, and
//! when.

use std::fmt::Write;
use std::time::Duration;

use humantime::format_duration;
use serde::Serialize;

use super::context::LoadContext;
use super::load::{Loaded, load};
use super::{
    Action, Condition, Exception, Fault, FaultStyle, JobNodes, Mode, Policy, Recreated, Rule, Selector, Span,
};
use crate::Kind;

/// Sampling interval for files that name none.
const USUAL_INTERVAL: Duration = Duration::from_secs(5);

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Name of the file.
    #[serde(rename = "file")]
    pub name: String,
    /// Whether the daemon would run with it.
    #[serde(rename = "valid")]
    pub sound: bool,
    /// Whether a rule takes destructive steps.
    #[serde(rename = "enforces")]
    pub acts: bool,
    /// Errors and warnings, sorted by place; at most a hundred.
    pub faults: Vec<Fault>,
    /// The result as text.
    #[serde(skip)]
    pub text: String,
}

/// Checks a file of this name.
pub fn report(name: &str, bytes: &[u8], context: LoadContext, style: FaultStyle) -> CheckReport {
    let (faults, policy) = match load(bytes, name, context) {
        Ok(Loaded { policy, warnings }) => (warnings, Some(policy)),
        Err(faults) => (faults, None),
    };
    let summary = policy.as_ref().map(|policy| summary(name, policy)).unwrap_or_default();
    CheckReport {
        name: name.to_owned(),
        sound: policy.is_some(),
        acts: policy.is_some_and(|policy| policy.rules.iter().any(acts)),
        faults: faults.iter().cloned().collect(),
        text: format!("{}{summary}", faults.render(style)),
    }
}

fn summary(name: &str, policy: &Policy) -> String {
    let interval = policy.interval.unwrap_or(USUAL_INTERVAL);
    let count = policy.rules.len();
    let rules = if count == 1 { "rule" } else { "rules" };
    let mut text = format!(
        "{}: {count} {rules}, at a sampling interval of {}\n",
        name.escape_default(),
        format_duration(interval)
    );
    for rule in &policy.rules {
        let _ = writeln!(text, "  {}", line(rule, interval));
    }
    if !policy.rules.iter().any(acts) {
        text.push_str("  No rule in this file takes a destructive step.\n");
    }
    text
}

fn acts(rule: &Rule) -> bool {
    rule.mode == Mode::Enforce && rule.then.iter().any(|step| step.action.destructive())
}

/// Describes a rule: `idle: enforces on processes; when gpu_util max 1% for 60 samples (5m): terminates (60s
/// from SIGTERM to SIGKILL)`.
fn line(rule: &Rule, interval: Duration) -> String {
    let does = match (rule.mode, rule.then.iter().any(|step| step.action.destructive())) {
        (_, false) => "evaluates",
        (Mode::DryRun, true) => "would act on",
        (Mode::Enforce, true) => "enforces on",
    };
    let kind = match rule.target {
        Kind::Process => "processes",
        Kind::Workload => "workloads",
        Kind::Gpu => "GPUs",
        Kind::Lease => "leases",
        Kind::MpsServer => "MPS servers",
        Kind::SlurmJob => "Slurm jobs",
        Kind::Pod => "pods",
    };
    let of = rule.select.as_ref().map(|select| format!(" with {}", text(select))).unwrap_or_default();
    let except: String = rule.except.iter().map(exempted).collect();
    let pick = rule.pick.as_ref().map(|pick| {
        let order: Vec<&str> = pick.order.iter().map(|order| order.name()).collect();
        let from = text(&pick.from);
        format!(
            ", picks from the workloads with {from} for {}, ordered by {}",
            long(pick.idle_for, interval),
            order.join(", ")
        )
    });
    let steps: Vec<String> = rule
        .then
        .iter()
        .map(|step| format!("{}{}", later(step.after, interval), request(&step.action, rule.mode)))
        .collect();
    format!(
        "{}: {does} {kind}{of}{except}; when {} for {}{}: {}",
        rule.name,
        text(&rule.when),
        long(rule.span, interval),
        pick.unwrap_or_default(),
        steps.join(", ")
    )
}

fn exempted(exception: &Exception) -> String {
    let until = exception.until.map(|until| {
        // The last day ends at the first moment of the next.
        let last = std::time::UNIX_EPOCH + until.saturating_sub(Duration::from_secs(1));
        let last = humantime::format_rfc3339_seconds(last).to_string();
        format!(" until {}", last.split('T').next().unwrap_or_default())
    });
    format!(", but not {}{}", text(&exception.condition), until.unwrap_or_default())
}

fn long(span: Span, interval: Duration) -> String {
    match span {
        Span::Samples(samples) => {
            format!("{samples} samples ({})", format_duration(interval.saturating_mul(samples)))
        }
        Span::Time(time) => format_duration(time).to_string(),
    }
}

fn later(after: Span, interval: Duration) -> String {
    match after {
        Span::Samples(0) => String::new(),
        after if after.samples(interval) == 0 => String::new(),
        after => format!("{} after the match ", long(after, interval)),
    }
}

fn request(action: &Action, mode: Mode) -> String {
    let (does, rest) = match action {
        Action::Flag(severity) => ("flag", format!("as {}", severity.name())),
        Action::Notify(channels) => ("send", format!("a notification to {}", channels.join(", "))),
        Action::Signal(signal) => ("send", signal.name.to_string()),
        Action::Terminate { grace, requires_notice } => {
            let notice = if *requires_notice { "once a notification was delivered " } else { "" };
            ("terminate", format!("{notice}({} from SIGTERM to SIGKILL)", format_duration(*grace)))
        }
        Action::CancelJob { nodes, requires_notice } => {
            let notice = if *requires_notice { " once a notification was delivered" } else { "" };
            let nodes = if *nodes == JobNodes::One { ", if it runs on this node only" } else { "" };
            ("cancel", format!("the Slurm job{notice}{nodes}"))
        }
        Action::EvictPod { recreated, requires_notice } => {
            let notice = if *requires_notice { " once a notification was delivered" } else { "" };
            let owner = if *recreated == Recreated::Skip { ", if nothing creates it again" } else { "" };
            ("evict", format!("the pod{notice}{owner}"))
        }
        Action::StopOwner { requires_notice } => {
            let notice = if *requires_notice { " once a notification was delivered" } else { "" };
            ("stop", format!("the owner of the pod{notice}, if all its pods match on this node"))
        }
        Action::ReleaseLease => ("release", "the lease".to_owned()),
        Action::ShutdownMps => ("shut", "the MPS server down".to_owned()),
        Action::Exec(text) => ("run", format!("{text:?}")),
    };
    if mode == Mode::DryRun && action.destructive() {
        format!("would {does} {rest}")
    } else {
        format!("{does}s {rest}")
    }
}

/// Formats a condition: `gpu_util max 1% and not (users root)`.
fn text(condition: &Condition) -> String {
    let joined = |conditions: &[Condition], with: &str| {
        let parts: Vec<String> = conditions.iter().map(inner).collect();
        parts.join(with)
    };
    match condition {
        Condition::Leaf(leaf) => format!("{} {}", leaf.attribute.name, leaf.comparison),
        Condition::Select(Selector { field, patterns }) => {
            let patterns: Vec<String> =
                patterns.iter().map(|pattern| pattern.to_string().escape_default().to_string()).collect();
            format!("{} {}", field.name(), patterns.join(" or "))
        }
        Condition::All(conditions) => joined(conditions, " and "),
        Condition::Any(conditions) => joined(conditions, " or "),
        Condition::Not(condition) => format!("not {}", inner(condition)),
    }
}

fn inner(condition: &Condition) -> String {
    match condition {
        Condition::All(conditions) | Condition::Any(conditions) if conditions.len() > 1 => {
            format!("({})", text(condition))
        }
        _ => text(condition),
    }
}
