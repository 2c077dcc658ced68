//! Tests that other NVML clients (NVIDIA's Python binding and nvitop) report the same as the exporter for each
//! process, with the fake driver.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::collections::BTreeMap;
use std::process::Command;

use bailiff_snapshot::RecoveryAction;
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::procfs::Procfs;
use end_to_end::programs;
use serde_json::Value;

/// Returns the clients' reports as JSON. The script has already compared the clients with each other.
fn clients(scenario: &Scenario) -> Value {
    let libraries = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(programs::fake_nvml(), libraries.path().join("libnvidia-ml.so.1")).unwrap();
    let output = Command::new(programs::python())
        .arg(programs::root().join("tests/fakes/nvml/clients/agree.py"))
        .env("LD_LIBRARY_PATH", libraries.path())
        .env("FAKE_NVML_SCENARIO", scenario.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the bytes by pid from the driver's lists, or `None` if a list was refused.
fn listed(unit: &Value) -> Option<BTreeMap<String, Option<f64>>> {
    let mut holders = BTreeMap::new();
    for list in ["compute", "graphics", "mps"] {
        for process in unit[list].as_array()? {
            holders.insert(process["pid"].to_string(), process["used"].as_f64());
        }
    }
    Some(holders)
}

fn units(gpu: &Value) -> Vec<&Value> {
    let instances = gpu["mig"].as_array().map(Vec::as_slice).unwrap_or_default();
    // The processes on a GPU in MIG mode are listed in its instances.
    if instances.is_empty() { vec![gpu] } else { instances.iter().collect() }
}

fn compare_memory(page: &Page, unit: &Value) {
    let uuid = unit["uuid"].as_str().unwrap();
    for (family, key) in [
        ("bailiff_gpu_memory_total_bytes", "total"),
        ("bailiff_gpu_memory_used_bytes", "used"),
        ("bailiff_gpu_memory_free_bytes", "free"),
        ("bailiff_gpu_memory_reserved_bytes", "reserved"),
    ] {
        let exported = page.value(family, &[("gpu_uuid", uuid)]);
        assert_eq!(exported, unit["memory_v2"][key].as_f64(), "{uuid} {key}");
        if let Some(reported) = unit["nvitop"]["memory"][key].as_f64() {
            assert_eq!(exported, Some(reported), "nvitop: {uuid} {key}");
        }
    }
}

fn compare_processes(page: &Page, unit: &Value) -> usize {
    let uuid = unit["uuid"].as_str().unwrap();
    let Some(reported) = listed(unit) else { return 0 };
    let of_gpu = [("gpu_uuid", uuid)];
    let held = page.all("bailiff_process_gpu_memory_bytes", &of_gpu);
    let exported: BTreeMap<String, Option<f64>> =
        held.map(|(labels, bytes)| (labels["pid"].clone(), Some(bytes))).collect();
    let known: BTreeMap<String, Option<f64>> =
        reported.into_iter().filter(|(_, bytes)| bytes.is_some()).collect();
    assert_eq!(exported, known, "{uuid}");
    exported.len()
}

/// Compares health fields by number. Fields that are not written have the value 0 for other clients, so the value of a
/// field that this driver does not know is not compared.
fn compare_health(page: &Page, gpu: &Value) {
    let uuid = gpu["uuid"].as_str().unwrap();
    let fields = &gpu["fields"];
    let published = |family: &str, kind: &str| {
        let labels = [("gpu_uuid", uuid), ("kind", kind)];
        page.value(&format!("bailiff_gpu_{family}"), if kind.is_empty() { &labels[..1] } else { &labels })
    };
    for (field, family, kind) in [
        ("3", "ecc_errors_total", "corrected"),
        ("4", "ecc_errors_total", "uncorrected"),
        ("29", "retired_pages", "corrected"),
        ("30", "retired_pages", "uncorrected"),
        ("142", "remapped_rows", "corrected"),
        ("143", "remapped_rows", "uncorrected"),
        ("144", "row_remap_pending", ""),
        ("145", "row_remap_failed", ""),
    ] {
        assert_eq!(published(family, kind), fields[field].as_f64(), "{uuid} {family} {kind}");
    }
    let rows = ["142", "143", "144", "145"].map(|field| fields[field].clone());
    if gpu["rows"].is_array() {
        assert_eq!(gpu["rows"], Value::from(rows.to_vec()), "{uuid}");
    } else {
        assert!(rows.iter().all(Value::is_null), "{uuid}");
    }
    let action = page.label("bailiff_gpu_recovery_action", &[("gpu_uuid", uuid)], "action");
    let number = action.and_then(|action| RecoveryAction::NAMES.iter().position(|name| *name == action));
    let number = number.map(|number| u64::try_from(number).unwrap());
    assert!(number.is_none() || number == fields["230"].as_u64(), "{uuid} {fields}");
    let events: f64 = page.all("bailiff_gpu_clock_event", &[("gpu_uuid", uuid)]).map(|(_, one)| one).sum();
    let mask = gpu["throttle_reasons"].as_u64().unwrap();
    assert!(gpu["clock_events"].as_u64().is_none_or(|other| other == mask), "{uuid}");
    let mask = mask & 0x4ec;
    assert_eq!(events, f64::from(mask.count_ones().max(1)), "{uuid}");
    let joules = page.value("bailiff_gpu_energy_joules_total", &[("gpu_uuid", uuid)]);
    assert_eq!(joules, gpu["energy"].as_f64().map(|millijoules| millijoules / 1000.0), "{uuid}");
}

/// Compares the activity of five engines.
fn compare_activity(page: &Page, gpu: &Value) {
    let uuid = gpu["uuid"].as_str().unwrap();
    for (metric, engine) in
        [("1", "graphics"), ("2", "sm"), ("3", "sm_occupancy"), ("5", "tensor"), ("10", "dram")]
    {
        let exported = page.value("bailiff_gpu_activity_ratio", &[("gpu_uuid", uuid), ("engine", engine)]);
        assert_eq!(exported, gpu["gpm"][metric].as_f64().map(|percent| percent / 100.0), "{uuid} {engine}");
    }
}

/// Compares the peak memory of processes in the driver's accounting. The sums of their work are in no metric.
fn compare_accounting(page: &Page, gpu: &Value) {
    let uuid = gpu["uuid"].as_str().unwrap();
    for (pid, stats) in gpu["accounting"].as_object().into_iter().flatten() {
        let labels = [("gpu_uuid", uuid), ("pid", pid.as_str())];
        let exported = page.value("bailiff_process_gpu_memory_peak_bytes", &labels);
        assert_eq!(exported, stats[0].as_f64(), "{uuid} {pid}");
        assert_eq!((&stats[0], gpu["accounting_mode"].as_u64()), (&stats[3], Some(1)), "{uuid} {pid}");
        assert!(stats.to_string().starts_with("[12884901888,4100,1,12884901888,5500,1000,"), "{stats}");
    }
}

/// Compares the Xid errors that the driver's events report.
fn compare_xids(exporter: &Exporter, gpu: &Value) {
    let uuid = gpu["uuid"].as_str().unwrap();
    let mut expected: BTreeMap<String, f64> = BTreeMap::new();
    for xid in gpu["xids"].as_array().unwrap_or_else(|| panic!("{gpu:#}")) {
        *expected.entry(xid.to_string()).or_default() += 1.0;
    }
    exporter.until("the Xid errors", |page| {
        let of_gpu = [("gpu_uuid", uuid)];
        let found = page.all("bailiff_gpu_xid_errors_total", &of_gpu);
        let found: BTreeMap<String, f64> =
            found.map(|(labels, count)| (labels["xid"].clone(), count)).collect();
        (found == expected).then_some(())
    });
}

/// Checks that the attributes of a MIG instance are read, of which the exporter uses the engines.
fn check_attributes(instance: &Value) {
    let attributes = &instance["attributes"];
    for name in ["gpuInstanceSliceCount", "sharedDecoderCount", "sharedJpegCount", "sharedOfaCount"] {
        assert!(attributes[name].is_u64(), "{name}: {instance:#}");
    }
    assert!(attributes["gpuInstanceSliceCount"].as_u64() > Some(0), "{instance:#}");
}

/// Compares whether the driver reports a hard limit of a cgroup with whether the memory is unknown for it.
fn compare_memory_limit(page: &Page, gpu: &Value) {
    let reason = page.label(
        "bailiff_gpu_memory_unknown_info",
        &[("gpu_uuid", gpu["uuid"].as_str().unwrap())],
        "reason",
    );
    let expected = gpu["memory_limit"]["hard"].is_u64().then_some("own_cgroup_limited");
    assert_eq!(reason.as_deref(), expected, "{gpu:#}");
}

fn samples(gpu: &Value) -> &[Value] {
    gpu["samples"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn compare_utilization(page: &Page, gpu: &Value) -> usize {
    let uuid = gpu["uuid"].as_str().unwrap();
    let samples = samples(gpu);
    for sample in samples {
        let pid = sample["pid"].to_string();
        for engine in ["sm", "memory", "encoder", "decoder"] {
            let labels = [("gpu_uuid", uuid), ("pid", pid.as_str()), ("engine", engine)];
            let exported = page.value("bailiff_process_gpu_utilization_ratio", &labels);
            let exported = exported.map(|ratio| (ratio * 100.0).round());
            assert_eq!(exported, sample[engine].as_f64(), "{uuid} {pid} {engine}");
        }
    }
    samples.len()
}

/// Returns the page of a tick with a driver sample of every GPU. After a late tick, the next tick may follow within
/// the driver's sampling period, and its utilization is unknown.
fn sampled_page(exporter: &Exporter, reported: &Value) -> Page {
    exporter.next();
    exporter.until("the utilization of all sampled processes", |page| {
        let is_exported = |gpu: &Value, sample: &Value| {
            let (uuid, pid) = (gpu["uuid"].as_str().unwrap(), sample["pid"].to_string());
            let labels = [("gpu_uuid", uuid), ("pid", pid.as_str()), ("engine", "sm")];
            page.value("bailiff_process_gpu_utilization_ratio", &labels).is_some()
        };
        let gpus = reported["gpus"].as_array().unwrap();
        let all = gpus.iter().all(|gpu| samples(gpu).iter().all(|sample| is_exported(gpu, sample)));
        all.then(|| page.clone())
    })
}

fn agree(scenario_name: &str) -> (usize, usize) {
    agree_with(scenario_name, &[])
}

fn agree_with(scenario_name: &str, flags: &[&str]) -> (usize, usize) {
    let scenario = Scenario::named(scenario_name);
    let reported = clients(&scenario);
    assert_eq!(reported["disagreements"].as_array().map(Vec::len), Some(0));
    // A tick must span at least one sampling period of the fake driver.
    let exporter = Exporter::start(&scenario, &[&["--interval", "500ms", "--gpm"], flags].concat());
    let page = sampled_page(&exporter, &reported);
    let (mut processes, mut samples) = (0, 0);
    for gpu in reported["gpus"].as_array().unwrap().iter().filter(|gpu| gpu["uuid"].is_string()) {
        if !gpu["memory_v2"]["error"].is_null() {
            continue;
        }
        if gpu["memory_limit"]["hard"].is_null() {
            compare_memory(&page, gpu);
        }
        processes += units(gpu).into_iter().map(|unit| compare_processes(&page, unit)).sum::<usize>();
        samples += compare_utilization(&page, gpu);
        compare_memory_limit(&page, gpu);
        compare_health(&page, gpu);
        compare_activity(&page, gpu);
        gpu["mig"].as_array().into_iter().flatten().for_each(|instance| compare_activity(&page, instance));
        gpu["mig"].as_array().into_iter().flatten().for_each(check_attributes);
        compare_accounting(&page, gpu);
        compare_xids(&exporter, gpu);
    }
    (processes, samples)
}

#[test]
fn nvidia_header_has_the_layouts_that_the_sampler_uses() {
    let source = programs::root().join("tests/fixtures/nvml_abi.c");
    let header = programs::python_packages().join("nvidia/cu13/include");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I"]).arg(header).arg(source);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn idle_and_busy() {
    assert_eq!(agree("idle"), (4, 0));
    assert_eq!(agree("busy"), (5, 5));
}

#[test]
fn mig_and_mps() {
    assert_eq!(agree("mig").0, 4);
    assert_eq!(agree("mps").0, 5);
}

#[test]
fn lost_graphics_and_none() {
    assert_eq!(agree("lost").0, 2);
    assert_eq!(agree("graphics").0, 4);
    assert_eq!(agree("none"), (0, 0));
}

#[test]
fn releases() {
    let procfs = Procfs::new();
    procfs.write("self/cgroup", "0::/\n");
    procfs.write("cgroup/cgroup.controllers", "");
    let (proc, cgroups) = (procfs.path(), procfs.path().join("cgroup"));
    let flags = ["--procfs", proc.to_str().unwrap(), "--cgroupfs", cgroups.to_str().unwrap()];
    for release in ["r535", "r580", "r615"] {
        assert_eq!(agree_with(release, &flags), (2, 0), "{release}");
    }
}

#[test]
fn eight_gpus_with_100_processes() {
    assert_eq!(agree("8x100"), (800, 200));
}

#[test]
fn nvml_library_variable_applies_to_every_program() {
    let scenario = Scenario::named("idle");
    let directory = tempfile::tempdir().unwrap();
    let cuda_info = directory.path().join("cuda_info.sh");
    let idle_timeout = directory.path().join("gpu_idle_timeout.py");
    let gpu = directory.path().join("GPU.py");
    for link in [&cuda_info, &idle_timeout, &gpu] {
        std::os::unix::fs::symlink(programs::bailiff(), link).unwrap();
    }
    let bailiff = programs::bailiff();
    let pool = directory.path().join("pool");
    let pool = ["--pool-dir", pool.to_str().unwrap()];
    let run = |program: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("FAKE_NVML_SCENARIO", scenario.path()).env_remove("LEASE_REDIS_URL");
        command.env("BAILIFF_NVML_LIBRARY", programs::fake_nvml());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let init = [&["lease", "init"][..], &pool].concat();
    let leased = [&["lease", "run", "--index"][..], &pool, &["--", "true"]].concat();
    for (program, args, expected) in [
        (programs::exporter(), &["--once", "--interval=200ms"][..], "bailiff_source_up{source=\"nvml\"} 1"),
        (bailiff.clone(), &["info", "--alone", "--interval=200ms"], "NVIDIA"),
        (cuda_info, &[], "NVIDIA"),
        (bailiff.clone(), &["run", "--min-free", "1MiB", "--", "echo", "begun"], "begun"),
        (bailiff.clone(), &["idle-timeout", "echo", "begun"], "begun"),
        (idle_timeout, &["echo", "begun"], "begun"),
        (gpu, &["--gpu-count"], "2"),
        (bailiff.clone(), &init, ""),
        (bailiff.clone(), &leased, ""),
    ] {
        let (success, text, err) = run(&program, args);
        assert!(success && text.contains(expected), "{} {args:?}: {text}{err}", program.display());
    }
    let (_, text, err) = run(&bailiff, &["doctor", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["checks"][0]["state"], "ok", "{text}{err}");
    let (_, text, _) = run(&bailiff, &["info", "--alone", "--nvml-library", "/nowhere.so"]);
    assert!(!text.contains("NVIDIA"), "a flag takes precedence: {text}");
}
