//! Parses a rules file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::condition_parser::ConditionParser;
use super::fault::{Fault, Faults, quoted};
use super::fields::{self, Fields, count, expected, flag, list, quantity, time};
use super::keys::{DEFAULTS, FILE, LIMITS};
use super::quantity::number;
use super::rule::{self, Defaults, Times};
use super::tree::{self, Data, Entry, Node};
use super::{
    Action, Channel, Condition, Exception, Field, Limits, Mode, Policy, Rule, Span, channels, digest, leases,
};
use crate::value::Unit;

/// A policy with its warnings.
#[derive(Debug)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    /// Warnings.
    pub warnings: Faults,
}

/// Context for the check of a file.
#[derive(Debug, Clone, Copy)]
pub struct LoadContext {
    /// Current time since the Unix epoch.
    pub now: Duration,
    /// Returns whether a text is a Redis address.
    pub is_redis_address: fn(&str) -> bool,
}

/// Parses and checks a file with this name.
///
/// # Errors
/// All errors of the file, with its warnings.
pub fn load(bytes: &[u8], name: &str, context: LoadContext) -> Result<Loaded, Faults> {
    let (text, mut faults) = decode(bytes, name)?;
    let Some(root) = tree::parse(text, &mut faults) else { return Err(faults) };
    let Some(fields) = Fields::open(&root, &FILE, &mut faults) else { return Err(faults) };
    let (policy, faults) = policy(&fields, bytes, context, faults);
    match policy {
        Some(policy) if faults.errors() == 0 => Ok(Loaded { policy, warnings: faults }),
        _ => Err(faults),
    }
}

fn decode<'a>(bytes: &'a [u8], name: &str) -> Result<(&'a str, Faults), Faults> {
    let refused = |text: &str, fault: Fault| {
        let mut faults = Faults::none(name, text);
        faults.push(fault);
        faults
    };
    if bytes.len() > tree::LARGEST_BYTES {
        let fault =
            Fault::error(&(0..0), format!("the file has {} bytes; the maximum is 1 MiB", bytes.len()));
        return Err(refused("", fault.help("check that this is a rules file")));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok((text, Faults::none(name, text))),
        Err(error) => {
            let at = error.valid_up_to();
            let fault = Fault::error(&(at..at + 1), "invalid UTF-8");
            Err(refused(&String::from_utf8_lossy(bytes), fault.help("save the file as UTF-8")))
        }
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
    let allow_root = fields.get("allow_root").map_or(Some(false), |node| flag(node, &mut faults));
    let channels = fields.get("notify").map(|node| channels::read(node, &mut faults)).unwrap_or_default();
    let leases = fields.get("leases").map(|node| leases::read(node, context.is_redis_address, &mut faults));
    let ttys = channels.iter().filter(|(_, channel)| **channel == Channel::Tty);
    let file = rule::File {
        defaults,
        channels: entries(fields, "notify").iter().map(name).collect(),
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
    let policy = limits.zip(allow_root).map(|(limits, allow_root)| Policy {
        sha256: digest::sha256(bytes),
        interval: defaults.interval,
        limits,
        protect,
        allow_root,
        channels,
        leases: leases.flatten().map(Arc::new),
        rules,
    });
    (policy, faults)
}

fn name(entry: &Entry) -> &str {
    &entry.name
}

fn entries<'a>(fields: &Fields<'a>, name: &str) -> &'a [Entry] {
    match fields.get(name).map(|node| &node.data) {
        Some(Data::Map(entries)) => entries,
        _ => &[],
    }
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
    let mode = fields.get("mode").and_then(|node| rule::mode(node, faults)).unwrap_or(Mode::DryRun);
    let mut defaults = Defaults {
        mode,
        max_gap: 2,
        startup_grace: Duration::from_mins(10),
        clear_after: Span::Samples(3),
        grace: Duration::from_mins(1),
        cooldown: Duration::from_mins(30),
        interval: fields.get("interval").and_then(|node| interval(node, faults)),
    };
    let Some(fields) = fields.get("defaults").and_then(|node| Fields::open(node, &DEFAULTS, faults)) else {
        return defaults;
    };
    if let Some(times) = Times::read(&fields, &defaults, faults) {
        let Times { max_gap, startup_grace, clear_after, cooldown } = times;
        defaults = Defaults { max_gap, startup_grace, clear_after, cooldown, ..defaults };
    }
    if let Some(grace) = fields.get("grace").and_then(|node| time(node, faults)) {
        defaults.grace = grace;
    }
    defaults
}

fn interval(node: &Node, faults: &mut Faults) -> Option<Duration> {
    let interval = time(node, faults)?;
    if interval.is_zero() {
        faults.push(
            Fault::error(&node.at, "the interval must be above 0").help("the exporter's default is `5s`"),
        );
    }
    Some(interval)
}

