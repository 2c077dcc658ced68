//! What rules would have done, for people.

use std::io::{self, Write};
use std::time::Duration;

use bailiff_exposition::human::Bytes;

use super::report::{Course, Deed, Freed, Report, RuleReport};
use crate::commands::paper::{Paper, count, foreign, length, moment, share};
use crate::policy::Mode;

/// Deeds of one rule that are told one by one.
const DEEDS_TOLD: usize = 50;

/// Writes a report, in 80 columns.
///
/// # Errors
/// Where nothing can be written.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut paper = Paper::default();
    paper.say(0, &foreign(&report.source));
    course(&report.course, &mut paper);
    for note in &report.notes {
        paper.say(2, &format!("note: {note}"));
    }
    paper.gap();
    table(report, &mut paper);
    for rule in &report.rules {
        if has_more(rule) {
            paper.gap();
            details(rule, &mut paper);
        }
    }
    owners(report, &mut paper);
    unknown(report, &mut paper);
    out.write_all(paper.text().as_bytes())
}

fn course(course: &Course, paper: &mut Paper) {
    let (Some(from), Some(to)) = (course.from, course.to) else {
        paper.say(2, "nothing was there to be judged");
        if course.bad_lines > 0 {
            paper.say(2, &format!("{} are no snapshots", count(course.bad_lines, ("line", "lines"))));
        }
        return;
    };
    let long = to.since_epoch().saturating_sub(from.since_epoch());
    let beat = humantime::format_duration(Duration::from_millis(course.interval_ms));
    paper.say(
        2,
        &format!(
            "{} to {} ({}), beat {beat}",
            moment(from.since_epoch()),
            moment(to.since_epoch()),
            length(long)
        ),
    );
    let mut told =
        vec![format!("{}, {} judged", count(course.snapshots, ("snapshot", "snapshots")), course.judged)];
    told.extend(course.skipped.iter().map(|(reason, number)| format!("{number} skipped ({reason})")));
    if course.missed_beats > 0 {
        told.push(format!("{} missed", count(course.missed_beats, ("beat", "beats"))));
    }
    if course.bad_lines > 0 {
        told.push(count(course.bad_lines, ("bad line", "bad lines")));
    }
    if course.boots > 1 {
        told.push(count(course.boots, ("boot", "boots")));
    }
    paper.say(2, &told.join(", "));
    let held = course.held_seconds.iter().filter(|(_, seconds)| **seconds > 0);
    let held: Vec<String> =
        held.map(|(hold, seconds)| format!("{hold} {}", length(Duration::from_secs(*seconds)))).collect();
    if !held.is_empty() {
        paper.say(2, &format!("destructive steps were held: {}", held.join(", ")));
    }
}

