//! Parses one rule.

use std::time::Duration;

use super::condition_parser::ConditionParser;
use super::span::{positive, samples};
use super::steps::{self, Around};
use super::{Exception, Mode, Order, OwnerLimits, Pick, Rule, Span, digest, keys, lints, selectors};
use crate::Kind;
use crate::yaml::quantity::end_of_day;
use crate::yaml::{
    self, Data, Entry, Faults, Fields, Node, count, list, name, nearest, nothing_given, quantity, some_time,
    text, time, unknown, word,
};

/// Values for keys that a rule does not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    /// Mode.
    pub(super) mode: Mode,
    /// Number of unknown samples that a streak survives.
    pub(super) max_gap: u32,
    /// Minimum age of a target.
    pub(super) startup_grace: Duration,
    /// Samples after which a flag is cleared.
    pub(super) clear_after: Span,
    /// Time between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// Minimum time between two matches of a target.
    pub(super) cooldown: Duration,
    /// Sampling interval of the file.
    pub(super) interval: Option<Duration>,
}

/// Parts of a file that its rules refer to.
pub(super) struct File<'a> {
    /// Values for keys that a rule does not have.
    pub(super) defaults: Defaults,
    /// Names of the channels.
    pub(super) channels: Vec<&'a str>,
    /// Names of the channels that write to terminals.
    pub(super) ttys: Vec<&'a str>,
    /// Current time since the Unix epoch.
    pub(super) now: Duration,
}

/// Parses a rule; `None` if it is invalid.
pub(super) fn read<'a>(
    node: &'a Node,
    file: &File<'_>,
    conditions: &mut ConditionParser<'a>,
) -> Option<Rule> {
    let before = conditions.faults.errors();
    let fields = Fields::open(node, keys::table("rule"), &mut conditions.faults)?;
    let defaults = &file.defaults;
    let of = fields.get("target").and_then(|of| word(of, (&Kind::ALL, Kind::name), &mut conditions.faults));
    let title = fields.get("name").and_then(|name| title(name, &mut conditions.faults));
    let mode = fields.or(("mode", defaults.mode), mode, &mut conditions.faults);
    let select = fields.get("select").map(|select| conditions.read(select, of));
    let except =
        fields.get("except").map_or_else(Vec::new, |except| exceptions(except, of, (file, conditions)));
    let when = fields.get("when").and_then(|when| conditions.read(when, of));
    let pick = fields.get("pick").map(|pick| self::pick(pick, of, conditions));
    let faults = &mut conditions.faults;
    let hold = fields.get("hold").map(|node| hold(node, (of, pick.is_some()), faults));
    let span = fields.get("for").and_then(|span| positive(span, faults));
    let times = defaults.overridden(&fields, faults);
    let around = Around {
        of,
        picks: pick.is_some(),
        grace: defaults.grace,
        interval: defaults.interval,
        channels: &file.channels,
    };
    let placed = fields.get("then").map(|then| steps::read(then, &around, faults)).unwrap_or_default();
    let (of, when, span, times) = (of?, when?, span?, times?);
    let pick = pick.map_or(Some(None), |pick| pick.map(Some))?;
    let rule = Rule {
        name: title?.into(),
        mode: mode?,
        target: of,
        select: select.map_or(Some(None), |select| select.map(Some))?,
        except,
        condition: digest::condition(of, &when, pick.as_ref()),
        when,
        span,
        max_gap: times.max_gap,
        startup_grace: times.startup_grace,
        clear_after: times.clear_after,
        cooldown: times.cooldown,
        hold: hold.map_or(Some(None), |hold| hold.map(Some))?,
        pick,
        then: placed.iter().map(|placed| placed.step.clone()).collect(),
    };
    if conditions.faults.errors() == before {
        let places = lints::Places { ttys: &file.ttys, fields, placed };
        lints::check(&rule, &places, defaults.interval, &mut conditions.faults);
    }
    Some(rule)
}

/// `dry-run` or `enforce`.
pub(super) fn mode(node: &Node, faults: &mut Faults) -> Option<Mode> {
    word(node, (&Mode::ALL, Mode::name), faults)
}

impl Defaults {
    /// Returns these defaults with the values that a map overrides; `None` if a value is invalid.
    pub(super) fn overridden(self, fields: &Fields<'_>, faults: &mut Faults) -> Option<Self> {
        let max_gap = fields.or(("max_gap", self.max_gap), count, faults);
        let startup_grace = fields.or(("startup_grace", self.startup_grace), time, faults);
        let clear_after = fields.or(("clear_after", self.clear_after), samples, faults);
        let cooldown = fields.or(("cooldown", self.cooldown), time, faults);
        Some(Self {
            max_gap: max_gap?,
            startup_grace: startup_grace?,
            clear_after: clear_after?,
            cooldown: cooldown?,
            ..self
        })
    }
}

fn title<'a>(node: &'a Node, faults: &mut Faults) -> Option<&'a str> {
    let title = text(node, "a name", faults)?;
    name("a rule", (title, &node.at), faults).then_some(title)
}

