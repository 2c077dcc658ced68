//! The status page of the enforcer: plain HTML without scripts, read-only.

mod tables;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bailiff_exposition::html::{Head, Html};
use bailiff_exposition::human::{Span, ago};

use super::page::Moment;
use crate::status::tally::Reloaded;
use crate::status::{Cap, NOT_LOADED, Status, held_by_owner};
use bailiff_engine::engine::Now;
use bailiff_engine::engine::STALE_INTERVALS;

/// The interval without any snapshot.
const INTERVAL: Duration = Duration::from_secs(5);
/// Text before the first evaluation.
const NOT_YET: &str = "no snapshot has been evaluated yet";
/// Faults of a file that are shown.
const MOST_FAULTS: usize = 20;
/// Maximum number of holds of owners that are listed.
const MOST_HOLDS: usize = 20;

/// Returns the page; if it `refreshes`, the browser reloads it at every interval.
pub(super) fn page(status: &Status, moment: Moment, refreshes: bool) -> String {
    let now = moment.now;
    let heading = format!("Rules on {}", status.node);
    let interval = status.stream.interval().unwrap_or(INTERVAL);
    let head = Head { title: &heading, heading: &heading, refresh: refreshes.then_some(interval) };
    let mut html = Html::begin(&head);
    html.age("evaluated the snapshot of", status.stream.age(now.boot), |_| {});
    let links = [("Metrics", "./metrics"), ("Health", "./-/healthy"), ("Readiness", "./-/ready")];
    html.nav(&links, refreshes);
    html.main();
    if let Some(alarm) = alarm(status, moment) {
        html.paragraph("alarm", &alarm);
    }
    html.notes(&notes(status, now));
    policy(status, now, &mut html);
    tables::write(status, now, &mut html);
    html.end(concat!(
        "GPU Bailiff enforcer ",
        env!("CARGO_PKG_VERSION"),
        ". This page is read-only; bailiff-enforcer pause stops all actions."
    ))
}

/// Returns a warning if no new snapshots are evaluated, because the page may be outdated.
fn alarm(status: &Status, moment: Moment) -> Option<String> {
    let stream = &status.stream;
    let boot = moment.now.boot;
    let age = stream.age(boot);
    let seen = age.map_or_else(
        || "no snapshot was received yet".to_owned(),
        |age| format!("the last snapshot is {} old", Span(age)),
    );
    if !stream.connected {
        let why = stream.error.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        return Some(format!(
            "The stream is down{why}; {seen}. No rule is evaluated, and no action is taken."
        ));
    }
    if age.is_none() {
        let patience = INTERVAL * STALE_INTERVALS;
        let runs = moment.now.wall.saturating_sub(Duration::try_from_secs_f64(moment.own.started?).ok()?);
        return (runs > patience).then(|| {
            format!(
                "The stream is up, but {NOT_YET} after {}. No rule is evaluated, and no action is taken.",
                Span(runs)
            )
        });
    }
    let due =
        stream.interval().map(|interval| format!(", with one due every {interval:?}")).unwrap_or_default();
    stream
        .is_stale(boot)
        .then(|| format!("Out of date: {seen}{due}. No rule is evaluated, and no action is taken."))
}

/// Why less is done than the rules say.
fn notes(status: &Status, now: Now) -> Vec<String> {
    let mut notes = Vec::new();
    if let Cap::DryRun(why) = &status.cap {
        notes.push(format!("Dry run for all rules: {why}"));
    }
    for held in &status.holds {
        notes.push(format!(
            "Destructive steps are withheld: {}{}{}",
            held.hold.meaning(),
            held.more(),
            held.left(now.wall)
        ));
    }
    for hold in status.owner_holds.iter().take(MOST_HOLDS) {
        notes.push(format!("Rule {}: {} is {}", hold.rule, hold.target, held_by_owner(hold)));
    }
    for open in &status.breakers {
        let (name, since) = (open.breaker.name(), ago(open.since, now.wall));
        let closes = open.breaker.closes();
        notes.push(format!("Breaker {name} open since {since}: {}; {closes}", open.detail));
    }
    if let Some(action) = &status.in_flight {
        notes.push(format!("Action in flight: {}", action.describe(now.wall)));
        notes.extend(action.waits.as_ref().map(|why| format!("SIGKILL waits: {why}")));
    }
    if !status.stream.silent.is_empty() {
        notes.push(format!("Everything that depends on {} is unknown", status.stream.silent.join(", ")));
    }
    if let Some(error) = status.leases.as_ref().and_then(|leases| leases.error.as_ref()) {
        notes.push(format!("The lease agent cannot check the leases: {error}"));
    }
    notes
}

fn policy(status: &Status, now: Now, html: &mut Html) {
    let policy = &status.policy;
    html.section("policy", "Policy", |html| {
        html.raw("<p>");
        html.prose(&policy.path);
        html.raw("</p><p class=\"dim\">");
        match &policy.sha256 {
            Some(sha256) => html.prose(&format!("sha256 {sha256}")),
            None => html.raw("no policy is in force yet"),
        }
        if let Some(loaded) = policy.loaded {
            html.prose(&format!(", loaded {}", ago(loaded, now.wall)));
        }
        html.raw("</p>");
        if policy.last == Some(Reloaded::Refused) {
            faults(&policy.faults, html);
        }
    });
}

fn faults(faults: &[String], html: &mut Html) {
    html.paragraph("bad", &format!("{NOT_LOADED}:"));
    html.raw("<ul>");
    for fault in faults.iter().take(MOST_FAULTS) {
        html.raw("<li>");
        html.prose(fault);
        html.raw("</li>");
    }
    html.raw("</ul>");
    if let Some(more @ 1..) = faults.len().checked_sub(MOST_FAULTS) {
        html.paragraph("dim", &format!("{more} more are not shown; see bailiff-enforcer check."));
    }
}