fn table(report: &Report, paper: &mut Paper) {
    paper.row(&format!(
        "{:<24} {:<7} {:>7} {:>6} {:>7} {:>6} {:>7} {:>8}",
        "RULE", "MODE", "MATCHES", "FLAGS", "NOTICES", "KILLS", "REGRETS", "UNKNOWN"
    ));
    for rule in &report.rules {
        paper.row(&format!(
            "{:<24} {:<7} {:>7} {:>6} {:>7} {:>6} {:>7} {:>8}",
            cut(&rule.name, 24),
            match rule.mode {
                Mode::Watch => "watch",
                Mode::Enforce => "enforce",
            },
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
    let text = foreign(text);
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

fn has_more(rule: &RuleReport) -> bool {
    !rule.deeds.is_empty()
        || !rule.near_misses.is_empty()
        || !rule.withheld.is_empty()
        || rule.reprieves > 0
        || rule.never.is_some()
}

fn details(rule: &RuleReport, paper: &mut Paper) {
    let kills = count(rule.kills, ("would-be kill", "would-be kills"));
    paper.say(0, &format!("{}: {kills}{}", foreign(&rule.name), freed(rule.freed)));
    if let Some(never) = &rule.never {
        paper.say(2, &format!("it could never match: {never}"));
    }
    for deed in rule.deeds.iter().take(DEEDS_TOLD) {
        one(deed, paper);
    }
    if let Some(more) = rule.deeds.len().checked_sub(DEEDS_TOLD).filter(|more| *more > 0) {
        paper.say(2, &format!("and {more} more: --json has all"));
    }
    if rule.reprieves > 0 {
        paper.say(2, &format!("spared after all: {}", rule.reprieves));
    }
    let withheld: Vec<String> =
        rule.withheld.iter().map(|(hold, number)| format!("{hold} {number}")).collect();
    if !withheld.is_empty() {
        paper.say(2, &format!("steps withheld: {}", withheld.join(", ")));
    }
    for near in &rule.near_misses {
        let target = foreign(&near.target);
        let at = moment(near.at.since_epoch());
        paper.say(2, &format!("near miss: {target} {}/{} at {at}", near.longest, near.needed));
    }
    if rule.more_near_misses > 0 {
        paper.say(2, &format!("and {} more near misses", rule.more_near_misses));
    }
}

fn one(deed: &Deed, paper: &mut Paper) {
    let owner = match (&deed.user, deed.uid) {
        (Some(user), Some(uid)) => format!("{} ({uid})", foreign(user)),
        (_, Some(uid)) => format!("uid {uid}"),
        _ => "owner unknown".to_owned(),
    };
    let again = if deed.again { ", again" } else { "" };
    let target = foreign(&deed.target);
    paper.say(2, &format!("{} {} {target}{again}", moment(deed.at.since_epoch()), deed.action));
    let comms: Vec<String> = deed.comms.iter().take(4).map(|comm| foreign(comm)).collect();
    let gpus: Vec<String> = deed.gpus.iter().map(|gpu| cut(gpu, 13)).collect();
    let vram =
        deed.vram.map_or_else(|| "memory unknown".to_owned(), |bytes| format!("{:#}", Bytes(bytes.into())));
    paper.say(
        4,
        &format!(
            "{owner}, {}, {vram} on {}, streak {}/{}",
            comms.join(" "),
            gpus.join(" "),
            deed.streak,
            deed.needed
        ),
    );
    if deed.action != "terminate" || deed.again {
        return;
    }
    let end = match deed.ended {
        Some(ended) => {
            let after = ended.since_epoch().saturating_sub(deed.at.since_epoch());
            format!("ended by itself {} later", length(after))
        }
        None => "held on to the end".to_owned(),
    };
    paper.say(4, &format!("{end}{}", freed(deed.freed)));
    if let Some(regret) = deed.regret {
        let after = length(Duration::from_secs(regret.after_seconds));
        paper.say(4, &format!("REGRET: busy again {after} later (gpu_util {:.0}%)", regret.gpu_util * 100.0));
    }
}

fn freed(freed: Freed) -> String {
    if freed.gpu_hours <= 0.0 {
        return String::new();
    }
    format!(", {:.2} GPU-hours and {:.1} GiB-hours freed", freed.gpu_hours, freed.gib_hours)
}

fn owners(report: &Report, paper: &mut Paper) {
    if report.owners.is_empty() {
        return;
    }
    paper.gap();
    paper.row(&format!(
        "{:<32} {:>6} {:>7} {:>12} {:>12}",
        "OWNER", "KILLS", "REGRETS", "GPU-HOURS", "GIB-HOURS"
    ));
    for owner in &report.owners {
        paper.row(&format!(
            "{:<32} {:>6} {:>7} {:>12.2} {:>12.1}",
            cut(&owner.user, 32),
            owner.kills,
            owner.regrets,
            owner.freed.gpu_hours,
            owner.freed.gib_hours
        ));
    }
    let all = report.freed;
    paper.row(&format!(
        "{:<32} {:>6} {:>7} {:>12.2} {:>12.1}",
        "all together", "", "", all.gpu_hours, all.gib_hours
    ));
}

fn unknown(report: &Report, paper: &mut Paper) {
    if report.unknown.is_empty() {
        return;
    }
    paper.gap();
    let told: Vec<String> = report
        .unknown
        .iter()
        .map(|told| {
            let share =
                if told.throughout() { "throughout".to_owned() } else { share(told.unknown, told.asked) };
            format!("{} of a {} {share}", told.name, told.of.name())
        })
        .collect();
    paper.say(0, &format!("unknown: {}", told.join(", ")));
}