/// Parses `protect`: selectors combined by OR, or a list of exceptions from all rules.
pub(super) fn protect<'a>(
    Entry { value: node, at, .. }: &'a Entry,
    file: &File<'_>,
    conditions: &mut ConditionParser<'a>,
) -> Vec<Exception> {
    if !matches!(node.data, Data::List(_)) {
        let of = conditions.read_selectors(node);
        return of.map(|of| Exception { condition: of, reason: None, until: None }).into_iter().collect();
    }
    let entries = exceptions(node, None, (file, &mut *conditions));
    if entries.iter().any(|entry| !entry.condition.leaves().is_empty()) {
        let help = "use selectors such as `users`, `comms` or `exe`";
        conditions.faults.error(at, "`protect` supports only selectors, not comparisons", help);
    }
    entries
}

fn exceptions<'a>(
    node: &'a Node,
    of: Option<Kind>,
    (file, conditions): (&File<'_>, &mut ConditionParser<'a>),
) -> Vec<Exception> {
    let items = list(node, "exceptions, such as `{users: [alice], reason: \"…\"}`", &mut conditions.faults)
        .unwrap_or_default();
    items.iter().filter_map(|item| exception(item, of, (file, conditions))).collect()
}

fn exception<'a>(
    node: &'a Node,
    of: Option<Kind>,
    (file, conditions): (&File<'_>, &mut ConditionParser<'a>),
) -> Option<Exception> {
    let Data::Map(entries) = &node.data else {
        yaml::expected(
            node,
            "an exception, such as `{users: [alice], reason: \"…\"}`",
            &mut conditions.faults,
        );
        return None;
    };
    let table = keys::table("exception");
    let keys = table.names();
    let own = |entry: &&Entry| keys.contains(&entry.name.as_str());
    let (own, condition): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(own);
    let get = |name: &str| own.iter().find(|entry| entry.name == name);
    for empty in own.iter().filter(|entry| entry.value.is_null()) {
        conditions.faults.push(nothing_given(empty));
    }
    let reason = match get("reason") {
        Some(entry) if entry.value.is_null() => None,
        Some(entry) => text(
            &entry.value,
            "a reason, which states who added the exception, and why",
            &mut conditions.faults,
        ),
        None => {
            conditions.faults.error(
                &node.at,
                "an exception needs `reason`",
                "it documents the exception for later readers",
            );
            None
        }
    };
    let until = get("until").filter(|entry| !entry.value.is_null());
    let until = until.map(|entry| end(&entry.value, file.now, &mut conditions.faults));
    let odd = |entry: &&Entry| !ConditionParser::knows(&entry.name) && nearest(&entry.name, &keys).is_some();
    let (odd, condition): (Vec<&Entry>, Vec<&Entry>) = condition.into_iter().partition(odd);
    for entry in &odd {
        conditions.faults.push(unknown(entry, table.what(), &keys));
    }
    let of = conditions.read_map(&node.at, condition, of);
    selectors::of_exempt(of.iter(), &node.at, &mut conditions.faults);
    Some(Exception {
        condition: of?,
        reason: Some(reason?.to_owned()),
        until: until.map_or(Some(None), |until| until.map(Some))?,
    })
}

fn end(node: &Node, now: Duration, faults: &mut Faults) -> Option<Duration> {
    let until = quantity(node, "a date, such as `2026-12-31`", faults, end_of_day)?;
    if until <= now {
        let help = "remove it, or set a later date";
        faults.warn(&node.at, "this exception has expired and has no effect", help);
    }
    Some(until)
}

fn pick<'a>(node: &'a Node, of: Option<Kind>, conditions: &mut ConditionParser<'a>) -> Option<Pick> {
    if of.is_some_and(|of| of != Kind::Gpu) {
        let help = "use `select` here";
        conditions.faults.error(&node.at, "`pick` is only valid in rules with `target: gpu`", help);
    }
    let fields = Fields::open(node, keys::table("pick"), &mut conditions.faults)?;
    let from = fields.get("from").and_then(|from| conditions.read(from, Some(Kind::Workload)));
    let idle_for = fields.get("idle_for").and_then(|idle_for| positive(idle_for, &mut conditions.faults));
    let usual = vec![Order::LowestPriority, Order::SmallestSufficient, Order::LongestIdle];
    let order = fields.or(("order", usual), orders, &mut conditions.faults);
    Some(Pick { from: from?, idle_for: idle_for?, order: order? })
}

fn hold(node: &Node, (of, picks): (Option<Kind>, bool), faults: &mut Faults) -> Option<OwnerLimits> {
    if matches!(of, Some(Kind::Lease | Kind::MpsServer)) || (of == Some(Kind::Gpu) && !picks) {
        let help = "use it in rules for processes, workloads or Slurm jobs, or with `pick`";
        faults.error(&node.at, "the targets of this rule have no owner who could hold them", help);
    }
    let fields = Fields::open(node, keys::table("hold"), faults)?;
    let none = ("`max` must be above 0", "remove `hold` if owners may not hold targets");
    let max = fields.get("max").and_then(|max| some_time(max, none, faults));
    let per_day = fields.or(("per_day", 1), count, faults);
    Some(OwnerLimits { max: max?, per_day: per_day? })
}

fn orders(node: &Node, faults: &mut Faults) -> Option<Vec<Order>> {
    let items = list(node, "orders, such as `longest_idle`", faults)?;
    let mut orders: Vec<Order> = Vec::new();
    for item in items {
        let order = word(item, (&Order::ALL, Order::name), faults)?;
        if orders.contains(&order) {
            faults.error(&item.at, format!("`{}` is given twice", order.name()), "remove one");
        }
        orders.push(order);
    }
    Some(orders)
}
