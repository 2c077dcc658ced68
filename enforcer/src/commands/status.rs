//! `bailiff-enforcer status`. Text is 80 columns wide; tables are as wide as the terminal.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use bailiff_exposition::human::{Bytes, NOTHING, Span, UNKNOWN, ago, or_unknown};
use bailiff_exposition::terminal::Column::{self, Last, Never, To};
use bailiff_exposition::terminal::{Cell, Colors, Table, cut, line, printable_json, wrapped};
use rustix::termios::tcgetwinsize;

use super::query;
use crate::control::Question;
use crate::flags;
use crate::status::tally::Reloaded;
use crate::status::{Cap, Flag, NOT_LOADED, PastAction, Pending, RuleStatus, Scope, Status, held_by_owner};
use bailiff_engine::engine::Now;
use bailiff_engine::policy::Mode;

/// Width of text, and of a terminal of unknown width.
const WIDTH: usize = 80;
/// Maximum number of rows of a table; `--json` has all.
const MOST_ROWS: usize = 20;
/// Number of characters of a policy's hash.
const SHORT_NAME: usize = 12;

/// Title of a column, how it is narrowed, and its cell for a row.
type TableColumn<T> = (&'static str, Column, fn(&T, Now) -> String);

const RULES: [TableColumn<RuleStatus>; 7] = [
    ("RULE", Last, |rule, _| rule.name.clone()),
    ("MODE", Never, |rule, _| rule.mode.name().to_owned()),
    ("OF", Never, |rule, _| rule.target.name().to_owned()),
    ("MATCH", Never, |rule, _| or_unknown(rule.matches)),
    ("PEND", Never, |rule, _| or_unknown(rule.pending)),
    ("UNKN", Never, |rule, _| or_unknown(rule.unknown)),
    ("STEPS", To(12), |rule, _| rule.steps.join(", ")),
];
const PENDING: [TableColumn<Pending>; 6] = [
    ("COMING", Last, |step, _| named(&step.target, step.comm.as_ref())),
    ("USER", To(8), |step, _| or_unknown(step.user.as_ref())),
    ("RULE", To(8), |step, _| step.rule.clone()),
    // A step in brackets is in dry-run mode.
    ("STEP", To(9), |step, _| match step.mode {
        Mode::DryRun => format!("({})", step.step),
        Mode::Enforce => step.step.clone(),
    }),
    ("SAMPLES", Never, |step, _| format!("{}/{}", step.streak, step.needed)),
    ("IN", Never, |step, _| match step.hold {
        Some(_) => "held".to_owned(),
        None => step.due_in().map_or_else(|| UNKNOWN.to_owned(), brief),
    }),
];
const FLAGS: [TableColumn<Flag>; 5] = [
    ("FLAG", Never, |flag, _| flag.severity.name().to_owned()),
    ("RULE", To(8), |flag, _| flag.rule.clone()),
    ("ABOUT", Last, |flag, _| named(&flag.target, flag.comm.as_ref())),
    ("USER", To(8), |flag, _| or_unknown(flag.user.as_ref())),
    ("SINCE", To(8), |flag, now| ago(flag.since, now.wall)),
];
const ACTIONS: [TableColumn<PastAction>; 6] = [
    ("DONE", Never, |action, now| format!("{} ago", brief(since(action.at, now)))),
    ("RULE", To(8), |action, _| action.rule.clone()),
    ("STEP", To(9), |action, _| action.step.clone()),
    ("TO", Last, |action, _| action.target.clone()),
    ("RESULT", To(8), |action, _| action.outcome.name().replace('_', " ")),
    ("BACK", Never, |action, _| match action.released {
        Some(bytes) => format!("{:#}", Bytes(bytes.into())),
        None if action.is_unknown() => UNKNOWN.to_owned(),
        None => NOTHING.to_owned(),
    }),
];

/// Colours, and the width of tables.
pub type Screen = (Colors, Option<usize>);

/// Queries the status and prints it.
///
/// # Errors
/// If no daemon responds, or printing fails.
pub fn run(flags: &flags::Status, now: Now, screen: Screen, out: &mut dyn Write) -> Result<()> {
    let mut answer = query(&flags.control.control, &Question::Status)?;
    let status = answer["status"].take();
    let text = if flags.json {
        printable_json(&format!("{status:#}\n"))
    } else {
        let status: Status = serde_json::from_value(status)
            .context("cannot parse the daemon's status; check that the daemon has the same version")?;
        text(&status, now, screen)
    };
    out.write_all(text.as_bytes()).context("cannot print")
}

/// Formats the status.
pub fn text(status: &Status, now: Now, screen: Screen) -> String {
    let (colors, _) = screen;
    let mut text = colors.title(&line(&format!("{}  bailiff-enforcer {}", status.node, status.version)));
    text.push('\n');
    policy(status, now, colors, &mut text);
    stream(status, now, colors, &mut text);
    withheld(status, now, colors, &mut text);
    budgets(status, &mut text);
    leases(status, now, colors, &mut text);
    text.push_str(&listed(&RULES, status.rules.iter(), (now, screen)));
    text.push_str(&listed(&PENDING, status.pending.iter(), (now, screen)));
    let mut worst_first: Vec<&Flag> = status.flags.iter().collect();
    worst_first.sort_by_key(|flag| Reverse(flag.severity));
    text.push_str(&listed(&FLAGS, worst_first.into_iter(), (now, screen)));
    text.push_str(&listed(&ACTIONS, status.actions.iter(), (now, screen)));
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
        let heading = format!("{NOT_LOADED}:");
        for line in [&heading].into_iter().chain(&policy.faults) {
            row("", line, |part| colors.bad(part), text);
        }
    }
}

