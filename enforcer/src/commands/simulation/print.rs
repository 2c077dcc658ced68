//! Prints what rules would have done.

use std::io::{self, Write};
use std::time::Duration;

use bailiff_exposition::human::Bytes;
use bailiff_exposition::terminal;

use super::report::{Freed, Period, ProjectedAction, Report, RuleReport};
use crate::commands::layout::{Layout, count, foreign, length, moment, share};

/// Maximum number of listed actions per rule.
const SHOWN_ACTIONS: usize = 50;

/// Writes a report of 80 columns.
///
/// # Errors
/// If it cannot be written.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut layout = Layout::default();
    layout.say(0, &foreign(&report.source));
    period(&report.period, &mut layout);
    for note in &report.notes {
        layout.say(2, &format!("note: {note}"));
    }
    layout.gap();
    table(report, &mut layout);
    for rule in &report.rules {
        if has_more(rule) {
            layout.gap();
            details(rule, &mut layout);
        }
    }
    owners(report, &mut layout);
    unknown(report, &mut layout);
    out.write_all(layout.text().as_bytes())
}

fn period(period: &Period, layout: &mut Layout) {
    let (Some(from), Some(to)) = (period.from, period.to) else {
        layout.say(2, "there are no snapshots to evaluate");
        if period.bad_lines > 0 {
            layout.say(2, &format!("{} are not snapshots", count(period.bad_lines, ("line", "lines"))));
        }
        return;
    };
    let long = to.since_epoch().saturating_sub(from.since_epoch());
    let interval = humantime::format_duration(Duration::from_millis(period.interval_ms));
    layout.say(
        2,
        &format!(
            "{} to {} ({}), interval {interval}",
            moment(from.since_epoch()),
            moment(to.since_epoch()),
            length(long)
        ),
    );
    let mut parts =
        vec![format!("{}, {} evaluated", count(period.snapshots, ("snapshot", "snapshots")), period.judged)];
    parts.extend(period.skipped.iter().map(|(reason, number)| format!("{number} skipped ({reason})")));
    if period.missed_intervals > 0 {
        parts.push(format!("{} missed", count(period.missed_intervals, ("interval", "intervals"))));
    }
    if period.bad_lines > 0 {
        parts.push(count(period.bad_lines, ("bad line", "bad lines")));
    }
    if period.boots > 1 {
        parts.push(count(period.boots, ("boot", "boots")));
    }
    layout.say(2, &parts.join(", "));
    let held = period.held_seconds.iter().filter(|(_, seconds)| **seconds > 0);
    let held: Vec<String> =
        held.map(|(hold, seconds)| format!("{hold} {}", length(Duration::from_secs(*seconds)))).collect();
    if !held.is_empty() {
        layout.say(2, &format!("destructive steps were withheld: {}", held.join(", ")));
    }
}

fn table(report: &Report, layout: &mut Layout) {
    layout.row(&format!(
        "{:<24} {:<7} {:>7} {:>6} {:>7} {:>6} {:>7} {:>8}",
        "RULE", "MODE", "MATCHES", "FLAGS", "NOTICES", "KILLS", "REGRETS", "UNKNOWN"
    ));
    for rule in &report.rules {
        layout.row(&format!(
            "{:<24} {:<7} {:>7} {:>6} {:>7} {:>6} {:>7} {:>8}",
            cut(&rule.name, 24),
            rule.mode.name(),
            rule.matches,
            rule.flags,
            rule.notices,
            rule.kills,
            rule.regrets,
            share(rule.unknown, rule.asked),
        ));
    }
}

fn cut(text: &str, width: usize) -> String {
    terminal::cut(&foreign(text), width)
}

fn has_more(rule: &RuleReport) -> bool {
    !rule.actions.is_empty()
        || !rule.near_misses.is_empty()
        || !rule.withheld.is_empty()
        || rule.reprieves > 0
        || rule.never.is_some()
}

