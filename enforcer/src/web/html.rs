//! The page for people: how the enforcer stands, as tables. It works without scripts, and nothing can be done from it.

use std::time::Duration;

use bailiff_exposition::html::{Column, Html};
use bailiff_exposition::human::{Bytes, Span, UNKNOWN, or_unknown};

use super::status::{Cap, Deed, Flag, Pending, RuleStatus, Scope, Status};
use super::tally::Reloaded;
use crate::clock::Now;

/// Flags and pending steps that are shown; the control socket tells all.
const MOST_ROWS: usize = 200;

const RULES: [Column; 7] = [
    ("rule", ""),
    ("mode", ""),
    ("of", ""),
    ("matches", "n"),
    ("pending", "n"),
    ("unknown", "n"),
    ("steps", ""),
];
const FLAGS: [Column; 7] =
    [("flag", ""), ("rule", ""), ("target", ""), ("user", ""), ("process", ""), ("GPUs", ""), ("since", "n")];
const PENDING: [Column; 7] =
    [("target", ""), ("user", ""), ("rule", ""), ("step", ""), ("samples", "n"), ("in about", "n"), ("", "")];
const DEEDS: [Column; 8] = [
    ("when", ""),
    ("rule", ""),
    ("step", ""),
    ("target", ""),
    ("user", ""),
    ("result", ""),
    ("released", "n"),
    ("", "dim"),
];
const LEASES: [Column; 3] = [("GPU", ""), ("taken for", ""), ("", "dim")];
const BUDGETS: [Column; 3] = [("budget", ""), ("of", ""), ("used", "n")];

/// The page.
pub(super) fn page(status: &Status, now: Now) -> String {
    let mut html = Html::begin(&status.node, &format!("Rules on {}", status.node));
    html.raw("<p class=\"dim\">GPU Bailiff enforcer ");
    html.text(env!("CARGO_PKG_VERSION"));
    html.raw(" · <a href=\"/metrics\">metrics</a> · <a href=\"/-/healthy\">health</a> · ");
    html.prose(&stream(status, now));
    html.raw("</p>");
    policy(status, now, &mut html);
    withheld(status, now, &mut html);
    rules(&status.rules, &mut html);
    pending(&status.pending, &mut html);
    flags(&status.flags, now, &mut html);
    deeds(&status.deeds, now, &mut html);
    budgets(status, &mut html);
    leases(status, &mut html);
    html.end()
}

fn stream(status: &Status, now: Now) -> String {
    let stream = &status.stream;
    let age =
        stream.age(now.boot).map_or_else(|| "no snapshot yet".to_owned(), |age| format!("{} ago", Span(age)));
    match (&stream.trouble, stream.connected) {
        (_, true) if stream.silent.is_empty() => age,
        (_, true) => format!("{age}; unknown is what depends on {}", stream.silent.join(", ")),
        (Some(why), false) => format!("{age}; the stream is down: {why}"),
        (None, false) => format!("{age}; the stream is down"),
    }
}

fn policy(status: &Status, now: Now, html: &mut Html) {
    let policy = &status.policy;
    html.raw("<p>");
    html.prose(&policy.path);
    html.raw(" <span class=\"dim\">");
    html.text(policy.sha256.as_deref().unwrap_or("no policy yet"));
    if let Some(loaded) = policy.loaded {
        html.text(&format!(" · found good {}", ago(loaded, now)));
    }
    html.raw("</span></p>");
    if policy.last == Some(Reloaded::Refused) {
        html.raw("<p class=\"bad\">The file on disk makes no sense; what was in force goes on.</p><ul>");
        for fault in &policy.faults {
            html.raw("<li>");
            html.prose(fault);
            html.raw("</li>");
        }
        html.raw("</ul>");
    }
}

fn withheld(status: &Status, now: Now, html: &mut Html) {
    if let Cap::Watch(why) = &status.cap {
        warn(&format!("Only watching, whatever the file says: {why}"), html);
    }
    for held in &status.holds {
        let until = held.until.map(|until| format!(", for {} more", Span(until_then(until, now))));
        let detail = if held.detail.is_empty() { String::new() } else { format!(" ({})", held.detail) };
        warn(
            &format!("Nothing destructive: {}{detail}{}", held.hold.meaning(), until.unwrap_or_default()),
            html,
        );
    }
    for open in &status.breakers {
        let what = format!("{}: {}", open.breaker.hold().meaning(), open.detail);
        warn(&format!("Breaker {} open since {}: {what}", open.breaker.name(), ago(open.since, now)), html);
    }
    if let Some(deed) = &status.in_flight {
        let since = ago(deed.since, now);
        warn(
            &format!("Under way: {} of {} against {}, begun {since}", deed.step, deed.rule, deed.target),
            html,
        );
    }
}

