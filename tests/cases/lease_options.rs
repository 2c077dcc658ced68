//! Tests options for leases: particular GPUs, a duration, a holder and a place in the queue; and the
//! output about them.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use end_to_end::leases::{bailiff, code, command_of, end, hold, json_of, pool, run, states, stdout_of};
use end_to_end::node::Node;
use end_to_end::redis::Redis;
use end_to_end::tenant::Tenant;
use end_to_end::terminal::interrupted;
use end_to_end::wait::until;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

fn err(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the first two lines on standard error: the grant, and the line after it.
fn line_pair(runner: &mut Child) -> Vec<String> {
    BufReader::new(runner.stderr.take().unwrap()).lines().take(2).map(Result::unwrap).collect()
}

#[test]
fn lease_of_named_gpus_is_granted() {
    let redis = pool("0-3");
    let ids = |args: &[&str]| stdout_of(&run(&redis, args)).trim().to_owned();
    assert_eq!(ids(&["run", "--gpu", "3,1", "--", "sh", "-c", "echo $BAILIFF_LEASE_GPUS"]), "1,3");
    let holder = hold(&redis, &["run", "--gpu", "2"]);
    assert_eq!(states(&redis), ["idle", "idle", "leased", "idle"]);
    assert_eq!(code(&run(&redis, &["run", "--nonblock", "--gpu", "2", "true"])), 75);
    assert_eq!(code(&run(&redis, &["run", "--gpu", "9", "true"])), 64, "there is no GPU 9");
    assert_eq!(
        code(&run(&redis, &["run", "--gpu", "1,2", "-n", "3", "true"])),
        64,
        "more GPUs are requested than are listed"
    );
    let one_of = ["run", "--gpu", "2,3", "-n", "1", "--", "sh", "-c", "echo $BAILIFF_LEASE_GPUS"];
    assert_eq!(ids(&one_of), "3", "each of the two GPUs satisfies the request");
    let waiter = bailiff(&redis, &["run", "--gpu", "2", "--", "sh", "-c", "echo $BAILIFF_LEASE_GPUS"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("the request to wait", || (json_of(&redis, &["queue", "--json"])[0]["want"] == 1).then_some(()));
    assert_eq!(
        ids(&["run", "--", "sh", "-c", "echo had"]),
        "had",
        "a request for any GPU does not wait behind a request for a leased GPU"
    );
    end(holder, Signal::TERM);
    assert_eq!(stdout_of(&waiter.wait_with_output().unwrap()).trim(), "2");
    assert_eq!(states(&redis), ["idle"; 4]);
}

#[test]
fn process_on_a_gpu_may_lease_it() {
    let redis = pool("0,1");
    let mut process = Command::new("sleep").arg("infinity").spawn().unwrap();
    let pid = process.id().to_string();
    let lease = stdout_of(&run(&redis, &["adopt", "--gpu", "1", "--pid", &pid])).trim().to_owned();
    assert_eq!(states(&redis), ["idle", "leased"]);
    let gpu = &json_of(&redis, &["list", "--json"])["gpus"][1];
    assert_eq!(gpu["lease"]["lease"], lease.as_str());
    assert_eq!(gpu["lease"]["pid"].to_string(), pid);
    assert_eq!(gpu["lease"]["cmd"], "sleep infinity");
    assert_eq!(gpu["lease"]["evidence"], "alive");
    assert_eq!(code(&run(&redis, &["adopt", "--gpu", "1", "--pid", &pid])), 75, "the GPU is leased");
    process.kill().unwrap();
    process.wait().unwrap();
    let dry = stdout_of(&run(&redis, &["reap", "--dry-run"]));
    assert_eq!(dry.trim(), format!("{lease} GPU 1 the holder has exited"));
    assert_eq!(states(&redis), ["idle", "leased"], "a dry run frees nothing");
    // While any process executes a program, its environment is unreadable, and it might belong to the lease.
    until("the lease to be reaped", || (stdout_of(&run(&redis, &["reap"])).trim() == "1").then_some(()));
    assert_eq!(states(&redis), ["idle"; 2]);
}

#[test]
fn lease_with_duration_expires() {
    let redis = pool("0");
    let lease = json_of(&redis, &["acquire", "--duration", "1h", "--note", "tea", "--format", "json"]);
    assert_eq!((&lease["mode"], &lease["note"]), (&Value::from("timed"), &Value::from("tea")));
    let name = lease["lease"].as_str().unwrap();
    assert_eq!(stdout_of(&run(&redis, &["reap"])).trim(), "0");
    let extended = stdout_of(&run(&redis, &["extend", name, "2h"]));
    assert!(extended.starts_with("the lease ends at 2"), "{extended}");
    let expires = |report: &Value| report["gpus"][0]["lease"]["expires"].as_str().unwrap().to_owned();
    assert!(expires(&json_of(&redis, &["list", "--json"])).as_str() > lease["expires"].as_str().unwrap());
    stdout_of(&run(&redis, &["extend", name, "1ms"]));
    until("the lease to expire", || (stdout_of(&run(&redis, &["reap"])).trim() == "1").then_some(()));
    assert_eq!(states(&redis), ["idle"]);
    assert_eq!(code(&run(&redis, &["extend", name, "1h"])), 3);
    assert_eq!(code(&run(&redis, &["extend", "no-such-lease", "1h"])), 4);
    let holder = hold(&redis, &["run"]);
    let name = json_of(&redis, &["list", "--json"])["gpus"][0]["lease"]["lease"].as_str().unwrap().to_owned();
    assert_eq!(
        code(&run(&redis, &["extend", &name, "1h"])),
        64,
        "the lease ends with its holder, so it cannot be extended"
    );
    end(holder, Signal::TERM);
}

#[test]
fn expired_command_is_ended_unless_extended() {
    let redis = pool("0");
    let output = run(&redis, &["run", "--max-time", "50ms", "--", "sleep", "infinity"]);
    assert_eq!(code(&output), 124);
    assert!(err(&output).contains("time limit was reached"), "{output:?}");
    assert_eq!(states(&redis), ["idle"]);
    let mut runner = bailiff(&redis, &["run", "--max-time", "1s", "--", "sleep", "infinity"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the lease", || (states(&redis) == ["leased"]).then_some(()));
    let name = json_of(&redis, &["list", "--json"])["gpus"][0]["lease"]["lease"].as_str().unwrap().to_owned();
    stdout_of(&run(&redis, &["extend", &name, "1h"]));
    let lines = line_pair(&mut runner);
    assert!(lines[1].contains("the lease was extended"), "{lines:?}");
    end(runner, Signal::TERM);
}

#[test]
fn lost_lease_ends_the_command_if_requested() {
    // Processes that ignore TERM are killed.
    let ignoring_term = "sh -c 'trap : TERM; while :; do sleep 0.01; done' & wait; wait";
    for (how, expected, script) in
        [("warn", 143, "exec sleep infinity"), ("term", 74, ignoring_term), ("kill", 74, ignoring_term)]
    {
        let redis = pool("0");
        let mut runner = bailiff(&redis, &["run", "--renew", "50ms", "--grace", "1s", "--on-lost", how])
            .args(["--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the lease", || (states(&redis) == ["leased"]).then_some(()));
        stdout_of(&run(&redis, &["release", "--gpu", "0"]));
        if how == "warn" {
            let lines = line_pair(&mut runner);
            assert!(lines[1].contains("the lease has ended"), "{lines:?}");
            kill_process(command_of(&runner), Signal::TERM).unwrap();
        }
        let output = runner.wait_with_output().unwrap();
        assert_eq!(code(&output), expected, "{how}: {output:?}");
    }
}

#[test]
fn grant_is_printed_in_the_requested_format() {
    let redis = pool("0-2");
    let me = std::process::id().to_string();
    let acquire = |format: &str| {
        let output = run(&redis, &["acquire", "-n", "2", "--for", &me, "--format", format]);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(
            stdout_of(&run(&redis, &["release", "--mine"])).trim(),
            if output.status.success() { "1" } else { "0" }
        );
        (code(&output), text.trim().to_owned())
    };
    assert_eq!(acquire("ids"), (0, "0,1".to_owned()));
    let (code, env) = acquire("env");
    assert!(code == 0 && env.starts_with("export CUDA_VISIBLE_DEVICES="), "{env}");
    assert_eq!(acquire("uuid").0, 69, "without a driver, the pool has no UUIDs, and no GPU is leased");
    let (_, json) = acquire("json");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["gpus"].as_array().unwrap().len(), 2);
    assert_eq!(states(&redis), ["idle"; 3]);
}

#[test]
fn shell_subprocess_is_not_the_holder() {
    let redis = pool("0");
    for script in [
        "eval \"$($0 lease acquire)\"; echo $$; read line",
        "eval \"$($0 lease acquire | cat)\"; echo $$; read line",
        "eval \"$(true; $0 lease acquire; true)\"; echo $$; read line",
        "$0 lease acquire | { read x; echo $$; }; read line",
    ] {
        for shell in ["bash", "dash"] {
            let mut command = Command::new(shell);
            command.args(["-c", script]).arg(end_to_end::programs::bailiff());
            command.env("LEASE_REDIS_URL", redis.address()).env_remove("BAILIFF_LEASE_ID");
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let lease = until("the lease", || {
                let report = json_of(&redis, &["list", "--json"]);
                let lease = report["gpus"][0]["lease"].clone();
                (lease["mode"] == "acquire").then_some(lease)
            });
            assert_eq!(lease["pid"], child.id(), "{shell}: {script}");
            assert_eq!(stdout_of(&run(&redis, &["reap"])).trim(), "0", "{shell}: {script}");
            drop(child.stdin.take());
            child.kill().unwrap();
            child.wait().unwrap();
            until("the lease to be freed", || {
                (stdout_of(&run(&redis, &["reap"])).trim() == "1").then_some(())
            });
        }
    }
}

#[test]
fn queue_and_log_name_user_and_time() {
    let redis = pool("0");
    let holder = hold(&redis, &["run"]);
    let waiters: Vec<_> = [("0", "first"), ("0", "second"), ("5", "urgent")]
        .into_iter()
        .map(|(priority, note)| {
            let waiter =
                bailiff(&redis, &["run", "--priority", priority, "--note", note, "true"]).spawn().unwrap();
            until("the request to wait", || {
                let report = json_of(&redis, &["queue", "--json"]);
                report.as_array().unwrap().iter().any(|ticket| ticket["note"] == note).then_some(())
            });
            waiter
        })
        .collect();
    let queue = json_of(&redis, &["queue", "--json"]);
    let notes: Vec<&str> =
        queue.as_array().unwrap().iter().map(|ticket| ticket["note"].as_str().unwrap()).collect();
    assert_eq!(notes, ["urgent", "first", "second"]);
    let text = stdout_of(&run(&redis, &["queue"]));
    assert_eq!(text.lines().count(), 4, "{text}");
    let follower =
        bailiff(&redis, &["log", "-f", "-n", "0", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    end(holder, Signal::TERM);
    for mut waiter in waiters {
        assert!(waiter.wait().unwrap().success());
    }
    let log = stdout_of(&run(&redis, &["log", "--json"]));
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |what: &str| events.iter().filter(|event| event["event"] == what).count();
    assert_eq!((count("grant"), count("released")), (4, 4), "{log}");
    assert!(events[0]["time"].as_str().unwrap().ends_with('Z'), "{log}");
    assert_eq!(stdout_of(&run(&redis, &["log", "-n", "1"])).lines().count(), 1);
    end(follower, Signal::KILL);
}

#[test]
fn only_root_may_jump_the_queue() {
    let redis = pool("0");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(end_to_end::programs::bailiff());
    command.args(["lease", "run", "--priority", "1", "true"]).env("LEASE_REDIS_URL", redis.address());
    let output = command.output().unwrap();
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(err(&output).contains("root"), "{output:?}");
}

/// A script that creates a test certificate authority and a server certificate signed by it.
const CERTIFY: &str =
    "new() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \"$@\"; }
    new -subj /CN=ours -keyout ca.key -out ca.pem &&
    new -subj /CN=localhost -CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE \
        -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem";

#[test]
fn redis_connection_supports_tls_and_a_password() {
    let directory = tempfile::tempdir().unwrap();
    assert!(
        Command::new("sh")
            .args(["-c", CERTIFY])
            .current_dir(directory.path())
            .output()
            .unwrap()
            .status
            .success()
    );
    let port = end_to_end::redis::free_port();
    let (number, path) = (port.to_string(), |name: &str| directory.path().join(name).display().to_string());
    let _redis = Redis::with(&[
        "--tls-port",
        &number,
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "s3cret",
    ]);
    let lease = |password: &str, trusted: &str, args: &[&str]| {
        let address = format!("rediss://:{password}@127.0.0.1:{port}/0");
        let mut command = Command::new(end_to_end::programs::bailiff());
        command.arg("lease").args(args).env("LEASE_REDIS_URL", address).env("SSL_CERT_FILE", path(trusted));
        command.output().unwrap()
    };
    stdout_of(&lease("s3cret", "ca.pem", &["init", "--gpus", "0"]));
    assert_eq!(stdout_of(&lease("s3cret", "ca.pem", &["run", "echo", "had"])).trim(), "had");
    let output = lease("wrong", "ca.pem", &["list"]);
    assert_eq!(code(&output), 69);
    assert!(err(&output).contains("refuses") && !err(&output).contains("wrong@"), "{output:?}");
    let output = lease("s3cret", "key.pem", &["list"]);
    assert_eq!(code(&output), 69, "a certificate of an unknown authority is rejected");
}

#[test]
fn unused_idle_gpus_are_leased_first() {
    let redis = pool("0-2");
    let node = Node::of("version: 1\nrules: []\n", &["", "", ""]);
    let squatters = [Tenant::ending_on_term(&node.home), Tenant::ending_on_term(&node.home)];
    node.hold(&squatters[0], 0, "used: 1GiB");
    node.hold(&squatters[1], 2, "used: 1GiB");
    let tick = node.tick();
    until("the exporter to see them", || (node.tick() > tick + 1).then_some(()));
    let stream = node.home.stream().display().to_string();
    let run_one = |args: &[&str]| {
        let args =
            [&["run", "--stream", &stream], args, &["--", "sh", "-c", "echo $BAILIFF_LEASE_GPUS"]].concat();
        run(&redis, &args)
    };
    for _ in 0..3 {
        let output = run_one(&[]);
        assert_eq!((stdout_of(&output).trim(), err(&output)), ("1", "bailiff: GPU 1 leased\n".to_owned()));
    }
    let all = run_one(&["-n", "3"]);
    let pids = squatters.each_ref().map(|squatter| squatter.pid().to_string());
    assert!(pids.iter().all(|pid| err(&all).contains(pid)), "{all:?}");
    let output = run(&redis, &["run", "--stream", "/nowhere", "echo", "had"]);
    assert_eq!(stdout_of(&output).trim(), "had", "without an exporter, any idle GPU is leased");
}

#[test]
fn closed_output_pipe_is_no_error() {
    let redis = pool("0,1");
    for args in [["list", "--json"].as_slice(), &["list"], &["queue"], &["reap"], &["reap", "--dry-run"]] {
        let (read, written) = std::io::pipe().unwrap();
        drop(read);
        let mut command = bailiff(&redis, args);
        let output = command.stdout(written).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert_eq!((code(&output), err(&output)), (0, String::new()), "{args:?}");
    }
}

#[test]
fn invalid_value_points_to_the_help_of_its_command() {
    let redis = pool("0");
    let output = run(&redis, &["run", "-n", "two", "true"]);
    assert_eq!(code(&output), 64);
    assert!(err(&output).trim_end().ends_with("; see bailiff lease run --help"), "{}", err(&output));
}

#[test]
fn granted_lease_is_reported_on_stderr() {
    let redis = pool("0,1");
    assert_eq!(err(&run(&redis, &["run", "--gpu", "1", "true"])), "bailiff: GPU 1 leased\n");
    assert_eq!(err(&run(&redis, &["run", "-n", "2", "true"])), "bailiff: GPUs 0,1 leased\n");
    let acquired = run(&redis, &["acquire", "--gpu", "0", "--duration", "1h", "--format", "ids"]);
    assert_eq!((stdout_of(&acquired).as_str(), err(&acquired).as_str()), ("0\n", "bailiff: GPU 0 leased\n"));
}

#[test]
fn wait_without_a_terminal_reports_start_and_end() {
    let redis = pool("0");
    let holder = hold(&redis, &["run"]);
    let waiter = |before: usize| {
        let mut waiter = bailiff(&redis, &["run", "true"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(waiter.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        until("the request to wait", || {
            (json_of(&redis, &["queue", "--json"]).as_array().unwrap().len() == before + 1).then_some(())
        });
        (waiter, lines, line)
    };
    let mut waiters = [waiter(0), waiter(1), waiter(2)];
    end(holder, Signal::TERM);
    let expected = ["", ", behind 1 other", ", behind 2 others"];
    for ((waiter, lines, line), behind) in waiters.iter_mut().zip(expected) {
        assert_eq!(*line, format!("bailiff: waiting for a GPU{behind}\n"));
        let mut last = String::new();
        lines.read_line(&mut last).unwrap();
        assert!(last.starts_with("bailiff: GPU 0 leased"), "{last}");
        assert!(waiter.wait().unwrap().success());
    }
}

#[test]
fn interrupted_wait_ends_its_progress_line() {
    let redis = pool("0");
    let holder = hold(&redis, &["run"]);
    let command = bailiff(&redis, &["run", "true"]);
    let (text, code) = interrupted(command, (100, 24), "waiting for a GPU");
    assert!(text.ends_with("waiting for a GPU\n"), "{text:?}");
    assert_eq!(code, Some(130));
    end(holder, Signal::TERM);
}

#[test]
fn lease_status_lists_the_pool_and_own_leases() {
    let redis = pool("0-2");
    let holder = hold(&redis, &["run", "-n", "2", "--note", "tea"]);
    let waiter = bailiff(&redis, &["run", "-n", "3", "true"]).stderr(Stdio::null()).spawn().unwrap();
    until("the request to wait", || (json_of(&redis, &["queue", "--json"])[0]["want"] == 3).then_some(()));
    let text = stdout_of(&run(&redis, &["status"]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("3 GPUs: ") && lines[0].contains("2 leased"), "{text}");
    assert!(lines[0].ends_with("; 1 waiting"), "{text}");
    assert!(lines[1].starts_with("you have held GPUs 0,1 for ") && lines[1].contains("tea"), "{text}");
    assert!(lines[2].starts_with("you have waited for 3 GPUs for "), "{text}");
    assert!(lines[2].contains(": place 1"), "{text}");
    let json = json_of(&redis, &["status", "--json"]);
    assert_eq!((&json["gpus"]["leased"], &json["waiting"]), (&Value::from(2), &Value::from(1)));
    assert_eq!(json["leases"][0]["note"], "tea");
    assert_eq!(json["tickets"][0]["want"], 3);
    end(holder, Signal::TERM);
    assert!(waiter.wait_with_output().unwrap().status.success());
    assert_eq!(
        stdout_of(&run(&redis, &["status"])),
        "3 GPUs: 3 idle; 0 waiting\nyou have no leases or waiting requests\n"
    );
}
