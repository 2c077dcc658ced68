//! `bailiff slurm` with a real Slurm cluster, real jobs and the fake driver.

#![expect(clippy::disallowed_methods, reason = "reads files of hooks, and starts a process of another user")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::programs;
use end_to_end::slurm::{Cluster, IDLE, Tracking, USER, hook};
use end_to_end::tenant::NOBODY_UID;
use end_to_end::wait::until;
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};

/// Short limits of both hooks.
const SHORT: &str = "prolog: {wait: 1s}\nepilog: {wait: 2s, grace: 1s}\n";

/// Returns whether a process runs. A zombie does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let exists =
        i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| test_kill_process(pid).is_ok());
    exists && !stat.contains(") Z ")
}

#[test]
fn hooks_of_a_clean_job_record_its_gpus_until_it_ends() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let job = cluster.submit("sleep 1000");
    let record = until("the prolog's record", || cluster.record(&job));
    assert_eq!(
        (&record["job"], &record["uid"], &record["node"]),
        (&json!(job), &json!(NOBODY_UID), &json!(cluster.node()))
    );
    assert_eq!((&record["gpus"][0]["position"], &record["gpus"][0]["minor"]), (&json!(0), &json!(0)));
    assert!(record["gpus"][0]["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")), "{record}");
    assert_eq!(cluster.runs("prolog", "clean"), 1);
    cluster.must("scancel", &[&job]);
    until("the record's removal", || cluster.record(&job).is_none().then_some(()));
    until("the epilog's count", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    cluster.until_node("idle");
}

#[test]
fn exporter_shows_the_gpus_of_jobs_and_whether_they_are_used() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let directory = cluster.state();
    let exporter = Exporter::start(&cluster.scenario, &["--slurm.dir", directory.to_str().unwrap()]);
    let id = cluster.submit("echo $$; exec sleep 1000");
    let state = |state: &str| {
        let labels = [("slurm_job", id.as_str()), ("user", USER), ("gpu", "0"), ("state", state)];
        exporter.until(state, |page| page.value("bailiff_slurm_gpu_allocation_info", &labels));
        exporter.page().value("bailiff_slurm_gpu_unused_seconds", &labels[..1])
    };
    assert!(state("never_used").is_some());
    let pid = cluster.pid_of(&id);
    cluster.scenario.set(&format!("gpus: [{{processes: [{{pid: {pid}, used: 1GiB, sm: 60}}]}}, {{}}]"));
    state("in_use");
    cluster.free();
    assert!(state("idle").is_some());
    let runs = [("hook", "prolog"), ("result", "clean")];
    assert_eq!(exporter.page().value("bailiff_slurm_hook_runs_total", &runs), Some(1.0));
    cluster.must("scancel", &[&id]);
    exporter.until("no allocation", |page| {
        page.value("bailiff_slurm_gpu_allocation_info", &[]).is_none().then_some(())
    });
}

#[test]
fn hooks_run_for_an_allocation_without_steps() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let job = cluster.allocate();
    until("a record", || cluster.record(&job));
    assert_eq!(cluster.runs("prolog", "clean"), 1);
    cluster.must("scancel", &[&job]);
    until("the epilog's count", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    assert!(cluster.record(&job).is_none());
}

#[test]
fn job_without_gpus_passes() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    cluster.must("runuser", &["-u", USER, "--", "srun", "--chdir=/", "true"]);
    until("the epilog's count", || (cluster.runs("epilog", "no_gpus") == 1).then_some(()));
    assert_eq!(cluster.runs("prolog", "no_gpus"), 1);
    cluster.must(
        "runuser",
        &["-u", USER, "--", "sbatch", "--chdir=/", "--output=/dev/null", "--wrap", "sleep 1000"],
    );
    until("the prolog's count", || (cluster.runs("prolog", "no_gpus") == 2).then_some(()));
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    assert_eq!(cluster.run("health", &[], &[]).status.code(), Some(1), "the job without GPUs hides nothing");
}