fn warn(text: &str, html: &mut Html) {
    html.raw("<p class=\"bad\">");
    html.prose(text);
    html.raw("</p>");
}

fn rules(rules: &[RuleStatus], html: &mut Html) {
    html.table("Rules", &RULES);
    for rule in rules {
        let cells = [
            rule.name.clone(),
            rule.mode.name().to_owned(),
            rule.of.name().replace('_', " "),
            or_unknown(rule.matches),
            or_unknown(rule.pending),
            or_unknown(rule.unknown),
            rule.steps.join(", "),
        ];
        html.row(&RULES, &cells);
    }
    html.end_table();
}

fn pending(pending: &[Pending], html: &mut Html) {
    html.table("What is coming", &PENDING);
    for step in pending.iter().take(MOST_ROWS) {
        let due = step.due_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let cells = [
            step.target.clone(),
            or_unknown(step.user.as_ref()),
            step.rule.clone(),
            if step.mode.name() == "watch" { format!("{} (watch)", step.step) } else { step.step.clone() },
            format!("{}/{}", step.streak, step.needed),
            or_unknown(due.map(Span)),
            step.hold.map(|hold| format!("held: {}", hold.meaning())).unwrap_or_default(),
        ];
        html.row(&PENDING, &cells);
    }
    rest(pending.len(), html);
}

fn flags(flags: &[Flag], now: Now, html: &mut Html) {
    html.table("Flags", &FLAGS);
    for flag in flags.iter().take(MOST_ROWS) {
        let cells = [
            flag.severity.name().to_owned(),
            flag.rule.clone(),
            flag.target.clone(),
            or_unknown(flag.user.as_ref()),
            or_unknown(flag.comm.as_ref()),
            flag.gpus.join(" "),
            ago(flag.since, now),
        ];
        html.row(&FLAGS, &cells);
    }
    rest(flags.len(), html);
}

fn deeds(deeds: &[Deed], now: Now, html: &mut Html) {
    html.table("What was done", &DEEDS);
    for deed in deeds {
        let cells = [
            ago(deed.at, now),
            deed.rule.clone(),
            deed.step.clone(),
            deed.target.clone(),
            or_unknown(deed.user.as_ref()),
            deed.outcome.name().replace('_', " "),
            or_unknown(deed.released.map(|bytes| Bytes(bytes.into()))),
            deed.detail.clone(),
        ];
        html.row(&DEEDS, &cells);
    }
    html.end_table();
}

fn budgets(status: &Status, html: &mut Html) {
    html.table("Deeds of the last hour", &BUDGETS);
    for budget in &status.budgets {
        let of = if budget.scope == Scope::Node { UNKNOWN.to_owned() } else { budget.of.clone() };
        html.row(
            &BUDGETS,
            &[budget.scope.name().to_owned(), of, format!("{} of {}", budget.used, budget.limit)],
        );
    }
    html.end_table();
}

/// GPUs that clients of GPU.py have, or that are nowhere.
fn leases(status: &Status, html: &mut Html) {
    let Some(leases) = &status.leases else { return };
    if let Some(trouble) = &leases.trouble {
        warn(&format!("Leases are not looked after: {trouble}"), html);
    }
    if leases.judged.is_empty() {
        return;
    }
    html.table("GPUs taken by GPU.py, or lost", &LEASES);
    for judged in &leases.judged {
        let taken_for = if judged.judgement == "keep" { "held" } else { &judged.judgement };
        html.row(&LEASES, &[judged.gpu.clone(), taken_for.to_owned(), judged.why.clone()]);
    }
    html.end_table();
}

fn rest(all: usize, html: &mut Html) {
    html.end_table();
    if all > MOST_ROWS {
        html.raw(&format!(
            "<p class=\"dim\">and {} more: bailiff-enforcer status --json</p>",
            all - MOST_ROWS
        ));
    }
}

/// How long ago a moment of the wall clock was; one to come is now, as clocks are set back.
fn ago(at: f64, now: Now) -> String {
    let at = Duration::try_from_secs_f64(at).unwrap_or_default();
    format!("{} ago", Span(now.wall.saturating_sub(at)))
}

fn until_then(at: f64, now: Now) -> Duration {
    Duration::try_from_secs_f64(at).unwrap_or_default().saturating_sub(now.wall)
}
