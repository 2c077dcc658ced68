//! Parses one rule.

use std::time::Duration;

use super::condition_parser::ConditionParser;
use super::fault::{Fault, Faults};
use super::fields::{self, Fields, count, list, name, positive, quantity, text, time, word};
use super::keys::{EXCEPTION, PICK, RULE};
use super::steps::{self, Around};
use super::tree::{Data, Entry, Node};
use super::{Exception, Mode, Order, Pick, Rule, Span, digest, lints, quantity as units, selectors};
use crate::Kind;

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
    let fields = Fields::open(node, &RULE, &mut conditions.faults)?;
    let defaults = &file.defaults;
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind)).into_iter();
    let of = fields.get("target").and_then(|of| word(of, kinds, &mut conditions.faults));
    let title = fields.get("name").and_then(|name| title(name, &mut conditions.faults));
    let mode =
        fields.get("mode").map_or(Some(defaults.mode), |mode| self::mode(mode, &mut conditions.faults));
    let select = fields.get("select").map(|select| conditions.read(select, of));
    let except =
        fields.get("except").map_or_else(Vec::new, |except| exceptions(except, of, (file, conditions)));
    let when = fields.get("when").and_then(|when| conditions.read(when, of));
    let pick = fields.get("pick").map(|pick| self::pick(pick, of, conditions));
    let faults = &mut conditions.faults;
    let span = fields.get("for").and_then(|span| positive(span, faults));
    let times = Times::read(&fields, defaults, faults);
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
    word(node, Mode::ALL.map(|mode| (mode.name(), mode)).into_iter(), faults)
}

/// Values of a rule that default to those of `defaults`.
pub(super) struct Times {
    /// Number of unknown samples that a streak survives.
    pub(super) max_gap: u32,
    /// Minimum age of a target.
    pub(super) startup_grace: Duration,
    /// Samples after which a flag is cleared.
    pub(super) clear_after: Span,
    /// Minimum time between two matches of a target.
    pub(super) cooldown: Duration,
}

impl Times {
    /// Parses them; `None` if one is invalid.
    pub(super) fn read(fields: &Fields<'_>, defaults: &Defaults, faults: &mut Faults) -> Option<Self> {
        let max_gap = fields.get("max_gap").map_or(Some(defaults.max_gap), |node| count(node, faults));
        let startup_grace =
            fields.get("startup_grace").map_or(Some(defaults.startup_grace), |node| time(node, faults));
        let clear_after =
            fields.get("clear_after").map_or(Some(defaults.clear_after), |node| samples(node, faults));
        let cooldown = fields.get("cooldown").map_or(Some(defaults.cooldown), |node| time(node, faults));
        Some(Self {
            max_gap: max_gap?,
            startup_grace: startup_grace?,
            clear_after: clear_after?,
            cooldown: cooldown?,
        })
    }
}

/// Parses `3`, `30m` or `{samples: 3}`.
fn samples(node: &Node, faults: &mut Faults) -> Option<Span> {
    match node.text().and_then(|text| text.parse().ok()) {
        Some(samples) if samples > 0 => Some(Span::Samples(samples)),
        _ => positive(node, faults),
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
        let fault = Fault::error(at, "`protect` supports only selectors, not comparisons");
        conditions.faults.push(fault.help("use selectors such as `users`, `comms` or `exe`"));
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
        fields::expected(
            node,
            "an exception, such as `{users: [alice], reason: \"…\"}`",
            &mut conditions.faults,
        );
        return None;
    };
    let own = |entry: &&Entry| EXCEPTION.keys.iter().any(|key| key.name == entry.name);
    let (own, condition): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(own);
    let get = |name: &str| own.iter().find(|entry| entry.name == name);
    for empty in own.iter().filter(|entry| entry.value.is_null()) {
        conditions.faults.push(fields::nothing_given(empty));
    }
    let reason = match get("reason") {
        Some(entry) if entry.value.is_null() => None,
        Some(entry) => text(
            &entry.value,
            "a reason, which states who added the exception, and why",
            &mut conditions.faults,
        ),
        None => {
            let fault = Fault::error(&node.at, "an exception needs `reason`");
            conditions.faults.push(fault.help("it documents the exception for later readers"));
            None
        }
    };
    let until = get("until").filter(|entry| !entry.value.is_null());
    let until = until.map(|entry| end(&entry.value, file.now, &mut conditions.faults));
    let own: Vec<&str> = EXCEPTION.keys.iter().map(|key| key.name).collect();
    let (odd, condition): (Vec<&Entry>, Vec<&Entry>) = condition.into_iter().partition(|entry| {
        !ConditionParser::knows(&entry.name) && fields::nearest(&entry.name, &own).is_some()
    });
    for entry in &odd {
        conditions.faults.push(fields::unknown(entry, EXCEPTION.what, &own));
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
    let until = quantity(node, "a date, such as `2026-12-31`", faults, units::end_of_day)?;
    if until <= now {
        let fault = Fault::warning(&node.at, "this exception has expired and has no effect");
        faults.push(fault.help("remove it, or set a later date"));
    }
    Some(until)
}

fn pick<'a>(node: &'a Node, of: Option<Kind>, conditions: &mut ConditionParser<'a>) -> Option<Pick> {
    if of.is_some_and(|of| of != Kind::Gpu) {
        let fault = Fault::error(&node.at, "`pick` is only valid in rules with `target: gpu`");
        conditions.faults.push(fault.help("use `select` here"));
    }
    let fields = Fields::open(node, &PICK, &mut conditions.faults)?;
    let from = fields.get("from").and_then(|from| conditions.read(from, Some(Kind::Workload)));
    let idle_for = fields.get("idle_for").and_then(|idle_for| positive(idle_for, &mut conditions.faults));
    let usual = vec![Order::LowestPriority, Order::SmallestSufficient, Order::LongestIdle];
    let order = fields.get("order").map_or(Some(usual), |order| orders(order, &mut conditions.faults));
    Some(Pick { from: from?, idle_for: idle_for?, order: order? })
}

fn orders(node: &Node, faults: &mut Faults) -> Option<Vec<Order>> {
    let items = list(node, "orders, such as `longest_idle`", faults)?;
    let mut orders: Vec<Order> = Vec::new();
    for item in items {
        let order = word(item, Order::ALL.map(|order| (order.name(), order)).into_iter(), faults)?;
        if orders.contains(&order) {
            faults.push(
                Fault::error(&item.at, format!("`{}` is given twice", order.name())).help("remove one"),
            );
        }
        orders.push(order);
    }
    Some(orders)
}
