//! Parses a rules file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::condition_parser::ConditionParser;
use super::context::LoadContext;
use super::rule::{self, Defaults};
use super::{
    Action, Channel, Condition, Exception, Field, Kubernetes, Limits, Mode, Policy, Rule, Span, channels,
    digest, keys, kubernetes, leases, slurm,
};
use crate::value::Unit;
use crate::yaml::quantity::number;
use crate::yaml::{
    self, Data, Entry, Faults, Fields, Node, count, expected, flag, list, quantity, quoted, some_time, time,
};

/// What belongs into an empty file.
const EMPTY: &str = "a policy begins with `version: 1` and contains at least one rule";

/// A policy with its warnings.
#[derive(Debug)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    /// Warnings.
    pub warnings: Faults,
}

/// Parses and checks a file with this name.
///
/// # Errors
/// All errors of the file, with its warnings.
pub fn load(bytes: &[u8], name: &str, context: LoadContext) -> Result<Loaded, Faults> {
    let (root, mut faults) = yaml::read(bytes, name, EMPTY)?;
    let Some(fields) = Fields::open(&root, keys::file(), &mut faults) else { return Err(faults) };
    let (policy, faults) = policy(&fields, bytes, context, faults);
    match policy {
        Some(policy) if faults.errors() == 0 => Ok(Loaded { policy, warnings: faults }),
        _ => Err(faults),
    }
}

fn policy(
    fields: &Fields<'_>,
    bytes: &[u8],
    context: LoadContext,
    mut faults: Faults,
) -> (Option<Policy>, Faults) {
    version(fields, &mut faults);
    let defaults = defaults(fields, &mut faults);
    let limits = limits(fields, &mut faults);
    let allow_root = fields.or(("allow_root", false), flag, &mut faults);
    let mut channels =
        fields.get("notify").map(|node| channels::read(node, context, &mut faults)).unwrap_or_default();
    let leases = fields.get("leases").map(|node| leases::read(node, context.is_redis_address, &mut faults));
    let slurm = fields
        .get("slurm")
        .map_or_else(|| Some(slurm::Slurm::default()), |node| slurm::read(node, &mut faults));
    let kubernetes = fields.get("kubernetes").map(|node| kubernetes::read(node, &mut faults));
    write_events(&mut channels, kubernetes.as_ref(), fields, &mut faults);
    let ttys = channels.iter().filter(|(_, channel)| **channel == Channel::Tty);
    let file = rule::File {
        defaults,
        channels: entries(fields, "notify").iter().map(|entry| entry.name.as_str()).collect(),
        ttys: ttys.map(|(name, _)| name.as_str()).collect(),
        now: context.now,
    };
    if let Some(conditions) = fields.get("conditions") {
        named_conditions(conditions, &mut faults);
    }
    let mut conditions = ConditionParser::new(faults, entries(fields, "conditions"));
    let protect = fields.entry("protect").filter(|entry| !entry.value.is_null());
    let protect = protect.map(|entry| rule::protect(entry, &file, &mut conditions)).unwrap_or_default();
    let rules = fields.get("rules").map(|node| rules(node, &file, &mut conditions)).unwrap_or_default();
    let mut faults = conditions.finish();
    unused_channels(entries(fields, "notify"), &rules, &mut faults);
    excepted_in_one_rule_only(fields, (&rules, &protect), &mut faults);
    if leases.is_none() {
        nowhere_to_release(fields, &rules, &mut faults);
    }
    if kubernetes.is_none() {
        nobody_to_evict(fields, &rules, &mut faults);
    }
    let policy = limits.zip(allow_root).zip(slurm).map(|((limits, allow_root), slurm)| Policy {
        sha256: digest::sha256(bytes),
        interval: defaults.interval,
        limits,
        protect,
        allow_root,
        channels,
        leases: leases.flatten().map(Arc::new),
        slurm: Arc::new(slurm),
        kubernetes: kubernetes.flatten().map(Arc::new),
        rules,
    });
    (policy, faults)
}

fn entries<'a>(fields: &Fields<'a>, name: &str) -> &'a [Entry] {
    fields.get(name).map(Node::entries).unwrap_or_default()
}

fn version(fields: &Fields<'_>, faults: &mut Faults) {
    if let Some(node) = fields.get("version")
        && node.text() != Some("1")
    {
        expected(node, "`1`, the only supported version", faults);
    }
}

