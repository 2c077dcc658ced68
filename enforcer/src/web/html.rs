//! The page for people: how the enforcer stands, as HTML that works without scripts. Nothing can be done from it.

mod tables;

use std::time::{Duration, UNIX_EPOCH};

use bailiff_exposition::html::{Head, Html};
use bailiff_exposition::human::Span;

use super::status::{Cap, Status};
use super::tally::Reloaded;
use crate::clock::Now;

/// Where no snapshot has told the beat.
const REFRESH: Duration = Duration::from_secs(5);
/// Faults of a file that are shown.
const MOST_FAULTS: usize = 20;

/// The page; a browser asks for it again where it `refreshes`.
pub(super) fn page(status: &Status, now: Now, refreshes: bool) -> String {
    let heading = format!("Rules on {}", status.node);
    let beat = status.stream.interval_ms.map_or(REFRESH, Duration::from_millis);
    let head = Head { title: &heading, heading: &heading, refresh: refreshes.then_some(beat) };
    let mut html = Html::begin(&head);
    age(status, now, &mut html);
    let still = if refreshes { ("Stop refreshing", "./?still") } else { ("Refresh by itself", "./") };
    html.nav(&[("Metrics", "./metrics"), ("Health", "./-/healthy"), ("Readiness", "./-/ready"), still]);
    html.main();
    if let Some(alarm) = alarm(status, now) {
        html.paragraph("alarm", &alarm);
    }
    html.notes(&notes(status, now));
    policy(status, now, &mut html);
    tables::write(status, now, &mut html);
    html.end(concat!(
        "GPU Bailiff enforcer ",
        env!("CARGO_PKG_VERSION"),
        ". This page only tells; bailiff-enforcer pause is the brake."
    ))
}

fn age(status: &Status, now: Now, html: &mut Html) {
    match status.stream.age(now.boot) {
        Some(age) => {
            html.raw("<p>judged what was seen <strong id=\"age\">");
            html.text(&format!("{} ago", Span(age)));
            html.raw("</strong></p>");
        }
        None => html.raw("<p><strong id=\"age\">no snapshot yet</strong></p>"),
    }
}

/// That nothing new comes, loudly: what is shown may be no longer so.
fn alarm(status: &Status, now: Now) -> Option<String> {
    let stream = &status.stream;
    let age = stream.age(now.boot);
    let seen = age.map_or_else(
        || "no snapshot was ever seen".to_owned(),
        |age| format!("the last snapshot is {} old", Span(age)),
    );
    if !stream.connected {
        let why = stream.trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        return Some(format!("The stream is down{why}; {seen}. Nothing is judged, and nobody is ended."));
    }
    let beat = Duration::from_millis(stream.interval_ms?);
    (age? > beat * 3 + Duration::from_secs(2))
        .then(|| format!("Out of date: {seen}, with one due every {beat:?}."))
}

/// Why less is done than the rules say.
fn notes(status: &Status, now: Now) -> Vec<String> {
    let mut notes = Vec::new();
    if let Cap::Watch(why) = &status.cap {
        notes.push(format!("Only watching, whatever the file says: {why}"));
    }
    for held in &status.holds {
        let until = held.until.map(|until| format!(", for {} more", Span(until_then(until, now))));
        let detail = if held.detail.is_empty() { String::new() } else { format!(" ({})", held.detail) };
        notes.push(format!(
            "Nothing destructive: {}{detail}{}",
            held.hold.meaning(),
            until.unwrap_or_default()
        ));
    }
    for open in &status.breakers {
        let what = format!("{}: {}", open.breaker.hold().meaning(), open.detail);
        notes.push(format!("Breaker {} open since {}: {what}", open.breaker.name(), ago(open.since, now)));
    }
    if let Some(deed) = &status.in_flight {
        let since = ago(deed.since, now);
        notes.push(format!(
            "Under way: {} of {} against {}, begun {since}",
            deed.step, deed.rule, deed.target
        ));
    }
    if !status.stream.silent.is_empty() {
        notes.push(format!("Unknown is what depends on {}", status.stream.silent.join(", ")));
    }
    if let Some(trouble) = status.leases.as_ref().and_then(|leases| leases.trouble.as_ref()) {
        notes.push(format!("Leases are not looked after: {trouble}"));
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
            html.prose(&format!(", found good {}", ago(loaded, now)));
        }
        html.raw("</p>");
        if policy.last == Some(Reloaded::Refused) {
            faults(&policy.faults, html);
        }
    });
}

fn faults(faults: &[String], html: &mut Html) {
    html.paragraph("bad", "The file on disk makes no sense; what was in force goes on.");
    html.raw("<ul>");
    for fault in faults.iter().take(MOST_FAULTS) {
        html.raw("<li>");
        html.prose(fault);
        html.raw("</li>");
    }
    html.raw("</ul>");
    if let Some(more @ 1..) = faults.len().checked_sub(MOST_FAULTS) {
        html.paragraph("dim", &format!("{more} more are not shown: bailiff-enforcer check tells all."));
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

/// A moment of the wall clock, in UTC.
fn clock(at: f64) -> Option<String> {
    let time = UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(at).ok()?)?;
    Some(humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC"))
}
