//! Tests `bailiff lease` with a real Redis server: output, exit codes, and that a GPU never has two holders, even if
//! runners and commands are killed.
#![expect(clippy::disallowed_methods, reason = "a test runs programs and fails loudly")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use end_to_end::fake::Scenario;
use end_to_end::leases::{
    Tasks, bailiff, code, command_of, end, hold, json_of, pool, run, states, stdout_of,
};
use end_to_end::programs;
use end_to_end::redis::Redis;
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn command_keeps_its_gpus_until_it_exits() {
    let redis = pool("0-2");
    let printed = stdout_of(&run(
        &redis,
        &["run", "-n", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"],
    ));
    assert_eq!(printed.trim(), "0,1 PCI_BUS_ID");
    assert_eq!(states(&redis), ["idle"; 3]);
    for (args, expected) in [
        (vec!["run", "--", "sh", "-c", "exit 7"], 7),
        (vec!["run", "--", "sh", "-c", "kill -9 $$"], 137),
        (vec!["run", "nosuch-program"], 127),
        (vec!["run", "/etc/passwd"], 126),
        (vec!["run", "-n", "4", "true"], 64),
        (vec!["run", "-n", "0", "true"], 64),
        (vec!["release", "no-such-lease"], 4),
        (vec!["acquire", "--for", "4194305"], 64),
        (vec!["init", "--gpus", "0"], 64),
        (vec!["init", "--gpus", "1-x"], 64),
    ] {
        let output = run(&redis, &args);
        assert_eq!(code(&output), expected, "{args:?}: {output:?}");
        assert_eq!(states(&redis), ["idle"; 3], "{args:?}");
    }
}

#[test]
fn gpus_are_named_by_uuid() {
    let (redis, scenario) = (Redis::start(), Scenario::named("idle"));
    let library = programs::fake_nvml();
    let init = |args: &[&str]| {
        let mut command = bailiff(&redis, &["init", "--nvml-library"]);
        command.arg(&library).args(args).env("FAKE_NVML_SCENARIO", scenario.path()).output().unwrap()
    };
    assert_eq!(code(&init(&["--gpus", "0,9"])), 64, "there is no GPU 9");
    stdout_of(&init(&[]));
    let printed: Value = serde_json::from_str(&stdout_of(&run(&redis, &["list", "--json"]))).unwrap();
    let uuid = printed["gpus"][0]["uuid"].as_str().unwrap();
    assert!(uuid.starts_with("GPU-"), "{printed}");
    let visible =
        stdout_of(&run(&redis, &["run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $BAILIFF_LEASE_GPUS"]));
    assert_eq!(visible.trim(), format!("{uuid} 0"));
    let index = |scenario: &Scenario| {
        let mut command = bailiff(&redis, &["run", "--index", "--gpu", "1", "--nvml-library"]);
        command.arg(&library).args(["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]);
        command.env("FAKE_NVML_SCENARIO", scenario.path()).output().unwrap()
    };
    assert_eq!(stdout_of(&index(&scenario)).trim(), "1");
    let shifted = Scenario::new("gpus: [{}]");
    let output = index(&shifted);
    assert_eq!(code(&output), 69, "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("run without --index"), "{output:?}");
    let nothing = Redis::start();
    let output = run(&nothing, &["init", "--nvml-library", "/nowhere.so"]);
    assert_eq!(code(&output), 69);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--gpus"), "{output:?}");
}

#[test]
fn unavailable_gpus_are_reported() {
    let redis = Redis::start();
    let output = run(&redis, &["run", "true"]);
    assert_eq!(code(&output), 69);
    assert!(String::from_utf8_lossy(&output.stderr).contains("bailiff lease init"), "{output:?}");
    let nowhere = ["run", "--redis", "redis+unix:///nowhere.sock", "true"];
    let output = run(&redis, &nowhere);
    assert_eq!(code(&output), 69);
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not respond"), "{output:?}");
    stdout_of(&run(&redis, &["init", "--gpus", "0"]));
    let holder = hold(&redis, &["run"]);
    assert_eq!(code(&run(&redis, &["run", "--nonblock", "true"])), 75);
    assert_eq!(code(&run(&redis, &["run", "--wait", "100ms", "true"])), 124);
    assert_eq!(code(&run(&redis, &["init", "--gpus", "0,1", "--force"])), 75, "the pool has a holder");
    assert_eq!(states(&redis), ["leased"]);
    end(holder, Signal::TERM);
    assert_eq!(states(&redis), ["idle"], "SIGTERM to a command ends its lease");
}

#[test]
fn killed_runner_leaves_the_lease_to_its_command() {
    let redis = pool("0");
    let runner = hold(&redis, &["run"]);
    let command = command_of(&runner);
    end(runner, Signal::KILL);
    stdout_of(&run(&redis, &["reap"]));
    assert_eq!(states(&redis), ["leased"], "the command still runs and keeps its GPU");
    kill_process(command, Signal::KILL).unwrap();
    until("the lease to end with its last process", || {
        (stdout_of(&run(&redis, &["reap"])).trim() == "1").then_some(())
    });
    assert_eq!(states(&redis), ["idle"]);
}

#[test]
fn orphaned_process_keeps_the_lease() {
    let redis = pool("0");
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let script = format!("(cat {}) & exit 3", fifo.display());
    let mut runner = bailiff(&redis, &["run", "--", "sh", "-c", &script]).spawn().unwrap();
    until("the lease", || (states(&redis) == ["leased"]).then_some(()));
    fs::write(&fifo, "the last one ends").unwrap();
    assert_eq!(runner.wait().unwrap().code(), Some(3));
    assert_eq!(states(&redis), ["idle"]);
}

#[test]
fn acquired_gpus_are_freed_when_their_holder_exits() {
    let redis = pool("0");
    let mut holder = Command::new("sleep").arg("infinity").spawn().unwrap();
    let printed = stdout_of(&run(&redis, &["acquire", "--for", &holder.id().to_string()]));
    assert!(printed.contains("export CUDA_VISIBLE_DEVICES=0\n"), "{printed}");
    assert_eq!(stdout_of(&run(&redis, &["reap"])).trim(), "0");
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the lease to be reaped", || (stdout_of(&run(&redis, &["reap"])).trim() == "1").then_some(()));
    let printed = stdout_of(&run(&redis, &["acquire", "--for", &std::process::id().to_string()]));
    let lease = printed.lines().find_map(|line| line.strip_prefix("export BAILIFF_LEASE_ID=")).unwrap();
    for _ in 0..2 {
        stdout_of(&run(&redis, &["release", lease]));
    }
    assert_eq!(states(&redis), ["idle"]);
}

/// Every client of Redis can write them, and users evaluate the output of `acquire`.
#[test]
fn uuid_in_redis_is_no_shell_code() {
    let redis = pool("0,1");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("written").display().to_string();
    let own = std::process::id().to_string();
    for (uuid, expected) in [
        (format!("GPU-0;touch${{IFS}}{file}"), "0"),
        (format!("GPU-0`touch${{IFS}}{file}`"), "0"),
        (format!("'$(touch${{IFS}}{file})'"), "0"),
        (format!("GPU-{}", "0".repeat(200)), "0"),
        ("GPU-00000000-0000-4000-8000-000000000001".to_owned(), "GPU-00000000-0000-4000-8000-000000000001"),
    ] {
        let script = "redis.call('HSET', 'GPU_V2:UUID', '0', ARGV[1]) return 'ok'";
        assert_eq!(redis.query(&format!("EVAL \"{script}\" 0 \"{uuid}\"")), "ok");
        let printed = stdout_of(&run(&redis, &["acquire", "--gpu", "0", "--for", &own]));
        let script = "eval \"$1\" && echo $CUDA_VISIBLE_DEVICES";
        let output = Command::new("sh").args(["-c", script, "sh", &printed]).output().unwrap();
        assert_eq!(stdout_of(&output).trim(), expected, "{printed}");
        assert!(!fs::exists(&file).unwrap(), "{printed}");
        stdout_of(&run(&redis, &["release", "--gpu", "0"]));
    }
}

#[test]
fn waiter_is_not_blocked_by_dead_ones() {
    let redis = pool("0");
    for args in [&["--nonblock"][..], &["--wait", "0s"], &["--wait", "5s"], &["--wait", "0s", "--gpu", "0"]] {
        let mut holder = Command::new("sleep").arg("infinity").spawn().unwrap();
        stdout_of(&run(&redis, &["acquire", "--for", &holder.id().to_string()]));
        let waiter = bailiff(&redis, &["run", "true"]).spawn().unwrap();
        let queue = || json_of(&redis, &["queue", "--json"]).as_array().unwrap().len();
        until("a waiter", || (queue() == 1).then_some(()));
        end(waiter, Signal::KILL);
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!((states(&redis), queue()), (vec!["leased".to_owned()], 1));
        // The waiter polls less often than this test waits.
        stdout_of(&run(&redis, &[&["run"], args, &["true"]].concat()));
        assert_eq!((states(&redis), queue()), (vec!["idle".to_owned()], 0));
    }
}

#[test]
fn tasks_150_over_8_gpus_never_share() {
    let redis = pool("0-7");
    let done = Tasks::start(&redis, 150).all_end(&[]);
    assert_eq!(done.len(), 150);
    assert_eq!(BTreeSet::from_iter(done).len(), 8, "all GPUs are used");
    assert_eq!(states(&redis), ["idle"; 8]);
}

#[test]
fn tasks_150_with_some_killed_never_share() {
    let redis = pool("0-7");
    let tasks = Tasks::start(&redis, 150);
    let mut killed = Vec::new();
    for task in tasks.runners().iter().step_by(7) {
        kill_process(Pid::from_child(task), Signal::KILL).unwrap();
        killed.push(task.id());
    }
    assert!(tasks.all_end(&killed).len() >= 150 - killed.len());
    until("all to be idle", || {
        stdout_of(&run(&redis, &["reap"]));
        (states(&redis) == ["idle"; 8]).then_some(())
    });
}
