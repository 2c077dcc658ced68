//! Tests the metrics page: its contents, absent values, and hostile names.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot continue fails")]

#[path = "made_up/mod.rs"]
mod made_up;
#[path = "../../exporter/tests/made_up/parse.rs"]
mod parse;

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_enforcer::metrics::{FAMILIES, OWN_PROCESS};
use bailiff_enforcer::status::Status;
use bailiff_enforcer::web::page::{self, MOST_FLAGS, Moment};
use bailiff_engine::engine::Now;
use bailiff_exposition::Format;
use bailiff_exposition::own::Own;
use made_up::{full, named};
use parse::{Page, parse};
use proptest::prelude::*;

fn written(status: &Status, format: Format) -> String {
    let own = Own { cpu_seconds: Some(1.5), ..Own::default() };
    let mut out = Vec::new();
    let moment = Moment { now: Now { boot: Duration::from_secs(3602), ..Now::default() }, own };
    page::write(status, &moment, format, &mut out).expect("writing to memory cannot fail");
    String::from_utf8(out).expect("a page is text")
}

fn read(status: &Status) -> Page {
    parse(&written(status, Format::Text))
}

#[test]
fn full_page_has_every_family_with_its_labels() {
    let page = read(&full());
    for sample in &page.samples {
        let family = FAMILIES.iter().chain(OWN_PROCESS).find(|family| family.name == sample.name);
        let labels: Vec<&str> =
            family.expect("the metric is in the table").labels.split_ascii_whitespace().collect();
        assert!(sample.labels.keys().all(|label| labels.contains(&label.as_str())), "{sample:?}");
    }
    let seen: BTreeSet<&str> = page.samples.iter().map(|sample| sample.name.as_str()).collect();
    let missing: Vec<&str> =
        FAMILIES.iter().map(|family| family.name).filter(|name| !seen.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn both_formats_have_the_same_samples() {
    let open = written(&full(), Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n"));
    assert_eq!(read(&full()).samples, parse(&open).samples);
}

#[test]
fn unobserved_values_are_absent() {
    let page = read(&Status::default());
    for name in [
        "bailiff_rule_matches",
        "bailiff_policy_info",
        "bailiff_policy_last_reload_successful",
        "bailiff_policy_last_reload_success_timestamp_seconds",
        "bailiff_enforcer_snapshot_age_seconds",
        "bailiff_enforcer_tick_duration_seconds",
        "bailiff_budget_used",
        "bailiff_budget_limit",
        "bailiff_lease_agent_up",
        "bailiff_lease_agent_gpus",
    ] {
        assert_eq!(page.values(name), [], "{name}");
    }
    assert_eq!(page.value("bailiff_stream_connected", &[]), Some(0.0));
    let full = read(&full());
    assert_eq!(full.values("bailiff_rule_matches").len(), 1, "the other rule has not been evaluated");
}

#[test]
fn ages_are_computed_per_request() {
    assert_eq!(read(&full()).value("bailiff_enforcer_snapshot_age_seconds", &[]), Some(2.0));
}

#[test]
fn open_breaker_is_also_a_hold() {
    let page = read(&full());
    let held = |hold| page.value("bailiff_hold_active", &[("hold", hold)]);
    assert_eq!((held("mass_breaker"), held("paused"), held("stale")), (Some(1.0), Some(1.0), Some(0.0)));
    assert_eq!(held("cooldown"), None, "cooldown applies to single targets");
    assert_eq!(page.value("bailiff_breaker_open", &[("breaker", "mass")]), Some(1.0));
    assert_eq!(page.value("bailiff_breaker_open", &[("breaker", "unknown")]), Some(0.0));
}

#[test]
fn flag_names_its_gpu() {
    let page = read(&full());
    let gpus: Vec<Option<&String>> =
        page.values("bailiff_flag").into_iter().map(|(labels, _)| labels.get("gpu_uuid")).collect();
    assert_eq!(gpus, [Some(&"GPU-0".to_owned()), None], "the critical flag comes first");
}

#[test]
fn flags_are_bounded_to_the_most_severe() {
    let mut status = full();
    let (warning, critical) = (status.flags[0].clone(), status.flags[1].clone());
    status.flags.clear();
    for number in 0..300 {
        let target = format!("workload:slurm:{number}");
        status.flags.push(bailiff_enforcer::status::Flag { target, ..warning.clone() });
    }
    status.flags.push(critical);
    let page = read(&status);
    assert_eq!(page.values("bailiff_flag").len(), MOST_FLAGS);
    assert_eq!(page.value("bailiff_flags_dropped", &[]), Some(45.0));
    assert_eq!(page.value("bailiff_flag", &[("severity", "critical")]), Some(1.0));
}

proptest! {
    #[test]
    fn hostile_names_do_not_break_the_page(user in any::<String>(), comm in any::<String>(), target in ".{0,300}") {
        let mut status = named(&user, &comm);
        // Two targets whose truncated names are equal.
        for flag in &mut status.flags {
            flag.target.clone_from(&target);
            flag.pid = None;
        }
        for format in [Format::Text, Format::OpenMetrics] {
            let page = parse(&written(&status, format));
            prop_assert!(!page.values("bailiff_flag").is_empty());
        }
    }
}
