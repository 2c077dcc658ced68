//! The hooks of `bailiff slurm` without a cluster, with the fake driver.

#![expect(clippy::disallowed_methods, reason = "reads files of hooks, and starts a hook")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::home::Home;
use end_to_end::hung::{HungExecution, Parent};
use end_to_end::orphan::Orphan;
use end_to_end::programs;
use end_to_end::slurm::{IDLE, hook};
use serde_json::{Value, json};

/// Variables of a job of user nobody with these GPUs.
fn job<'a>(id: &'a str, gpus: &'a str) -> [(&'a str, &'a str); 4] {
    [("SLURM_JOB_ID", id), ("SLURM_JOB_UID", "65534"), ("SLURM_JOB_GPUS", gpus), ("SLURMD_NODENAME", "n0")]
}

const MAP: [&str; 2] = ["--gpus", "/dev/nvidia[1,0]"];

fn prolog(
    state: &std::path::Path,
    scenario: &Scenario,
    more: &[&str],
    variables: &[(&str, &str)],
) -> (i32, Value) {
    hook(state, scenario, &[&["prolog", "--config", "/nonexistent"], &MAP[..], more].concat(), variables)
}

#[test]
fn invalid_input_never_counts_as_clean() {
    let scenario = Scenario::new(IDLE);
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    let verdict = |id: &str, gpus: &str| {
        let (code, report) = prolog(&state, &scenario, &["--wait", "0s"], &job(id, gpus));
        (code, report["verdict"].as_str().unwrap_or_default().to_owned())
    };
    for (id, gpus, code, expected) in [
        ("1", "0", 0, "clean"),
        ("s5K1KKYAYG5D00", "0-1", 0, "clean"),
        ("1", "", 0, "no_gpus"),
        ("1", "2", 0, "unknown"),
        ("1", "0,x", 0, "unknown"),
        ("7_", "0", 64, ""),
        ("-1", "0", 64, ""),
        ("../1", "0", 64, ""),
    ] {
        assert_eq!(verdict(id, gpus), (code, expected.to_owned()), "{id} {gpus}");
    }
    let on_unknown = prolog(&state, &scenario, &["--wait", "0s", "--on-unknown", "fail"], &job("1", "2"));
    assert_eq!(on_unknown.0, 2);
}

#[test]
fn invalid_settings_drain_no_node() {
    let scenario = Scenario::new(IDLE);
    let home = tempfile::tempdir().unwrap();
    let (config, state) = (home.path().join("slurm.yaml"), home.path().join("state"));
    fs::write(&config, "version: 1\nprolog: {wiat: 1s}\n").unwrap();
    let (code, report) =
        hook(&state, &scenario, &["prolog", "--config", config.to_str().unwrap()], &job("1", "0"));
    assert_eq!((code, &report["verdict"]), (0, &json!("invalid_config")));
    assert!(report["unknown"][0].as_str().is_some_and(|why| why.contains("wiat")), "{report}");
    assert_eq!(fs::read(state.join("runs/prolog.invalid_config")).unwrap(), b".");
}

#[test]
fn gpus_are_those_of_the_map_not_the_drivers_indexes() {
    let holder = Holder::sleeping();
    let scenario =
        Scenario::new(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid()));
    let home = tempfile::tempdir().unwrap();
    let verdict =
        |gpus: &str| prolog(home.path(), &scenario, &["--wait", "0s"], &job("1", gpus)).1["verdict"].clone();
    assert_eq!((verdict("0"), verdict("1")), (json!("clean"), json!("not_clean")));
}