fn leases(status: &Status, now: Now, colors: Colors, text: &mut String) {
    let Some(leases) = &status.leases else { return };
    match &leases.error {
        Some(error) => row("leases", error, |part| colors.bad(part), text),
        None if leases.acts => row("leases", "leases of exited holders are freed", str::to_owned, text),
        None => row("leases", "dry run: leases are not freed", str::to_owned, text),
    }
    for judged in leases.judged.iter().filter(|judged| judged.judgement != "keep") {
        let what = format!("GPU {} is {}: {}", judged.gpu, judged.judgement, judged.describe(now.boot));
        row("", &what, |part| colors.bad(part), text);
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
            row("unknown", &format!("everything that depends on {source}"), |part| colors.bad(part), text);
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
        let held = format!("{}{}{}", held.hold.meaning(), held.left(now.wall), held.more());
        row("held", &held, bad, text);
    }
    for hold in status.owner_holds.iter().take(MOST_ROWS) {
        let held = format!("rule {}: {} is {}", hold.rule, hold.target, held_by_owner(hold));
        row("held", &held, str::to_owned, text);
    }
    for open in &status.breakers {
        let (name, since) = (open.breaker.name(), ago(open.since, now.wall));
        let closes = open.breaker.closes();
        row("breaker", &format!("{name}, opened {since}: {}; {closes}", open.detail), bad, text);
    }
    if let Some(action) = &status.in_flight {
        row("action", &action.describe(now.wall), str::to_owned, text);
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
        row("budget", &format!("actions in the last hour: {}", all.join(", ")), str::to_owned, text);
    }
}

/// Returns a target followed by the name of its process, which is truncated first because it is last.
fn named(target: &str, comm: Option<&String>) -> String {
    comm.map_or_else(|| target.to_owned(), |comm| format!("{target} {comm}"))
}

/// Formats a table, unless it is empty.
fn listed<'a, T: 'a>(
    columns: &[TableColumn<T>],
    items: impl ExactSizeIterator<Item = &'a T>,
    (now, (colors, width)): (Now, Screen),
) -> String {
    let all = items.len();
    if all == 0 {
        return String::new();
    }
    let titles = columns.iter().map(|(title, shrinks, _)| (*title, *shrinks)).collect();
    let row = |item: &T| columns.iter().map(|(.., cell)| Cell::from(cell(item, now))).collect();
    let table = Table::new(titles, items.take(MOST_ROWS).map(row).collect());
    let mut text = format!("\n{}\n", table.lines(width.unwrap_or(usize::MAX), colors).join("\n"));
    if all > MOST_ROWS {
        let _ = writeln!(text, "and {} more; --json shows all", all - MOST_ROWS);
    }
    text
}

/// Returns the width of the terminal; `None` if standard output is not a terminal.
pub fn columns() -> Option<usize> {
    let out = io::stdout();
    out.is_terminal().then(|| match tcgetwinsize(&out) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => WIDTH,
    })
}

fn since(at: f64, now: Now) -> Duration {
    now.wall.saturating_sub(Duration::try_from_secs_f64(at).unwrap_or_default())
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
