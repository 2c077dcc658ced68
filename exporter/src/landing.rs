//! The status page for people: the newest snapshot, as HTML that works without scripts. It is made of one snapshot alone,
//! and what that does not hold is shown as unknown, with the reason.

mod gpus;
mod holders;
mod leases;
mod mps;
mod notes;
mod quotas;
mod sources;
mod stuck;
mod words;

use std::time::{Duration, UNIX_EPOCH};

use bailiff_exposition::html::{Head, Html};
use bailiff_exposition::human::Span;
use bailiff_snapshot::Snapshot;

use crate::health::Vitals;

/// What is shown.
#[derive(Debug)]
pub struct View<'a> {
    /// The newest snapshot.
    pub snapshot: Option<&'a Snapshot>,
    /// Its age, and how old it may be.
    pub vitals: Vitals,
    /// Where other pages are.
    pub links: Links<'a>,
    /// What the node is called.
    pub node: &'a str,
    /// The browser asks for it again.
    pub refreshes: bool,
}

/// Where other pages are.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    /// The page of metrics.
    pub telemetry: &'a str,
    /// The enforcer's page; none where none was named.
    pub enforcer: Option<&'a str>,
}

impl View<'_> {
    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        let refresh = self.refreshes.then_some(self.vitals.interval);
        let heading = format!("GPUs of {}", self.node);
        let mut html = Html::begin(&Head { title: &heading, heading: &heading, refresh });
        self.age(&mut html);
        self.nav(&mut html);
        html.main();
        if let Err(why) = self.vitals.healthy() {
            html.paragraph("alarm", &self.alarm(&why));
        }
        match self.snapshot {
            Some(snapshot) => parts(snapshot, self.vitals.age, &mut html),
            None => html.paragraph("dim", "The first look at the GPUs is under way."),
        }
        html.end(concat!("GPU Bailiff exporter ", env!("CARGO_PKG_VERSION")))
    }

    fn age(&self, html: &mut Html) {
        html.raw("<p>");
        match self.snapshot {
            Some(snapshot) => {
                html.raw("seen <strong id=\"age\">");
                html.text(&format!("{} ago", Span(self.vitals.age)));
                html.raw("</strong>, at <time>");
                html.text(&clock(snapshot.at.wall));
                html.raw("</time>; a look is due every ");
            }
            None => html.raw("<strong id=\"age\">no snapshot yet</strong>; a look is due every "),
        }
        html.text(&humantime::format_duration(self.vitals.interval).to_string());
        html.raw("</p>");
    }

    /// Relative addresses, so that they are right behind a proxy that puts the page elsewhere.
    fn nav(&self, html: &mut Html) {
        let telemetry = format!(".{}", self.links.telemetry);
        let mut links =
            vec![("Metrics", telemetry.as_str()), ("Health", "./-/healthy"), ("Readiness", "./-/ready")];
        links.extend(self.links.enforcer.map(|url| ("Enforcer", url)));
        links.push(if self.refreshes {
            ("Stop refreshing", "./?still")
        } else {
            ("Refresh by itself", "./")
        });
        html.nav(&links);
    }

    fn alarm(&self, why: &str) -> String {
        match self.snapshot {
            Some(_) => format!(
                "Out of date: {why}. What is shown was true {} ago, and may be no longer.",
                Span(self.vitals.age)
            ),
            None => format!("Nothing is known: {why}."),
        }
    }
}

fn parts(snapshot: &Snapshot, age: Duration, html: &mut Html) {
    notes::write(snapshot, html);
    gpus::write(snapshot, html);
    holders::write(snapshot, html);
    stuck::write(snapshot, html);
    leases::write(snapshot, html);
    quotas::write(snapshot, html);
    mps::write(snapshot, html);
    sources::write(snapshot, age, html);
}

/// A moment of the wall clock, in UTC.
fn clock(wall: Duration) -> String {
    UNIX_EPOCH.checked_add(wall).map_or_else(
        || "an unknown time".to_owned(),
        |time| humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC"),
    )
}

/// The index of the GPU of a pool or a quota, where the driver has it.
fn index(snapshot: &Snapshot, is: impl Fn(&bailiff_snapshot::Gpu) -> bool) -> Option<&str> {
    snapshot.gpus.iter().find(|gpu| is(gpu)).map(|gpu| gpu.about.index.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(age: u64) -> String {
        let vitals = Vitals {
            age: Duration::from_secs(age),
            seen: false,
            interval: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
        };
        let links = Links { telemetry: "/metrics", enforcer: Some("https://node/\"enforcer") };
        View { snapshot: None, vitals, links, node: "node", refreshes: true }.html()
    }

    #[test]
    fn before_the_first_snapshot_there_is_a_page_as_well() {
        let html = view(3);
        assert!(html.contains("no snapshot yet") && html.contains("href=\"./metrics\""), "{html}");
        assert!(html.contains("href=\"https://node/&quot;enforcer\""), "{html}");
        assert!(!html.contains("class=\"alarm\""), "{html}");
        assert!(view(60).contains("Nothing is known: no snapshot at all for 60.0 s"));
    }

    #[test]
    fn a_moment_is_told_in_utc() {
        assert_eq!(clock(Duration::from_secs(1_700_000_000)), "2023-11-14 22:13:20 UTC");
    }
}
