//! `bailiff-enforcer status`. Text has 80 columns, tables the width of the terminal.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use bailiff_exposition::human::{Bytes, NOTHING, Span, UNKNOWN, ago, or_unknown};
use bailiff_exposition::terminal::{Colors, cut, line, wrapped};

use super::query;
use super::table::Shrinks::{Last, Never, To};
use super::table::{Column, TextTable, WIDTH};
use crate::control::Question;
use crate::flags;
use crate::web::NOT_LOADED;
use crate::web::status::{Cap, Flag, PastAction, Pending, RuleStatus, Scope, Status};
use crate::web::tally::Reloaded;
use bailiff_engine::engine::Now;
use bailiff_engine::policy::Mode;

/// Maximum number of rows of a table; `--json` has all.
const MOST_ROWS: usize = 20;
/// Number of characters of a policy's hash.
const SHORT_NAME: usize = 12;

const RULES: [Column; 7] = [
    ("RULE", Last),
    ("MODE", Never),
    ("OF", Never),
    ("MATCH", Never),
    ("PEND", Never),
    ("UNKN", Never),
    ("STEPS", To(12)),
];
const PENDING: [Column; 6] =
    [("COMING", Last), ("USER", To(8)), ("RULE", To(8)), ("STEP", To(9)), ("SAMPLES", Never), ("IN", Never)];
const FLAGS: [Column; 5] =
    [("FLAG", Never), ("RULE", To(8)), ("ABOUT", Last), ("USER", To(8)), ("SINCE", To(8))];
const ACTIONS: [Column; 6] =
    [("DONE", Never), ("RULE", To(8)), ("STEP", To(9)), ("TO", Last), ("RESULT", To(8)), ("BACK", Never)];

/// Colours, and the width of tables.
pub type Screen = (Colors, Option<usize>);

/// Queries the status and prints it.
///
/// # Errors
/// If no daemon answers, or printing fails.
pub fn run(flags: &flags::Status, now: Now, screen: Screen, out: &mut dyn Write) -> Result<()> {
    let mut answer = query(&flags.control.control, &Question::Status)?;
    let status = answer["status"].take();
    let text = if flags.json {
        format!("{status:#}\n")
    } else {
        let status: Status =
            serde_json::from_value(status).context("the daemon's status is not understood")?;
        text(&status, now, screen)
    };
    out.write_all(text.as_bytes()).context("cannot print")
}

/// Formats the status.
#[must_use]
pub fn text(status: &Status, now: Now, screen: Screen) -> String {
    let (colors, _) = screen;
    let mut text = colors.title(&line(&format!("{}  bailiff-enforcer {}", status.node, status.version)));
    text.push('\n');
    policy(status, now, colors, &mut text);
    stream(status, now, colors, &mut text);
    withheld(status, now, colors, &mut text);
    budgets(status, &mut text);
    leases(status, now, colors, &mut text);
    text.push_str(&rules(&status.rules, screen));
    text.push_str(&pending(&status.pending, screen));
    text.push_str(&flags_up(&status.flags, now, screen));
    text.push_str(&actions(&status.actions, now, screen));
    text
}

/// Adds a line with a title; long text continues below.
fn row(word: &str, what: &str, colors: impl Fn(&str) -> String, text: &mut String) {
    let mut word = word;
    for part in wrapped(&line(what), WIDTH - 9) {
        // Writing to memory does not fail.
        let _ = writeln!(text, "{word:<8} {}", colors(&part));
        word = "";
    }
}

fn policy(status: &Status, now: Now, colors: Colors, text: &mut String) {
    let policy = &status.policy;
    let name =
        policy.sha256.as_deref().map_or("none in force", |name| name.get(..SHORT_NAME).unwrap_or(name));
    let loaded = policy.loaded.map_or_else(String::new, |at| format!(", loaded {}", ago(at, now.wall)));
    row("policy", &format!("{}, {name}{loaded}", policy.path), str::to_owned, text);
    if policy.last == Some(Reloaded::Refused) {
        row("", &format!("{NOT_LOADED}:"), |part| colors.bad(part), text);
        for fault in &policy.faults {
            row("", fault, |part| colors.bad(part), text);
        }
    }
}

fn leases(status: &Status, now: Now, colors: Colors, text: &mut String) {
    let Some(leases) = &status.leases else { return };
    match &leases.error {
        Some(error) => row("leases", error, |part| colors.bad(part), text),
        None if leases.acts => row("leases", "leases of ended holders are freed", str::to_owned, text),
        None => row("leases", "dry run: no lease is freed", str::to_owned, text),
    }
    for judged in leases.judged.iter().filter(|judged| judged.judgement != "keep") {
        row(
            "",
            &format!("GPU {} is {}: {}", judged.gpu, judged.judgement, judged.describe(now.boot)),
            |part| colors.bad(part),
            text,
        );
    }
}

fn stream(status: &Status, now: Now, colors: Colors, text: &mut String) {
    let stream = &status.stream;
    let seen = match (stream.seq, stream.age(now.boot)) {
        (Some(seq), Some(age)) => format!("snapshot {seq}, {} ago", Span(age)),
        _ => "no snapshot yet".to_owned(),
    };
    let what = format!("{}, {seen}", stream.path);
    if stream.connected {
        row("stream", &what, str::to_owned, text);
        for source in &stream.silent {
            row("unknown", &format!("what depends on {source}"), |part| colors.bad(part), text);
        }
        return;
    }
    let why = stream.error.as_deref().unwrap_or("not connected");
    row("stream", &format!("{what}; down: {why}"), |part| colors.bad(part), text);
}