fn limits(fields: &Fields<'_>, faults: &mut Faults) -> Option<Limits> {
    let fields = match fields.get("limits") {
        Some(node) => Some(Fields::open(node, &LIMITS, faults)?),
        None => None,
    };
    let mut limit = |name: &str, usual: u32| {
        let given = fields.as_ref().and_then(|fields| fields.get(name));
        given.map_or(Some(usual), |node| count(node, faults))
    };
    let (gpu, user) = (limit("per_gpu_hour", 2), limit("per_user_hour", 3));
    let (node, processes) = (limit("per_node_hour", 6), limit("max_processes", 512));
    let mass_min = limit("mass_min", 4);
    let share = fields.as_ref().and_then(|fields| fields.get("mass_share"));
    let mass_share = share.map_or(Some(0.9), |node| mass_share(node, faults));
    let reset = fields.as_ref().and_then(|fields| fields.get("breaker_reset"));
    let reset = reset.map_or(Some(Duration::from_hours(1)), |node| breaker_reset(node, faults));
    Some(Limits {
        mass_share: mass_share?,
        mass_min: mass_min?,
        breaker_reset: reset?,
        per_gpu_hour: gpu?,
        per_user_hour: user?,
        per_node_hour: node?,
        max_processes: usize::try_from(processes?).ok()?,
    })
}

fn mass_share(node: &Node, faults: &mut Faults) -> Option<f64> {
    let share = quantity(node, "a percentage, such as `90%`", faults, |text| number(text, Unit::Percent))?;
    if share <= 0.0 || share > 1.0 {
        let fault = Fault::error(&node.at, "the share must be above 0% and at most 100%");
        faults.push(fault.help("at 100%, the breaker opens only if every workload matches"));
        return None;
    }
    Some(share)
}

fn breaker_reset(node: &Node, faults: &mut Faults) -> Option<Duration> {
    let reset = time(node, faults)?;
    if reset.is_zero() {
        faults.push(Fault::error(
            &node.at,
            "the value must be above 0, because a breaker that closes at once has no effect",
        ));
    }
    (!reset.is_zero()).then_some(reset)
}

fn named_conditions(node: &Node, faults: &mut Faults) {
    match &node.data {
        Data::Map(entries) => {
            for entry in entries {
                fields::name("a condition", (&entry.name, &entry.at), faults);
            }
        }
        _ => {
            expected(node, "a map from names to conditions, such as `{idle: {gpu_util: {max: 1%}}}`", faults)
        }
    }
}

fn rules<'a>(node: &'a Node, file: &rule::File<'_>, conditions: &mut ConditionParser<'a>) -> Vec<Rule> {
    let items = list(node, "rules", &mut conditions.faults).unwrap_or_default();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for item in items {
        let Data::Map(entries) = &item.data else { continue };
        let Some(title) = entries.iter().find(|entry| entry.name == "name").map(|entry| &entry.value) else {
            continue;
        };
        let Some(text) = title.text() else { continue };
        if let Some(first) = names.get(text) {
            let message = format!("the rule in line {first} already has the name {}", quoted(text));
            let help = "names identify rules in metrics and in the audit log, so they must be unique";
            conditions.faults.push(Fault::error(&title.at, message).help(help));
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
        faults.push(Fault::warning(&entry.at, message).help("remove it, or add it to a `notify` step"));
    }
}

/// Warns if a user is exempt from one rule only: another rule may still end their processes.
fn excepted_in_one_rule_only(
    fields: &Fields<'_>,
    (rules, protect): (&[Rule], &[Exception]),
    faults: &mut Faults,
) {
    let Some(Node { data: Data::List(items), .. }) = fields.get("rules").filter(|_| faults.errors() == 0)
    else {
        return;
    };
    let ends = |rule: &&Rule| {
        let steps = rule.then.iter().map(|step| &step.action);
        steps.into_iter().any(|action| matches!(action, Action::Signal(_) | Action::Terminate { .. }))
            && rule.select.as_ref().is_none_or(|select| users(select).is_empty())
    };
    for (rule, item) in rules.iter().zip(items) {
        let Data::Map(entries) = &item.data else { continue };
        let Some(entry) = entries.iter().find(|entry| entry.name == "except") else { continue };
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
            faults.push(Fault::warning(&entry.at, message).help(
                "add the exception to that rule as well, or use `protect`, which applies to all rules",
            ));
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

/// Warns about `release_lease` without the address of a pool.
fn nowhere_to_release(fields: &Fields<'_>, rules: &[Rule], faults: &mut Faults) {
    let releases = |rule: &&Rule| rule.then.iter().any(|step| step.action == Action::ReleaseLease);
    if let (Some(rule), Some(entry)) = (rules.iter().find(releases), fields.entry("rules")) {
        let message = format!(
            "the rule {} cannot release a lease, because the file has no `leases`",
            quoted(&rule.name)
        );
        faults.push(
            Fault::warning(&entry.at, message)
                .help("add the lease pool: `leases: {redis: redis://127.0.0.1:6379/0}`"),
        );
    }
}