#[test]
fn leftover_of_a_job_is_ended_before_the_next_job_starts() {
    let cluster = Cluster::start(Tracking::Parents, "epilog: {wait: 50s, grace: 1s}\n", "");
    // With linuxproc, Slurm ends the job's process tree; a process of another session and parent stays.
    let job = cluster
        .submit("setsid --fork sh -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done'; exec sleep 1000");
    let pid = cluster.pid_of(&job);
    cluster.hold(pid);
    cluster.must("scancel", &[&job]);
    let next = cluster.submit("sleep 1000");
    until("the end of the leftover", || (!runs(pid)).then_some(()));
    assert!(cluster.record(&next).is_none(), "the next job does not start on a GPU that is in use");
    cluster.free();
    until("the epilog's count", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    cluster.until_state(&next, "RUNNING");
}

#[test]
fn process_that_is_not_provably_the_jobs_is_named_and_drains_the_node() {
    let cluster = Cluster::start(
        Tracking::Parents,
        "prolog: {wait: 1s}\nepilog: {wait: 1s, grace: 1s}\nhealth: {resume: true}\n",
        "",
    );
    let job = cluster.submit("env -i setsid --fork sh -c 'echo $$; exec sleep 1000'; exec sleep 1000");
    let pid = cluster.pid_of(&job);
    cluster.hold(pid);
    cluster.must("scancel", &[&job]);
    cluster.until_node("Epilog error");
    assert!(runs(pid), "its environment does not name the job");
    let log = cluster.log();
    assert!(log.contains(&format!("did not end pid {pid}: its environment does not name the job")), "{log}");
    let health = || cluster.run("health", &[], &[]);
    assert_eq!(health().status.code(), Some(1));
    let node = cluster.node_state();
    assert!(node.contains(&format!("bailiff: gpu 0: 1.0 GiB held by pid {pid} (")), "{node}");

    cluster.free();
    rustix::process::kill_process(
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    for _ in 0..2 {
        assert_eq!(health().status.code(), Some(0));
        assert!(cluster.node_state().starts_with("drained|bailiff: "), "{}", cluster.node_state());
    }
    health();
    cluster.until_node("|none");
}

#[test]
fn forged_environment_of_another_user_ends_nothing() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    let job = cluster.submit("sleep 1000");
    until("the prolog's record", || cluster.record(&job));
    let mut other = std::process::Command::new("sleep");
    std::os::unix::process::CommandExt::uid(&mut other, 4002);
    let mut other = other.arg("1000").env("SLURM_JOB_ID", &job).spawn().unwrap();
    cluster.hold(other.id());
    cluster.must("scancel", &[&job]);
    cluster.until_node("Epilog error");
    assert!(other.try_wait().unwrap().is_none(), "a process of another user is not signalled");
    assert!(cluster.log().contains("it belongs to another user than the job"), "{}", cluster.log());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn prolog_of_a_gpu_in_use_drains_the_node_and_names_the_holder() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    let job = cluster.submit("sleep 1000");
    cluster.until_node("Prolog error");
    assert!(cluster.record(&job).is_none(), "a failed prolog leaves no record");
    let expected = format!("not clean: gpu 0: 1.0 GiB held by pid {} (uid 0, sleep)", holder.pid());
    assert!(cluster.log().contains(&expected) || cluster.log().contains("root, sleep"), "{}", cluster.log());
}

#[test]
fn reason_of_an_administrator_is_kept() {
    let cluster = Cluster::start(Tracking::Parents, "", "");
    let node = format!("nodename={}", cluster.node());
    cluster.must("scontrol", &["update", &node, "state=drain", "reason=broken fan"]);
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    let output = cluster.run("health", &["--json"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["action"], json!(format!("{} keeps its reason: broken fan", cluster.node())));
    assert_eq!(cluster.node_state(), "drained|broken fan");
}

#[test]
fn health_ignores_processes_of_running_jobs_and_runs_once() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    let job = cluster.submit("echo $$; exec sleep 1000");
    cluster.hold(cluster.pid_of(&job));
    assert_eq!(cluster.run("health", &[], &[]).status.code(), Some(0));
    assert_eq!(cluster.runs("health", "clean"), 1);
    let lock = fs::File::create(cluster.state().join("health.lock")).unwrap();
    lock.lock().unwrap();
    let output = cluster.run("health", &[], &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("another run is in progress"), "{output:?}");
    assert_eq!(cluster.node_state(), "mixed|none");
}

#[test]
fn check_shows_the_gpu_map_and_problems_of_slurm_conf() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "PrologEpilogTimeout=5\n");
    let output = cluster.run("check", &[], &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("0: /dev/nvidia0 (GPU-"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Slurm's time limit of 5 s is shorter"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

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
    let holder = Holder::sleeping();
    let scenario = Scenario::new(IDLE);
    let home = tempfile::tempdir().unwrap();
    let verdict =
        |id: &str| prolog(home.path(), &scenario, &["--wait", "0s"], &job(id, "1")).1["verdict"].clone();
    assert_eq!(verdict("1"), json!("clean"));
    let path = home.path().join("jobs/1.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["boot_ms"] = json!(1);
    fs::write(&path, record.to_string()).unwrap();
    scenario.set(&format!("gpus: [{{processes: [{{pid: {}, used: 1GiB}}]}}, {{}}]", holder.pid()));
    assert_eq!(verdict("2"), json!("not_clean"), "job 1 has no slurmstepd, and its prolog is long ago");
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