fn withheld(status: &Status, now: Now, colors: Colors, text: &mut String) {
    let bad = |part: &str| colors.bad(part);
    if let Cap::DryRun(why) = &status.cap {
        row("dry run", &format!("for all rules: {why}"), bad, text);
    }
    for held in &status.holds {
        let until =
            held.until.map_or_else(String::new, |until| format!(", for {} more", to_come(until, now)));
        let is_repeated = held.detail.is_empty() || held.detail == held.hold.meaning();
        let detail = if is_repeated { String::new() } else { format!(" ({})", held.detail) };
        row("held", &format!("{}{until}{detail}", held.hold.meaning()), bad, text);
    }
    for open in &status.breakers {
        let (name, since) = (open.breaker.name(), ago(open.since, now.wall));
        let closes = open.breaker.closes();
        row("breaker", &format!("{name}, opened {since}: {}; {closes}", open.detail), bad, text);
    }
    if let Some(action) = &status.in_flight {
        let since = ago(action.since, now.wall);
        let what = format!("{} of {} against {}, begun {since}", action.step, action.rule, action.target);
        row("action", &what, str::to_owned, text);
        if let Some(why) = &action.waits {
            row("SIGKILL waits", why, bad, text);
        }
    }
}

fn budgets(status: &Status, text: &mut String) {
    let each = status.budgets.iter().map(|budget| {
        let of = if budget.scope == Scope::Node { "the node" } else { &budget.of };
        format!("{} of {} ({of})", budget.used, budget.limit)
    });
    let all: Vec<String> = each.collect();
    if !all.is_empty() {
        row("budget", &format!("actions of the last hour: {}", all.join(", ")), str::to_owned, text);
    }
}

fn rules(rules: &[RuleStatus], screen: Screen) -> String {
    let rows = rules.iter().map(|rule| {
        vec![
            rule.name.clone(),
            rule.mode.name().to_owned(),
            rule.target.name().to_owned(),
            or_unknown(rule.matches),
            or_unknown(rule.pending),
            or_unknown(rule.unknown),
            rule.steps.join(", "),
        ]
    });
    listed(&RULES, rows, screen)
}

/// Formats pending steps; one in brackets is in dry-run mode.
fn pending(pending: &[Pending], screen: Screen) -> String {
    let rows = pending.iter().map(|step| {
        let due = step.due_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        vec![
            named(&step.target, step.comm.as_ref()),
            or_unknown(step.user.as_ref()),
            step.rule.clone(),
            if step.mode == Mode::DryRun { format!("({})", step.step) } else { step.step.clone() },
            format!("{}/{}", step.streak, step.needed),
            if step.hold.is_some() {
                "held".to_owned()
            } else {
                due.map_or_else(|| UNKNOWN.to_owned(), brief)
            },
        ]
    });
    listed(&PENDING, rows, screen)
}

fn flags_up(flags: &[Flag], now: Now, screen: Screen) -> String {
    let mut worst_first: Vec<&Flag> = flags.iter().collect();
    worst_first.sort_by_key(|flag| Reverse(flag.severity));
    let rows = worst_first.iter().map(|flag| {
        vec![
            flag.severity.name().to_owned(),
            flag.rule.clone(),
            named(&flag.target, flag.comm.as_ref()),
            or_unknown(flag.user.as_ref()),
            ago(flag.since, now.wall),
        ]
    });
    listed(&FLAGS, rows, screen)
}

/// Returns a target with the name of its process, which is cut first.
fn named(target: &str, comm: Option<&String>) -> String {
    comm.map_or_else(|| target.to_owned(), |comm| format!("{target} {comm}"))
}

fn actions(actions: &[PastAction], now: Now, screen: Screen) -> String {
    let rows = actions.iter().map(|action| {
        vec![
            format!("{} ago", brief(since(action.at, now))),
            action.rule.clone(),
            action.step.clone(),
            action.target.clone(),
            action.outcome.name().replace('_', " "),
            released(action),
        ]
    });
    listed(&ACTIONS, rows, screen)
}

/// Describes the released memory.
fn released(action: &PastAction) -> String {
    match action.released {
        Some(bytes) => format!("{:#}", Bytes(bytes.into())),
        None if action.is_unknown() => UNKNOWN.to_owned(),
        None => NOTHING.to_owned(),
    }
}

/// Adds a table, unless it is empty.
fn listed(
    columns: &[Column],
    rows: impl ExactSizeIterator<Item = Vec<String>>,
    (colors, width): Screen,
) -> String {
    let all = rows.len();
    if all == 0 {
        return String::new();
    }
    let mut table = TextTable::new(columns);
    rows.take(MOST_ROWS).for_each(|row| table.row(&row));
    let mut text = table.end(width, colors);
    if all > MOST_ROWS {
        let _ = writeln!(text, "and {} more: --json has all", all - MOST_ROWS);
    }
    text
}

fn since(at: f64, now: Now) -> Duration {
    now.wall.saturating_sub(Duration::try_from_secs_f64(at).unwrap_or_default())
}

fn to_come(at: f64, now: Now) -> Span {
    Span(Duration::try_from_secs_f64(at).unwrap_or_default().saturating_sub(now.wall))
}

/// Formats a duration in its largest unit: `5m`.
fn brief(time: Duration) -> String {
    let seconds = time.as_secs();
    let (number, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3600 => (seconds / 60, "m"),
        3600..86_400 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    cut(&format!("{number}{unit}"), 6)
}