/// An invalid default counts as not given, so that parsing continues.
fn defaults(fields: &Fields<'_>, faults: &mut Faults) -> Defaults {
    let mode = fields.given("mode", rule::mode, faults).unwrap_or(Mode::DryRun);
    let no_interval = ("the interval must be above 0", "the exporter's default is `5s`");
    let interval = fields.given("interval", |node, faults| some_time(node, no_interval, faults), faults);
    let usual = Defaults {
        mode,
        max_gap: 2,
        startup_grace: Duration::from_mins(10),
        clear_after: Span::Samples(3),
        grace: Duration::from_mins(1),
        cooldown: Duration::from_mins(30),
        interval,
    };
    let fields = fields.map("defaults", keys::table("defaults"), faults);
    let defaults = usual.overridden(&fields, faults).unwrap_or(usual);
    let grace = fields.or(("grace", usual.grace), time, faults).unwrap_or(usual.grace);
    Defaults { grace, ..defaults }
}

fn limits(fields: &Fields<'_>, faults: &mut Faults) -> Option<Limits> {
    let fields = fields.map("limits", keys::table("limits"), faults);
    let mut limit = |name: &str, usual: u32| fields.or((name, usual), count, faults);
    let (gpu, user) = (limit("per_gpu_hour", 2), limit("per_user_hour", 3));
    let (node, processes) = (limit("per_node_hour", 6), limit("max_processes", 512));
    let namespace = limit("per_namespace_hour", 3);
    let mass_min = limit("mass_min", 4);
    let mass_share = fields.or(("mass_share", 0.9), mass_share, faults);
    let at_once = (
        "the value must be above 0, because a breaker that closes at once has no effect",
        "the default is `1h`",
    );
    let hour = Duration::from_hours(1);
    let reset = fields.or(("breaker_reset", hour), |node, faults| some_time(node, at_once, faults), faults);
    Some(Limits {
        mass_share: mass_share?,
        mass_min: mass_min?,
        breaker_reset: reset?,
        per_gpu_hour: gpu?,
        per_user_hour: user?,
        per_node_hour: node?,
        per_namespace_hour: namespace?,
        max_processes: usize::try_from(processes?).ok()?,
    })
}

fn mass_share(node: &Node, faults: &mut Faults) -> Option<f64> {
    let share = quantity(node, "a percentage, such as `90%`", faults, |text| number(text, Unit::Percent))?;
    if share <= 0.0 || share > 1.0 {
        let help = "at 100%, the breaker opens only if every workload matches";
        faults.error(&node.at, "the share must be above 0% and at most 100%", help);
        return None;
    }
    Some(share)
}

fn named_conditions(node: &Node, faults: &mut Faults) {
    match &node.data {
        Data::Map(entries) => {
            for entry in entries {
                yaml::name("a condition", (&entry.name, &entry.at), faults);
            }
        }
        _ => {
            expected(node, "a map from names to conditions, such as `{idle: {gpu_util: {max: 1%}}}`", faults);
        }
    }
}

fn rules<'a>(node: &'a Node, file: &rule::File<'_>, conditions: &mut ConditionParser<'a>) -> Vec<Rule> {
    let items = list(node, "rules", &mut conditions.faults).unwrap_or_default();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for item in items {
        let Some(title) = item.get("name") else { continue };
        let Some(text) = title.text() else { continue };
        if let Some(first) = names.get(text) {
            let message = format!("the rule in line {first} already has the name {}", quoted(text));
            let help = "names identify rules in metrics and in the audit log, so they must be unique";
            conditions.faults.error(&title.at, message, help);
        } else {
            names.insert(text, conditions.faults.line_of(title.at.start));
        }
    }
    items.iter().filter_map(|item| rule::read(item, file, conditions)).collect()
}

/// While rules have errors, it is unknown which channels they use.
fn unused_channels(written: &[Entry], rules: &[Rule], faults: &mut Faults) {
    if faults.errors() > 0 {
        return;
    }
    let notified = rules.iter().flat_map(|rule| &rule.then).filter_map(|step| match &step.action {
        Action::Notify(channels) => Some(channels),
        _ => None,
    });
    let used: BTreeSet<&str> = notified.flatten().map(String::as_str).collect();
    for entry in written.iter().filter(|entry| !used.contains(entry.name.as_str())) {
        let message = format!("the channel {} is not used by any rule", quoted(&entry.name));
        faults.warn(&entry.at, message, "remove it, or add it to a `notify` step");
    }
}