#[test]
fn hung_driver_is_unknown_within_the_time_limit() {
    for (scenario, gpus) in [
        ("faults: {hang: true}\ngpus: [{count: 2}]", "0,1"),
        ("gpus: [{}, {faults: {hang: [nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2]}}]", "0"),
    ] {
        let (scenario, home) = (Scenario::new(scenario), tempfile::tempdir().unwrap());
        let began = Instant::now();
        let limits = ["--wait", "1s", "--on-unknown", "fail"];
        let (code, report) = prolog(home.path(), &scenario, &limits, &job("1", gpus));
        assert_eq!((code, &report["verdict"]), (2, &json!("unknown")), "{report}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn hook_does_not_wait_for_what_the_driver_never_reports() {
    for (scenario, why) in [
        ("missing: [nvmlDeviceGetMemoryInfo_v2]\ngpus: [{}, {}]", "does not report its memory in use"),
        ("gpus: [{}, {mig: [{gi: 1, profile: 1g.18gb, memory: {total: 16GiB}}]}]", "MIG is enabled"),
    ] {
        let (scenario, home) = (Scenario::new(scenario), tempfile::tempdir().unwrap());
        let began = Instant::now();
        let (code, report) = prolog(home.path(), &scenario, &["--wait", "10m"], &job("1", "0"));
        assert_eq!((code, &report["verdict"]), (0, &json!("unknown")), "{report}");
        assert!(report["unknown"][0].as_str().is_some_and(|text| text.contains(why)), "{report}");
        assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    }
}

#[test]
fn hook_does_not_wait_for_a_process_that_hangs_in_execve() {
    let (scenario, home) = (Scenario::new(IDLE), Home::new());
    let hung = HungExecution::start(&home, 4002, (Parent::Hangs, 1));
    let began = Instant::now();
    let (code, report) = prolog(&home.state(), &scenario, &["--wait", "10m"], &job("1", "0"));
    assert_eq!((code, &report["verdict"]), (0, &json!("unknown")), "{report}");
    let why = report["unknown"][0].as_str().unwrap();
    assert!(hung.pids().iter().all(|pid| why.contains(&pid.to_string())), "{report}");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
}

/// Open files are read without the driver.
#[test]
fn hung_driver_hides_no_open_device_file() {
    // No other test has this GPU.
    let holder = Orphan::with_device(77);
    let (scenario, home) =
        (Scenario::new("faults: {hang: true}\ngpus: [{count: 2}]"), tempfile::tempdir().unwrap());
    let arguments = ["prolog", "--config", "/nonexistent", "--gpus", "/dev/nvidia77", "--wait", "1s"];
    let (code, report) = hook(home.path(), &scenario, &arguments, &job("1", "0"));
    assert_eq!((code, &report["verdict"]), (1, &json!("not_clean")), "{report}");
    let pids = report["findings"].as_array().unwrap().iter().map(|finding| &finding["process"]["pid"]);
    assert!(pids.collect::<Vec<_>>().contains(&&json!(holder.pid())), "{report}");
    assert!(
        report["unknown"][0].as_str().is_some_and(|why| why.contains("the driver cannot be read")),
        "{report}"
    );
}

#[test]
fn on_a_shared_gpu_only_processes_of_the_own_job_count() {
    let holder = Holder::sleeping();
    let scenario =
        Scenario::new(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid()));
    let home = tempfile::tempdir().unwrap();
    let verdict =
        |id: &str| prolog(home.path(), &scenario, &["--wait", "0s"], &job(id, "1")).1["verdict"].clone();
    assert_eq!(verdict("2"), json!("not_clean"));
    scenario.set(IDLE);
    assert_eq!(verdict("1"), json!("clean"), "the first job's prolog leaves a record");
    scenario.set(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid()));
    assert_eq!(verdict("2"), json!("clean"), "the process may be the first job's");
    let record = home.path().join("jobs/1.json");
    for invalid in ["{", "{\"job\": \"1\"}", "[]"] {
        fs::write(&record, invalid).unwrap();
        fs::remove_file(home.path().join("jobs/2.json")).ok();
        assert_eq!(verdict("2"), json!("not_clean"), "{invalid}");
    }
}

#[test]
fn record_of_a_job_that_no_longer_runs_hides_nothing() {
    // The clusters of other tests have steps of jobs with small ids.
    const ENDED: &str = "4000001";
    let holder = Holder::sleeping();
    let scenario = Scenario::new(IDLE);
    let home = tempfile::tempdir().unwrap();
    let verdict =
        |id: &str| prolog(home.path(), &scenario, &["--wait", "0s"], &job(id, "1")).1["verdict"].clone();
    assert_eq!(verdict(ENDED), json!("clean"));
    let path = home.path().join(format!("jobs/{ENDED}.json"));
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["boot_ms"] = json!(1);
    fs::write(&path, record.to_string()).unwrap();
    scenario.set(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid()));
    assert_eq!(
        verdict("4000002"),
        json!("not_clean"),
        "the job has no slurmstepd, and its prolog is long ago"
    );
}

#[test]
fn monitors_of_the_site_do_not_count_if_the_system_runs_them() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let config = home.path().join("slurm.yaml");
    fs::write(&config, "version: 1\nmonitors: [our-gpu-monitor-daemon]\n").unwrap();
    let (state, scenario) = (home.path().join("state"), Scenario::new(IDLE));
    for (uid, config, expected) in [
        (0, config.to_str().unwrap(), "clean"),
        (0, "/nonexistent", "not_clean"),
        (4002, config.to_str().unwrap(), "not_clean"),
    ] {
        let monitor = Holder::named(home.path(), "our-gpu-monitor-daemon", uid);
        scenario.set(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", monitor.pid()));
        let arguments = [&["prolog", "--config", config, "--wait", "0s"], &MAP[..]].concat();
        let report = hook(&state, &scenario, &arguments, &job("1", "1")).1;
        assert_eq!(report["verdict"], json!(expected), "uid {uid}, {config}: {report}");
    }
}

