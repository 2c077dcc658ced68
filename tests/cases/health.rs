//! Tests the health of GPUs: what the driver reports is published, and what it does not report or cannot be true is
//! absent.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::process::Command;

use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::programs;

fn page(scenario: &str) -> Page {
    let scenario = Scenario::new(scenario);
    let output = exporter::command(&scenario).args(["--once", "--interval", "20ms"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Page::read(&String::from_utf8(output.stdout).unwrap())
}

fn gpu(keys: &str) -> Page {
    page(&format!("gpus: [{{{keys}}}]\n"))
}

fn gaps(page: &Page) -> [f64; 2] {
    ["telemetry", "implausible"].map(|gap| page.value("bailiff_gaps_total", &[("gap", gap)]).unwrap())
}

/// Returns the values of a family's label on GPU 0, with their numbers.
fn labels(page: &Page, family: &str, label: &str) -> Vec<(String, f64)> {
    let found = page.all(family, &[("gpu", "0")]);
    found.map(|(labels, number)| (labels[label].clone(), number)).collect()
}

fn action(page: &Page) -> Vec<(String, f64)> {
    labels(page, "bailiff_gpu_recovery_action", "action")
}

#[test]
fn each_recovery_action_has_its_name() {
    let names = ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain"];
    for (number, name) in names.into_iter().chain(["bus_reset", "system_reboot", "other"]).enumerate() {
        let page = gpu(&format!("recovery_action: {number}"));
        assert_eq!(action(&page), [(name.to_owned(), 1.0)], "{number}");
    }
}

#[test]
fn action_that_was_not_reported_is_absent() {
    for (field, expected) in [
        ("recovery_action: null", [0.0, 0.0]),
        ("fields: {230: {unknown: null}}", [0.0, 0.0]),
        ("fields: {230: {error: not_supported}}", [0.0, 0.0]),
        ("fields: {230: {error: invalid_argument}}", [0.0, 0.0]),
        ("fields: {230: {error: argument_version_mismatch}}", [0.0, 0.0]),
        ("fields: {230: {error: timeout}}", [2.0, 0.0]),
        // A double, NaN, a type that does not exist, a negative number, and NVML's "not available".
        ("fields: {230: {value: [0, 4607182418800017408]}}", [2.0, 0.0]),
        ("fields: {230: {value: [0, 9221120237041090560]}}", [2.0, 0.0]),
        ("fields: {230: {value: [9, 1]}}", [2.0, 0.0]),
        ("fields: {230: {value: [4, 18446744073709551614]}}", [2.0, 0.0]),
        ("fields: {230: {value: [1, 4294967295]}}", [0.0, 2.0]),
        ("fields: {230: {value: [3, 18446744073709551615]}}", [0.0, 0.0]),
        ("faults: {errors: {nvmlDeviceGetFieldValues: function_not_found}}", [0.0, 0.0]),
    ] {
        let page = gpu(field);
        assert_eq!((action(&page), gaps(&page)), (vec![], expected), "{field}");
        assert_eq!(labels(&page, "bailiff_gpu_clock_event", "reason"), [("none".to_owned(), 1.0)], "{field}");
    }
}

#[test]
fn fields_of_other_integer_types_are_read() {
    for value in ["[1, 1]", "[2, 1]", "[3, 1]", "[4, 1]", "[5, 1]", "[6, 1]", "[1, 4294967297]"] {
        let page = gpu(&format!("fields: {{230: {{value: {value}}}}}"));
        assert_eq!(action(&page), [("gpu_reset".to_owned(), 1.0)], "{value}");
    }
}

#[test]
fn errors_are_published_by_kind() {
    let kinds = |corrected, uncorrected| {
        vec![("corrected".to_owned(), corrected), ("uncorrected".to_owned(), uncorrected)]
    };
    let page = gpu(
        "ecc: {corrected: 7, uncorrected: 2}, remapped_rows: {corrected: 1, uncorrected: 8, pending: true}",
    );
    assert_eq!(labels(&page, "bailiff_gpu_ecc_errors_total", "kind"), kinds(7.0, 2.0));
    assert_eq!(labels(&page, "bailiff_gpu_remapped_rows", "kind"), kinds(1.0, 8.0));
    assert_eq!(labels(&page, "bailiff_gpu_retired_pages", "kind"), []);
    let state = |page: &Page| {
        ["pending", "failed"]
            .map(|state| page.value(&format!("bailiff_gpu_row_remap_{state}"), &[("gpu", "0")]))
    };
    assert_eq!(state(&page), [Some(1.0), Some(0.0)]);
    let volta =
        "compute_capability: [7, 0], remapped_rows: null, retired_pages: {corrected: 3, uncorrected: 1}";
    let page = gpu(&format!("{volta}, fields: {{3: {{error: not_supported}}, 4: {{error: not_supported}}}}"));
    assert_eq!(labels(&page, "bailiff_gpu_retired_pages", "kind"), kinds(3.0, 1.0));
    assert_eq!(labels(&page, "bailiff_gpu_ecc_errors_total", "kind"), []);
    assert_eq!((labels(&page, "bailiff_gpu_remapped_rows", "kind"), state(&page)), (vec![], [None, None]));
    let page = gpu("fields: {144: {value: [1, 2]}, 4: {value: [3, 4294967295]}}");
    assert_eq!(state(&page), [None, Some(0.0)]);
    assert_eq!(labels(&page, "bailiff_gpu_ecc_errors_total", "kind"), [("corrected".to_owned(), 0.0)]);
}

#[test]
fn clock_events_are_named() {
    for (mask, expected) in [
        ("0x0", &["none"][..]),
        ("0x103", &["none"]),
        ("0x10", &["other"]),
        ("0xa01", &["other"]),
        ("0x4", &["sw_power_cap"]),
        ("0x68", &["hw_slowdown", "hw_thermal", "sw_thermal"]),
        ("0x480", &["power_brake", "reliability"]),
        ("0xffffffffffffffff", &[]),
        ("0x1ffffffff", &[]),
    ] {
        for missing in ["[]", "[nvmlDeviceGetCurrentClocksEventReasons]"] {
            let page = page(&format!("missing: {missing}\ngpus: [{{throttle_reasons: {mask}}}]\n"));
            let found = labels(&page, "bailiff_gpu_clock_event", "reason");
            let expected: Vec<_> = expected.iter().map(|reason| ((*reason).to_owned(), 1.0)).collect();
            assert_eq!(found, expected, "{mask} {missing}");
        }
    }
    let missing = "[nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons]";
    let page = page(&format!("missing: {missing}\ngpus: [{{throttle_reasons: 4}}]\n"));
    assert_eq!((labels(&page, "bailiff_gpu_clock_event", "reason"), gaps(&page)), (vec![], [0.0, 0.0]));
}

#[test]
fn mig_instances_have_no_health() {
    let page =
        page("gpus: [{mig: [{gi: 1, profile: 1g.18gb, memory: {total: 16GiB}}], recovery_action: 1}]\n");
    assert_eq!(action(&page), [("gpu_reset".to_owned(), 1.0)]);
    assert_eq!(
        labels(&page, "bailiff_gpu_remapped_rows", "kind"),
        [],
        "the driver does not report them with MIG"
    );
    for family in ["bailiff_gpu_recovery_action", "bailiff_gpu_ecc_errors_total", "bailiff_gpu_clock_event"] {
        assert_eq!(page.all(family, &[("gpu", "0:0")]).count(), 0, "{family}");
    }
}

#[test]
fn defective_memory_is_read_rarely_but_again_after_a_failure() {
    let rows = |page: &Page| page.value("bailiff_gpu_remapped_rows", &[("kind", "corrected")]);
    let (fails, works) =
        ("gpus: [{fields: {142: {error: timeout}}}]\n", "gpus: [{remapped_rows: {corrected: 5}}]\n");
    let scenario = Scenario::new(fails);
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.next();
    assert!(rows(&page).is_none() && gaps(&page)[0] > 0.0);
    scenario.set(works);
    assert_eq!(rows(&exporter.next()), Some(5.0), "not read again at once");
    scenario.set(fails);
    let before = gaps(&exporter.next());
    let page = exporter.next();
    assert_eq!((rows(&page), gaps(&page)), (Some(5.0), before), "read again within a minute");
    scenario.set("gpus: [{faults: {lost: true}}]\n");
    exporter.until("the GPU is lost", |page| (page.value("bailiff_gpu_up", &[])? == 0.0).then_some(()));
    assert_eq!(rows(&exporter.next()), None);
    scenario.set("gpus: [{remapped_rows: {corrected: 6}}]\n");
    let rows = exporter.until("the GPU is back", rows);
    assert_eq!(rows, 6.0, "not read again after the loss");
}

#[test]
fn xid_errors_have_a_class() {
    let scenario = Scenario::new("gpus: [{xid: [31, 79, 45, 4000]}]\n");
    let exporter = Exporter::start(&scenario, &[]);
    let classes = exporter.until("all errors", |page| {
        let found: Vec<_> = page.all("bailiff_gpu_xid_info", &[]).map(|(labels, _)| labels.clone()).collect();
        (found.len() == 4).then_some(found)
    });
    for (xid, class) in [("31", "application"), ("79", "reboot"), ("45", "cleanup"), ("4000", "unclear")] {
        assert!(
            classes.iter().any(|labels| labels["xid"] == xid && labels["class"] == class),
            "{xid}: {classes:?}"
        );
    }
}

#[test]
fn info_shows_the_recovery_action_in_words() {
    let scenario = Scenario::new("gpus: [{recovery_action: 1}, {}, {recovery_action: 90}]\n");
    for (flags, count) in [(&["--full"][..], 2), (&[], 2)] {
        let mut command = Command::new(programs::bailiff());
        command.args(["info", "--alone", "--interval", "100ms"]).args(flags);
        command.env("BAILIFF_NVML_LIBRARY", programs::fake_nvml()).env("FAKE_NVML_SCENARIO", scenario.path());
        let text = String::from_utf8(command.env("COLUMNS", "200").output().unwrap().stdout).unwrap();
        assert_eq!(text.matches("the GPU needs").count(), count, "{text}");
        assert!(text.contains("nvidia-smi --gpu-reset -i 0") && text.contains("does not know"), "{text}");
    }
}