fn details(rule: &RuleReport, layout: &mut Layout) {
    let kills = count(rule.kills, ("would-be kill", "would-be kills"));
    layout.say(0, &format!("{}: {kills}{}", foreign(&rule.name), freed(rule.freed)));
    if let Some(never) = &rule.never {
        layout.say(2, &format!("the rule could never match: {never}"));
    }
    for projection in rule.actions.iter().take(SHOWN_ACTIONS) {
        one(projection, layout);
    }
    if let Some(more) = rule.actions.len().checked_sub(SHOWN_ACTIONS).filter(|more| *more > 0) {
        layout.say(2, &format!("and {more} more; --json shows all"));
    }
    if rule.reprieves > 0 {
        layout.say(2, &format!("reprieved: {}", rule.reprieves));
    }
    let withheld: Vec<String> =
        rule.withheld.iter().map(|(hold, number)| format!("{hold} {number}")).collect();
    if !withheld.is_empty() {
        layout.say(2, &format!("steps withheld: {}", withheld.join(", ")));
    }
    for near in &rule.near_misses {
        let target = foreign(&near.target);
        let at = moment(near.at.since_epoch());
        layout.say(2, &format!("near miss: {target} {}/{} at {at}", near.longest, near.needed));
    }
    if rule.more_near_misses > 0 {
        layout.say(2, &format!("and {} more near misses", rule.more_near_misses));
    }
}

fn one(projection: &ProjectedAction, layout: &mut Layout) {
    let owner = match (&projection.user, projection.uid) {
        (Some(user), Some(uid)) => format!("{} ({uid})", foreign(user)),
        (_, Some(uid)) => format!("uid {uid}"),
        _ => "owner unknown".to_owned(),
    };
    let again = if projection.again { ", again" } else { "" };
    let target = foreign(&projection.target);
    layout.say(2, &format!("{} {} {target}{again}", moment(projection.at.since_epoch()), projection.action));
    let comms: Vec<String> = projection.comms.iter().take(4).map(|comm| foreign(comm)).collect();
    let gpus: Vec<String> = projection.gpus.iter().map(|gpu| cut(gpu, 13)).collect();
    let vram = projection
        .vram
        .map_or_else(|| "memory unknown".to_owned(), |bytes| format!("{:#}", Bytes(bytes.into())));
    layout.say(
        4,
        &format!(
            "{owner}, {}, {vram} on {}, streak {}/{}",
            comms.join(" "),
            gpus.join(" "),
            projection.streak,
            projection.needed
        ),
    );
    if projection.action != "terminate" || projection.again {
        return;
    }
    let end = match projection.ended {
        Some(ended) => {
            let after = ended.since_epoch().saturating_sub(projection.at.since_epoch());
            format!("exited by itself {} later", length(after))
        }
        None => "held until the end of the data".to_owned(),
    };
    layout.say(4, &format!("{end}{}", freed(projection.freed)));
    if let Some(regret) = projection.regret {
        let after = length(Duration::from_secs(regret.after_seconds));
        layout
            .say(4, &format!("REGRET: busy again {after} later (gpu_util {:.0}%)", regret.gpu_util * 100.0));
    }
}

fn freed(freed: Freed) -> String {
    if freed.gpu_hours <= 0.0 {
        return String::new();
    }
    format!(", {:.2} GPU-hours and {:.1} GiB-hours freed", freed.gpu_hours, freed.gib_hours)
}

fn owners(report: &Report, layout: &mut Layout) {
    if report.owners.is_empty() {
        return;
    }
    layout.gap();
    let mut row = |owner: &str, [kills, regrets, gpu_hours, gib_hours]: [&str; 4]| {
        layout.row(&format!("{owner:<32} {kills:>6} {regrets:>7} {gpu_hours:>12} {gib_hours:>12}"));
    };
    let hours = |freed: Freed| (format!("{:.2}", freed.gpu_hours), format!("{:.1}", freed.gib_hours));
    row("OWNER", ["KILLS", "REGRETS", "GPU-HOURS", "GIB-HOURS"]);
    for owner in &report.owners {
        let (gpu, gib) = hours(owner.freed);
        row(&cut(&owner.user, 32), [&owner.kills.to_string(), &owner.regrets.to_string(), &gpu, &gib]);
    }
    let (gpu, gib) = hours(report.freed);
    row("total", ["", "", &gpu, &gib]);
}

fn unknown(report: &Report, layout: &mut Layout) {
    if report.unknown.is_empty() {
        return;
    }
    layout.gap();
    let parts: Vec<String> = report
        .unknown
        .iter()
        .map(|parts| {
            let share =
                if parts.throughout() { "throughout".to_owned() } else { share(parts.unknown, parts.asked) };
            format!("{} of a {} {share}", parts.name, parts.kind.name())
        })
        .collect();
    layout.say(0, &format!("unknown: {}", parts.join(", ")));
}