#[test]
fn run_by_hand_leaves_the_record_of_the_job() {
    let (scenario, home) = (Scenario::new(IDLE), tempfile::tempdir().unwrap());
    assert_eq!(prolog(home.path(), &scenario, &["--wait", "0s"], &job("1", "1")).0, 0);
    let record = home.path().join("jobs/1.json");
    for (command, variables) in [("epilog", &job("1", "1")[..3]), ("prolog", &job("2", "1")[..3])] {
        let arguments = [&[command, "--config", "/nonexistent", "--wait", "0s"], &MAP[..]].concat();
        assert_eq!(hook(home.path(), &scenario, &arguments, variables).0, 0);
        assert!(record.exists(), "{command}");
    }
    assert!(!home.path().join("jobs/2.json").exists());
}

#[test]
fn tolerated_gpu_gets_a_record_and_invalid_settings_one_without_gpus() {
    let holder = Holder::sleeping();
    let busy = format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid());
    let (scenario, home) = (Scenario::new(&busy), tempfile::tempdir().unwrap());
    let config = home.path().join("slurm.yaml");
    for (id, text, verdict, gpus) in [
        ("1", "version: 1\nprolog: {on_not_clean: pass, wait: 0s}\n", "not_clean", json!([1])),
        ("2", "version: 2\n", "invalid_config", Value::Null),
    ] {
        fs::write(&config, text).unwrap();
        let arguments = [&["prolog", "--config", config.to_str().unwrap()], &MAP[..]].concat();
        let (code, report) = hook(home.path(), &scenario, &arguments, &job(id, "1"));
        assert_eq!((code, &report["verdict"]), (0, &json!(verdict)), "{report}");
        let record = fs::read(home.path().join(format!("jobs/{id}.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let positions =
            record["gpus"].as_array().map(|gpus| gpus.iter().map(|gpu| gpu["position"].clone()).collect());
        assert_eq!(positions.map_or(Value::Null, Value::Array), gpus, "{record}");
    }
}

#[test]
fn epilog_with_invalid_settings_deletes_the_record() {
    let scenario = Scenario::new(IDLE);
    let home = tempfile::tempdir().unwrap();
    assert_eq!(prolog(home.path(), &scenario, &["--wait", "0s"], &job("1", "1")).0, 0);
    assert!(home.path().join("jobs/1.json").exists());
    let config = home.path().join("slurm.yaml");
    fs::write(&config, "version: 3\n").unwrap();
    let epilog = ["epilog", "--config", config.to_str().unwrap()];
    let (code, report) = hook(home.path(), &scenario, &epilog, &job("1", "1"));
    assert_eq!((code, &report["verdict"]), (0, &json!("invalid_config")));
    assert!(!home.path().join("jobs/1.json").exists());
}

#[test]
fn gpu_that_was_not_clean_and_then_hangs_is_not_clean() {
    let holder = Holder::sleeping();
    let scenario =
        Scenario::new(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid()));
    let home = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(programs::bailiff());
    command.args(["slurm", "prolog", "--config", "/nonexistent", "--wait", "5s"]).args(MAP);
    command.arg("--nvml-library").arg(programs::fake_nvml()).arg("--state-dir").arg(home.path());
    command.env("FAKE_NVML_SCENARIO", scenario.path()).envs(job("1", "1"));
    let mut hook = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(hook.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("gpu 1: 1.0 GiB held by pid"), "{first}");
    scenario.set("faults: {hang: true}\ngpus: [{}, {}]");
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(hook.wait().unwrap().code(), Some(1), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("not clean: gpu 1")), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("unknown: the driver cannot be read")), "{rest:?}");
}

#[test]
fn memory_without_a_visible_process_is_not_clean() {
    let home = tempfile::tempdir().unwrap();
    let verdict = |memory: &str| {
        let scenario = Scenario::new(&format!("gpus: [{{memory: {{unaccounted: {memory}}}}}, {{}}]"));
        prolog(home.path(), &scenario, &["--wait", "0s"], &job("1", "1")).1
    };
    let report = verdict("300MiB");
    assert_eq!(
        (&report["verdict"], &report["findings"][0]["bytes"]),
        (&json!("not_clean"), &json!(300 << 20)),
        "{report}"
    );
    assert_eq!(verdict("64MiB")["verdict"], json!("clean"), "within the tolerance");
}
