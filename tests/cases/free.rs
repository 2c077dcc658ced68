//! Tests `bailiff free`: which GPUs are free, and that an unknown GPU never is.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::process::{Command, Output, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use end_to_end::fake::Scenario;
use end_to_end::programs;
use serde_json::Value;

const GPUS: &str = "gpus:
- {memory: {total: 80GiB}, processes: [{pid: 4100, used: 70GiB}]}
- {memory: {total: 40GiB}}
- {memory: {total: 80GiB}}
- {memory: {total: 80GiB}, processes: [{pid: 4101, used: 20GiB}]}
- {faults: {lost: true}}
- {mig: [{gi: 1, profile: 1g.18gb, memory: {total: 16GiB}}, {gi: 2, profile: 1g.18gb, memory: {total: 16GiB}, processes: [{pid: 4102, used: 1GiB}]}]}
";

fn free(scenario: &Scenario, flags: &[&str]) -> Command {
    let mut command = Command::new(programs::bailiff());
    command.arg("free").args(flags).args(["--alone", "--interval", "200ms"]);
    command.arg("--nvml-library").arg(programs::fake_nvml()).env("FAKE_NVML_SCENARIO", scenario.path());
    command.env_remove("LEASE_REDIS_URL").env("LEASE_DIR", scenario.directory().join("pool"));
    command
}

fn run(scenario: &Scenario, flags: &[&str]) -> (String, Option<i32>) {
    let Output { stdout, status, .. } = free(scenario, flags).output().unwrap();
    (String::from_utf8(stdout).unwrap(), status.code())
}

/// Returns the indexes of the listed GPUs, each with whether it is free.
fn listed(scenario: &Scenario, flags: &[&str]) -> Vec<(String, Option<bool>)> {
    let (text, _) = run(scenario, &[flags, &["--json"]].concat());
    let gpus: Vec<Value> = serde_json::from_str(&text).unwrap();
    gpus.iter().map(|gpu| (gpu["index"].as_str().unwrap().to_owned(), gpu["free"].as_bool())).collect()
}

#[test]
fn best_gpu_comes_first_and_an_unknown_one_is_not_free() {
    let scenario = Scenario::new(GPUS);
    let gpus = |list: &[(&str, Option<bool>)]| -> Vec<(String, Option<bool>)> {
        list.iter().map(|(index, free)| ((*index).to_owned(), *free)).collect()
    };
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(listed(&scenario, &[]), gpus(&[("2", yes), ("1", yes), ("5:0", yes)]));
    assert_eq!(listed(&scenario, &["--vram", "30GiB"]), gpus(&[("2", yes), ("3", yes), ("1", yes)]));
    let all = [("2", yes), ("1", yes), ("5:0", yes), ("3", no), ("5:1", no), ("0", no), ("4", None)];
    assert_eq!(listed(&scenario, &["--all"]), gpus(&all));
    let (text, code) = run(&scenario, &["--all"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with('2') && lines[1].ends_with("free"), "{text}");
    assert!(lines[4].ends_with("1 process") && lines[7].contains("unknown: lost"), "{text}");
    assert_eq!(run(&scenario, &["--vram", "100GiB"]), (String::new(), Some(75)));
}

#[test]
fn leased_gpu_is_not_free_and_waiting_ends_when_one_is() {
    let scenario = Scenario::new("gpus: [{}]");
    let lease = |args: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.arg("lease").args(args).env_remove("LEASE_REDIS_URL");
        command.env("LEASE_DIR", scenario.directory().join("pool")).env("BAILIFF_STREAM", "/nonexistent");
        command
    };
    assert!(lease(&["init", "--gpus", "0"]).status().unwrap().success());
    let mut holder = lease(&["run", "--", "sh", "-c", "echo begun; read line; true"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    assert_eq!(run(&scenario, &[]), (String::new(), Some(75)));
    let mut waiting = free(&scenario, &["--wait"]).stdout(Stdio::piped()).spawn().unwrap();
    park_timeout(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none());
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    let output = waiting.wait_with_output().unwrap();
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("free"),
        "{output:?}"
    );
}
