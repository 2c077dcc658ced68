//! Tests the page of an enforcer that evaluates no snapshots, or has not evaluated any yet.

use bailiff_exposition::own::Own;

use super::*;
use crate::status::{Breaker, Flag, HoldStatus, Open, PastAction, Pending, Stream};
use bailiff_engine::policy::{Mode, Severity};
use bailiff_engine::verdict::{Hold, Outcome};

const WALL: Duration = Duration::from_secs(1_700_000_000);
const BOOT: Duration = Duration::from_secs(1000);

/// The page of an enforcer that was started this many seconds ago.
fn page_after(status: &Status, seconds: f64) -> String {
    let own = Own { started: Some(WALL.as_secs_f64() - seconds), ..Own::default() };
    page(status, Moment { now: Now { wall: WALL, boot: BOOT }, own }, true)
}

/// Returns the status of a connected enforcer whose last evaluated snapshot, if any, has this age in seconds.
fn connected(age: Option<u64>) -> Status {
    let stream = Stream {
        connected: true,
        seq: age.map(|_| 7),
        seen_boot_ms: age.map(|age| 1_000_000 - age * 1000),
        interval_ms: age.map(|_| 5000),
        ..Stream::default()
    };
    Status { stream, ..Status::default() }
}

/// Returns the HTML of one section.
fn section<'a>(html: &'a str, id: &str) -> &'a str {
    let html = html.split_once(&format!("<section id=\"{id}\"")).unwrap().1;
    html.split_once("</section>").unwrap().0
}

#[test]
fn a_stream_that_says_nothing_is_loud_after_two_intervals() {
    for (seconds, is_loud) in [(0.0, false), (10.0, false), (11.0, true), (40.0, true)] {
        let html = page_after(&connected(None), seconds);
        assert_eq!(html.contains("class=\"alarm\""), is_loud, "{seconds} s: {html}");
    }
    let html = page_after(&connected(None), 40.0);
    assert!(html.contains("The stream is up, but no snapshot has been evaluated yet after 40 s."), "{html}");
}

#[test]
fn what_was_not_judged_is_unknown() {
    let html = page_after(&connected(None), 1.0);
    for id in ["pending", "flags"] {
        let section_text = section(&html, id);
        assert!(section_text.contains("unknown: no snapshot has been evaluated yet"), "{section_text}");
        assert!(
            !section_text.contains("No pending steps.") && !section_text.contains("No raised flags."),
            "{section_text}"
        );
    }
    let html = page_after(&connected(Some(1)), 1.0);
    let section_text = [section(&html, "pending"), section(&html, "flags")];
    assert!(
        section_text[0].contains("No pending steps.") && section_text[1].contains("No raised flags."),
        "{section_text:?}"
    );
}

#[test]
fn the_last_snapshot_is_too_old_where_it_would_not_be_judged() {
    for (age, is_loud) in [(0, false), (10, false), (11, true), (18, true)] {
        let status = connected(Some(age));
        assert_eq!(status.stream.is_stale(BOOT), is_loud, "{age} s");
        let html = page_after(&status, 60.0);
        assert_eq!(html.contains("class=\"alarm\""), is_loud, "{age} s: {html}");
    }
}

#[test]
fn why_it_is_held_is_said_once() {
    let held = |hold: Hold, detail: &str| HoldStatus { hold, until: None, detail: detail.to_owned() };
    let mut status = connected(Some(1));
    status.holds = vec![held(Hold::Started, Hold::Started.meaning()), held(Hold::Paused, "by root: upgrade")];
    let html = page_after(&status, 1.0);
    assert!(
        html.contains("<li>Destructive steps are withheld: the enforcer has just started</li>"),
        "{html}"
    );
    assert!(html.contains("paused by an administrator (by root: upgrade)</li>"), "{html}");
}

#[test]
fn rows_are_named_by_their_target() {
    let mut status = connected(Some(1));
    status.flags = vec![Flag {
        rule: "idle".into(),
        severity: Severity::Warning,
        target: "process:41@7".into(),
        gpus: vec![],
        pid: Some(41),
        user: None,
        comm: None,
        since: WALL.as_secs_f64() - 60.0,
    }];
    status.actions = vec![PastAction {
        id: 1,
        at: WALL.as_secs_f64() - 5.0,
        rule: "idle".into(),
        mode: Mode::Enforce,
        step: "terminate".into(),
        target: "process:40@7".into(),
        user: None,
        outcome: Outcome::Undetermined,
        detail: String::new(),
        released: None,
    }];
    let html = page_after(&status, 60.0);
    let (flags, actions) = (section(&html, "flags"), section(&html, "actions"));
    assert!(flags.contains("<th scope=\"row\" class=\"\">process:41@7</th>"), "{flags}");
    assert!(actions.contains("<th scope=\"row\" class=\"\">process:40@7</th>"), "{actions}");
    assert!(
        actions.contains("5 s ago <span class=\"dim\"><time datetime=\"2023-11-14T22:13:15Z\">"),
        "{actions}"
    );
    assert!(actions.contains("unknown: cannot be determined"), "what came back: {actions}");
}

#[test]
fn reason_of_a_breaker_is_shown_once() {
    for breaker in Breaker::ALL {
        let (hold, meaning) = (breaker.hold(), breaker.hold().meaning());
        let open = Open { breaker, hold, since: WALL.as_secs_f64(), detail: meaning.to_owned() };
        let step = |pid| Pending {
            target: format!("process:{pid}@1"),
            user: None,
            comm: None,
            rule: "idle".into(),
            mode: Mode::Enforce,
            step: "terminate".into(),
            streak: 3,
            needed: 3,
            due_in: Some(0.0),
            hold: Some(hold),
        };
        let status = Status { breakers: vec![open], pending: vec![step(1), step(2)], ..connected(Some(1)) };
        let html = page_after(&status, 40.0);
        assert_eq!(html.matches(meaning).count(), 1, "{html}");
        let held = format!("held: breaker {}", breaker.name());
        assert_eq!(section(&html, "pending").matches(&held).count(), 2, "{html}");
    }
}