/// Warns if a user is exempt from one rule only: another rule may still end their processes.
fn excepted_in_one_rule_only(
    fields: &Fields<'_>,
    (rules, protect): (&[Rule], &[Exception]),
    faults: &mut Faults,
) {
    if faults.errors() > 0 {
        return;
    }
    let items = fields.get("rules").map(Node::items).unwrap_or_default();
    let ends = |rule: &&Rule| {
        let steps = rule.then.iter().map(|step| &step.action);
        steps.into_iter().any(Action::ends_processes)
            && rule.select.as_ref().is_none_or(|select| users(select).is_empty())
    };
    for (rule, item) in rules.iter().zip(items) {
        let Some(entry) = item.entries().iter().find(|entry| entry.name == "except") else { continue };
        for user in rule.except.iter().flat_map(|exception| users(&exception.condition)) {
            let exempt = |other: &Rule| {
                other.except.iter().chain(protect).any(|it| users(&it.condition).contains(&user))
            };
            let other = rules.iter().filter(ends).find(|other| other.name != rule.name && !exempt(other));
            let Some(other) = other else { continue };
            let message = format!(
                "{} is exempt only from this rule; {} can still terminate their processes",
                quoted(&user),
                quoted(&other.name)
            );
            let help = "add the exception to that rule as well, or use `protect`, which applies to all rules";
            faults.warn(&entry.at, message, help);
            break;
        }
    }
}

/// Returns users that a condition names.
fn users(condition: &Condition) -> Vec<String> {
    match condition {
        Condition::Select(selector) if selector.field == Field::Users => {
            selector.patterns.iter().map(ToString::to_string).collect()
        }
        Condition::Any(conditions) => conditions.iter().flat_map(users).collect(),
        Condition::All(conditions) if conditions.len() == 1 => conditions.iter().flat_map(users).collect(),
        _ => Vec::new(),
    }
}

/// Fills in the socket of channels that write Events; adds an error if there is none.
fn write_events(
    channels: &mut BTreeMap<String, Channel>,
    kubernetes: Option<&Option<Kubernetes>>,
    fields: &Fields<'_>,
    faults: &mut Faults,
) {
    for (name, channel) in channels {
        let Channel::Event(socket) = channel else { continue };
        let at = entries(fields, "notify").iter().find(|entry| entry.name == *name);
        match (kubernetes, at) {
            (Some(kubernetes), _) => {
                *socket = kubernetes.as_ref().map(|found| found.socket.clone()).unwrap_or_default();
            }
            (None, Some(entry)) => {
                let message =
                    format!("the channel {} writes Events, but the file has no `kubernetes`", quoted(name));
                faults.error(&entry.at, message, "add `kubernetes: {}`, and run `bailiff-kubernetes`");
            }
            (None, None) => {}
        }
    }
}

/// Adds an error about `evict_pod` or `stop_owner` without `kubernetes`.
fn nobody_to_evict(fields: &Fields<'_>, rules: &[Rule], faults: &mut Faults) {
    let evicts = |rule: &&Rule| rule.then.iter().any(|step| step.action.asks_kubernetes());
    if let (Some(rule), Some(entry)) = (rules.iter().find(evicts), fields.entry("rules")) {
        let message = format!(
            "the rule {} cannot evict or stop a pod, because the file has no `kubernetes`",
            quoted(&rule.name)
        );
        let help = "add `kubernetes: {}`, and run `bailiff-kubernetes` (docs/kubernetes.md)";
        faults.error(&entry.at, message, help);
    }
}

/// Warns about `release_lease` without the address of a pool.
fn nowhere_to_release(fields: &Fields<'_>, rules: &[Rule], faults: &mut Faults) {
    let releases = |rule: &&Rule| rule.then.iter().any(|step| step.action == Action::ReleaseLease);
    if let (Some(rule), Some(entry)) = (rules.iter().find(releases), fields.entry("rules")) {
        let message = format!(
            "the rule {} cannot release a lease, because the file has no `leases`",
            quoted(&rule.name)
        );
        let help = "add the lease pool: `leases: {redis: redis://127.0.0.1:6379/0}`";
        faults.warn(&entry.at, message, help);
    }
}
