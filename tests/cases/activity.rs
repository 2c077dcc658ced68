//! Tests the activity of engines (`--gpm`): what the driver reports is published, and what it does not report or cannot be
//! true is absent.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, compares exact figures and fails loudly"
)]

use std::process::Command;

use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::programs;

const ALL: &str = "{1: 64.5, 2: 50, 3: 25, 5: 12.5, 10: 100, 30: 20, 31: 35, 40: 0, 50: not_supported}";

fn page(scenario: &str, flags: &[&str]) -> Page {
    let scenario = Scenario::new(scenario);
    let output = exporter::command(&scenario).arg("--once").args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Page::read(&String::from_utf8(output.stdout).unwrap())
}

/// Returns the activity of a GPU by engine, and the reason why it is unknown.
fn activity(page: &Page, gpu: &str) -> (Vec<(String, f64)>, Option<String>) {
    let of_gpu = [("gpu", gpu)];
    let found = page.all("bailiff_gpu_activity_ratio", &of_gpu);
    let found = found.map(|(labels, ratio)| (labels["engine"].clone(), ratio)).collect();
    (found, page.label("bailiff_gpu_activity_unknown_info", &of_gpu, "reason"))
}

fn known(ratios: &[(&str, f64)]) -> (Vec<(String, f64)>, Option<String>) {
    (ratios.iter().map(|(engine, ratio)| ((*engine).to_owned(), *ratio)).collect(), None)
}

fn unknown(reason: &str) -> (Vec<(String, f64)>, Option<String>) {
    (vec![], Some(reason.to_owned()))
}

const FLAGS: [&str; 3] = ["--gpm", "--interval", "200ms"];

#[test]
fn each_engine_is_published_and_the_busiest_unit_counts() {
    let expected = [
        ("dram", 1.0),
        ("graphics", 0.645),
        ("jpeg", 0.0),
        ("nvdec", 0.35),
        ("sm", 0.5),
        ("sm_occupancy", 0.25),
        ("tensor", 0.125),
    ];
    let scenario = format!("gpus: [{{gpm: {ALL}}}]");
    assert_eq!(activity(&page(&scenario, &FLAGS), "0"), known(&expected));
    assert_eq!(activity(&page(&scenario, &FLAGS[1..]), "0"), known(&[]), "only with --gpm");
}

#[test]
fn metric_that_cannot_be_true_is_absent() {
    for (metrics, implausible, telemetry) in [
        ("{1: 64.5, 2: nan}", 1.0, 0.0),
        ("{1: 64.5, 2: 1e300}", 1.0, 0.0),
        ("{1: 64.5, 2: 100.5}", 1.0, 0.0),
        ("{1: 64.5, 2: -1}", 1.0, 0.0),
        ("{1: 64.5, 2: timeout}", 0.0, 1.0),
        ("{1: 64.5, 2: no_permission}", 0.0, 0.0),
    ] {
        let page = page(&format!("gpus: [{{gpm: {metrics}}}]"), &FLAGS);
        assert_eq!(activity(&page, "0"), known(&[("graphics", 0.645)]), "{metrics}");
        let gaps = ["implausible", "telemetry"].map(|gap| page.value("bailiff_gaps_total", &[("gap", gap)]));
        assert_eq!(gaps, [Some(implausible), Some(telemetry)], "{metrics}");
    }
}

#[test]
fn unknown_activity_has_a_reason() {
    let faulty =
        |call: &str, code: &str| format!("gpus: [{{gpm: {ALL}, faults: {{errors: {{{call}: {code}}}}}}}]");
    for (scenario, interval, reason) in [
        ("gpus: [{}]".to_owned(), "200ms", "not_supported"),
        (format!("missing: [nvmlGpmQueryDeviceSupport]\ngpus: [{{gpm: {ALL}}}]"), "200ms", "not_supported"),
        (format!("missing: [nvmlGpmMetricsGet]\ngpus: [{{gpm: {ALL}}}]"), "200ms", "not_supported"),
        (faulty("nvmlGpmSampleGet", "no_permission"), "200ms", "not_supported"),
        (faulty("nvmlGpmSampleGet", "unknown"), "200ms", "failed"),
        (faulty("nvmlGpmQueryDeviceSupport", "timeout"), "200ms", "failed"),
        (format!("gpus: [{{gpm: {ALL}}}]"), "20ms", "interval"),
    ] {
        let page = page(&scenario, &["--gpm", "--interval", interval]);
        assert_eq!(activity(&page, "0"), unknown(reason), "{scenario} {interval}");
    }
}

#[test]
fn instances_have_their_own_activity_until_they_change() {
    let instance = |gi: u32, metrics: &str| {
        format!("{{gi: {gi}, profile: 1g.18gb, memory: {{total: 16GiB}}, gpm: {metrics}}}")
    };
    let with = |instances: &[String]| format!("gpus: [{{gpm: {{1: 30}}, mig: [{}]}}]", instances.join(", "));
    let scenario = Scenario::new(&with(&[instance(1, "{1: 0, 10: 0.0005}"), instance(2, "{1: 90}")]));
    let exporter = Exporter::start(&scenario, &FLAGS);
    let expected = [
        ("0", known(&[("graphics", 0.3)])),
        ("0:0", known(&[("dram", 0.000_005), ("graphics", 0.0)])),
        ("0:1", known(&[("graphics", 0.9)])),
    ];
    let all = |page: &Page| expected.iter().all(|(gpu, expected)| activity(page, gpu) == *expected);
    exporter.until("the activity of the instances", |page| all(page).then_some(()));
    scenario.set(&with(&[instance(1, "{1: 0, 10: 0.0005}"), instance(3, "{1: 90}")]));
    let changed = |page: &Page| {
        let same = ["0", "0:0"].iter().all(|gpu| activity(page, gpu) == unknown("instances_changed"));
        (same && activity(page, "0:1") == unknown("first_sample")).then_some(())
    };
    exporter.until("the change", changed);
    exporter.until("the activity of the new instances", |page| all(page).then_some(()));
}

#[test]
fn info_shows_the_activity() {
    let scenario = Scenario::new(&format!("gpus: [{{gpm: {ALL}}}]"));
    let stream = scenario.directory().join("stream.sock");
    let exporter =
        Exporter::start(&scenario, &[&FLAGS, ["--stream", stream.to_str().unwrap()].as_slice()].concat());
    exporter.until("the activity", |page| (!activity(page, "0").0.is_empty()).then_some(()));
    let info = |flags: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.arg("info").args(flags).env("BAILIFF_STREAM", &stream).env_remove("LEASE_REDIS_URL");
        let output = command.env("LEASE_DIR", scenario.directory().join("pool")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = info(&["--full"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("activity dram 100.0%, graphics 64.5%, jpeg 0.0%, nvdec 35.0%"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&info(&["--json"])).unwrap();
    assert_eq!(report["gpus"][0]["activity"]["tensor"], 0.125, "{report}");
}
