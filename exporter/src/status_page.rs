//! The status page: the newest snapshot as HTML that works without scripts. It is made from that snapshot
//! alone, and a missing value is shown as unknown, with the reason.

mod gpus;
mod holders;
mod leases;
mod mps;
mod notes;
mod quotas;
mod reasons;
mod sources;
mod stuck;

use std::time::Duration;

use bailiff_exposition::html::{Head, Html};
use bailiff_exposition::human::Span;
use bailiff_snapshot::Snapshot;

use crate::health::Health;

/// Content of the status page.
#[derive(Debug)]
pub struct View<'a> {
    /// The newest snapshot; `None` before the first.
    pub snapshot: Option<&'a Snapshot>,
    /// Age of the snapshot, and how old it may be.
    pub health: Health,
    /// Links to other pages.
    pub links: Links<'a>,
    /// Name of the node.
    pub node: &'a str,
    /// Whether the browser reloads the page periodically.
    pub refreshes: bool,
}

/// Links to other pages.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    /// Path of the metrics page.
    pub telemetry: &'a str,
    /// URL of the enforcer's page; `None` if not configured.
    pub enforcer: Option<&'a str>,
}

impl View<'_> {
    /// Renders the page.
    pub fn html(&self) -> String {
        let refresh = self.refreshes.then_some(self.health.interval);
        let heading = format!("GPUs on {}", self.node);
        let mut html = Html::begin(&Head { title: &heading, heading: &heading, refresh });
        self.age(&mut html);
        self.nav(&mut html);
        html.main();
        if let Err(why) = self.health.healthy() {
            html.paragraph("alarm", &self.alarm(&why));
        }
        match self.snapshot {
            Some(snapshot) => parts(snapshot, self.health.age, &mut html),
            None => html.paragraph("dim", "Waiting for the first sample."),
        }
        html.end(concat!("GPU Bailiff exporter ", env!("CARGO_PKG_VERSION")))
    }

    fn age(&self, html: &mut Html) {
        html.age("seen", self.snapshot.map(|_| self.health.age), |html| {
            if let Some(snapshot) = self.snapshot {
                html.raw(", at ");
                html.time(snapshot.at.wall);
            }
            html.raw("; sampling interval ");
            html.text(&humantime::format_duration(self.health.interval).to_string());
        });
    }

    /// Writes the links. They are relative, so that they work behind a proxy that serves the page at another
    /// path.
    fn nav(&self, html: &mut Html) {
        let telemetry = format!(".{}", self.links.telemetry);
        let mut links =
            vec![("Metrics", telemetry.as_str()), ("Health", "./-/healthy"), ("Readiness", "./-/ready")];
        links.extend(self.links.enforcer.map(|url| ("Enforcer", url)));
        html.nav(&links, self.refreshes);
    }

    fn alarm(&self, why: &str) -> String {
        match self.snapshot {
            Some(_) => format!("Out of date: {why}. The data below is {} old.", Span(self.health.age)),
            None => format!("No data: {why}."),
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

/// Returns the index of the GPU that `is` matches; `None` if the driver does not report that GPU.
fn index(snapshot: &Snapshot, is: impl Fn(&bailiff_snapshot::Gpu) -> bool) -> Option<&str> {
    snapshot.gpus.iter().find(|gpu| is(gpu)).map(|gpu| gpu.about.index.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(age: u64) -> String {
        let health = Health {
            age: Duration::from_secs(age),
            seen: false,
            interval: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
        };
        let links = Links { telemetry: "/metrics", enforcer: Some("https://node/\"enforcer") };
        View { snapshot: None, health, links, node: "node", refreshes: true }.html()
    }

    #[test]
    fn before_the_first_snapshot_there_is_a_page_as_well() {
        let html = view(3);
        assert!(html.contains("no snapshot yet") && html.contains("href=\"./metrics\""), "{html}");
        assert!(html.contains("href=\"https://node/&quot;enforcer\""), "{html}");
        assert!(!html.contains("class=\"alarm\""), "{html}");
        assert!(view(60).contains("No data: no snapshot for 60.0 s"));
    }
}
