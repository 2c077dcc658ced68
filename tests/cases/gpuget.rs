//! Tests the drop-in for GPUGET's `GPU.py`: its output, and a queue that it shares with original clients (a test
//! double). No GPU is lost or leased twice.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};

use end_to_end::fake::Scenario;
use end_to_end::legacy::{Legacy, Reply};
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::redis::Redis;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Redis, a driver, and our program under the original's name.
struct Fixture {
    redis: Redis,
    scenario: Scenario,
    directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        symlink(programs::bailiff(), directory.path().join("GPU.py")).unwrap();
        Self { redis: Redis::start(), scenario: Scenario::named("8x4"), directory }
    }

    /// Returns a fixture with a pool of these GPUs.
    fn of(gpus: &str) -> Self {
        let fixture = Self::new();
        let args = ["--redis-manage", gpus];
        assert_eq!(fixture.run(&args), gpus.split(',').count().to_string());
        fixture
    }

    fn around(&self, mut command: Command) -> Command {
        let path = format!("{}:{}", self.directory.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("LEASE_REDIS_URL", self.redis.address());
        command
            .env("BAILIFF_NVML_LIBRARY", programs::fake_nvml())
            .env("FAKE_NVML_SCENARIO", self.scenario.path());
        for name in ["CUDA_VISIBLE_DEVICES", "GPU_PY_FORCE", "LEASE_PREFIX", "BAILIFF_LEASE_ID"] {
            command.env_remove(name);
        }
        command
    }

    fn gpu_py(&self, args: &[&str]) -> Command {
        let mut command = self.around(Command::new(self.directory.path().join("GPU.py")));
        command.args(args);
        command
    }

    /// Returns a Bash command or script.
    fn bash(&self, script: &str) -> Command {
        let mut command = self.around(Command::new("bash"));
        command.args(["-c", script]);
        command
    }

    /// Starts a script in its own session.
    fn script(&self, name: &str, script: &str) -> Child {
        let path = self.directory.path().join(name);
        fs::write(&path, script).unwrap();
        let mut command = self.around(Command::new("bash"));
        command.arg(path);
        spawned(command)
    }

    fn lease(&self, args: &[&str]) -> Command {
        let mut command = self.around(Command::new(programs::bailiff()));
        command.arg("lease").args(args);
        command
    }

    /// Returns the output of a successful run of GPU.py.
    fn run(&self, args: &[&str]) -> String {
        stdout_of(&self.gpu_py(args).output().unwrap())
    }

    fn legacy(&self, pid: u32) -> Legacy {
        Legacy::run_by(&self.redis, pid)
    }

    /// Returns the state of each GPU.
    fn states(&self) -> Vec<String> {
        let output = self.lease(&["list", "--json"]).output().unwrap();
        let printed: Value = serde_json::from_str(&stdout_of(&output)).unwrap();
        printed["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gpu| gpu["state"].as_str().unwrap().to_owned())
            .collect()
    }

    fn redis_has(&self, key: &str) -> bool {
        self.legacy(1).query(&["EXISTS", key]) == Reply::Text("1".to_owned())
    }

    /// Waits for this many blocked connections. An original client has one, and one of our waiters has two.
    fn blocked(&self, count: usize) {
        let mut monitor = self.legacy(1);
        until("connections to be blocked", || (monitor.blocked() == count).then_some(()));
    }
}

fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim_end().to_owned()
}

fn error_message(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn spawned(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Masks every number after `PID`, and every time.
fn masked(line: &str) -> String {
    let mut args: Vec<&str> = line.split(' ').collect();
    for index in 1..args.len() {
        if args[index - 1] == "PID" {
            args[index] = if args[index].ends_with('.') { "N." } else { "N" };
        }
    }
    let is_day = |word: &str| word.len() == 10 && word.starts_with("20");
    let masked = args.join(" ");
    match args.iter().position(|word| is_day(word)) {
        Some(index) => {
            let both = format!("{} {}", args[index], args[index + 1].trim_end_matches(':'));
            masked.replace(&both, "TIME")
        }
        None => masked,
    }
}

#[test]
fn flag_output_matches_the_original() {
    let fixture = Fixture::new();
    let path = programs::root().join("tests/golden/gpuget/transcript.txt");
    let golden = fs::read_to_string(&path).unwrap();
    let mut printed: Vec<String> = golden.lines().take(1).map(str::to_owned).collect();
    for command in golden.lines().filter_map(|line| line.strip_prefix("$ ")) {
        printed.push(format!("$ {command}"));
        let output = fixture.bash(command).output().unwrap();
        printed.extend(String::from_utf8_lossy(&output.stdout).lines().map(masked));
        printed.extend(String::from_utf8_lossy(&output.stderr).lines().map(|line| format!("! {line}")));
        if !output.status.success() {
            printed.push(format!("[{}]", output.status.code().unwrap()));
        }
    }
    let printed = printed.join("\n") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &printed).unwrap();
    }
    for (printed, golden) in printed.lines().zip(golden.lines()) {
        assert_eq!(printed, golden, "{}; UPDATE_GOLDEN=1 renews it", path.display());
    }
    assert_eq!(printed.len(), golden.len());
}

/// Runs the examples in GPUGET's README, verbatim.
#[test]
fn original_readme_examples_work() {
    let fixture = Fixture::new();
    let script = "GPU.py --redis-manage-all
GPU.py --redis-manage-all --force
read GPUID < <(GPU.py --get)
echo \"got $GPUID for $$\"
GPU.py --active
GPU.py --release $GPUID
GPU.py ---redis-purge
GPU.py --help | head -1
GPU.py --log
GPU.py --managed
GPU.py --idle
GPU.py --info";
    let child = spawned(fixture.bash(script));
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let printed = stdout_of(&output);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[..4], ["8", "8", &format!("got 0 for {pid}"), "There is 1 ACTIVE GPUs, IDs: 0"]);
    assert!(
        lines[4].starts_with(&format!("GPU 0 acquired by PID {pid} at 20")),
        "the holder of the GPU is listed: {printed}"
    );
    assert_eq!(lines[5], "GPU 0 released.");
    assert_eq!(lines[6], "usage: GPU.py [-h] [--gpu-count] [--managed-gpu-count]");
    assert!(lines[7].ends_with(": Redis initialized, 8 managed GPUs."), "{printed}");
    assert!(lines[8].ends_with(&format!(": GPU 0 acquired by PID {pid}.")), "{printed}");
    assert!(lines[9].ends_with(&format!(": GPU 0 released by PID {pid}.")), "{printed}");
    assert_eq!(
        lines[10..],
        [
            "There is 8 MANAGED GPUs, IDs: 0,1,2,3,4,5,6,7",
            "There is 8 IDDLE GPUs, IDs: 0,1,2,3,4,5,6,7",
            "GPU total:8 managed:8 idle:8"
        ]
    );
}

#[test]
fn unreachable_address_is_reported_as_no_server() {
    let fixture = Fixture::of("0,1");
    for args in [&["--redis-server", ""][..], &["--redis-port", "70000"], &["--redis-port", "-5"]] {
        let mut command = fixture.around(Command::new(programs::bailiff()));
        let output = command.arg("gpuget").args(args).arg("--idle").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "Can not connect to Redis server, try to start server first.\n", "{args:?}");
        assert_eq!(output.status.code(), Some(255), "{args:?}");
    }
}

#[test]
fn gpuget_is_a_bailiff_command() {
    let fixture = Fixture::of("0,1");
    let mut command = fixture.around(Command::new(programs::bailiff()));
    assert_eq!(
        stdout_of(&command.args(["gpuget", "--rel", "-5"]).output().unwrap()),
        "GPU -5 is not managed."
    );
    let mut command = fixture.around(Command::new(programs::bailiff()));
    assert!(
        stdout_of(&command.args(["gpuget", "--help"]).output().unwrap()).starts_with("usage: GPU.py [-h]")
    );
}

/// Reads the first line that a program prints.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn mixed_clients_are_served_in_arrival_order() {
    let fixture = Fixture::of("0");
    let mut holder = fixture.legacy(1);
    assert_eq!(holder.get(), "0");
    let kinds = [
        "original", "gpuget", "original", "acquire", "gpuget", "original", "run", "gpuget", "original",
        "acquire",
    ];
    let (sender, served) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut blocked = 0;
        for (number, kind) in kinds.into_iter().enumerate() {
            let (fixture, sender) = (&fixture, sender.clone());
            scope.spawn(move || match kind {
                "original" => {
                    let mut original = fixture.legacy(std::process::id());
                    let id = original.get();
                    sender.send(number).unwrap();
                    assert_eq!(original.release(&id), "GPU 0 released.");
                }
                "gpuget" => {
                    assert_eq!(fixture.run(&["--get"]), "0");
                    sender.send(number).unwrap();
                    assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");
                }
                "acquire" => {
                    let printed = stdout_of(&fixture.lease(&["acquire"]).output().unwrap());
                    sender.send(number).unwrap();
                    let name = printed
                        .lines()
                        .find_map(|line| line.strip_prefix("export BAILIFF_LEASE_ID="))
                        .unwrap();
                    stdout_of(&fixture.lease(&["release", name]).output().unwrap());
                }
                _ => {
                    let mut child = spawned(fixture.lease(&["run", "--", "sh", "-c", "echo begun; cat"]));
                    assert_eq!(first_line(&mut child), "begun");
                    sender.send(number).unwrap();
                    drop(child.stdin.take());
                    assert!(child.wait().unwrap().success());
                }
            });
            blocked += if kind == "original" { 1 } else { 2 };
            fixture.blocked(blocked);
        }
        assert_eq!(holder.release("0"), "GPU 0 released.");
    });
    drop(sender);
    assert_eq!(served.iter().collect::<Vec<usize>>(), (0..kinds.len()).collect::<Vec<usize>>());
    assert_eq!(holder.idle(), ["0"]);
    fixture.blocked(0);
}

#[test]
fn original_client_lists_our_leases() {
    let fixture = Fixture::of("0,1,2");
    let mut original = fixture.legacy(77);
    let mut run = spawned(fixture.lease(&["run", "--", "sh", "-c", "echo begun; cat"]));
    assert_eq!(first_line(&mut run), "begun");
    assert_eq!(fixture.run(&["--get"]), "1");
    let us = std::process::id().to_string();
    let active = original.active();
    assert_eq!(active["0"].as_deref(), Some("0"), "the purge keeps this lease");
    assert_eq!(active["1"].as_deref(), Some(us.as_str()));
    assert_eq!(original.idle(), ["2"]);
    assert_eq!(original.get(), "2");
    let printed = fixture.run(&["--active"]);
    assert!(printed.contains("GPU 2 acquired by PID 77 at 2024-06-13 12:00:00"), "{printed}");
    assert_eq!(fixture.run(&["--release", "2"]), "GPU 2 released.", "our client releases its GPU");
    assert_eq!(original.release("1"), "GPU 1 released.");
    let log = original.log();
    assert_eq!(log[0], "Redis initialized, 3 managed GPUs.");
    assert_eq!(log[2], format!("GPU 1 acquired by PID {us}."));
    assert_eq!(log[4], format!("GPU 2 released by PID {us}."));
    run.kill().unwrap();
    run.wait().unwrap();
}

/// Starts a waiter that requests a leased GPU.
fn waiter(fixture: &Fixture, blocked: usize) -> Child {
    let child = spawned(fixture.gpu_py(&["--get"]));
    fixture.blocked(blocked);
    child
}

#[test]
fn gpu_of_a_dead_waiter_goes_to_the_next() {
    let fixture = Fixture::of("0");
    let mut original = fixture.legacy(1);
    for modern_is_next in [true, false] {
        assert_eq!(original.get(), "0");
        let mut dead = waiter(&fixture, 2);
        send(&dead, Signal::STOP);
        // The original always loses the GPU here, because Redis popped it for a client that no longer exists.
        assert_eq!(original.release("0"), "GPU 0 released.");
        assert_eq!(original.idle(), Vec::<String>::new());
        dead.kill().unwrap();
        dead.wait().unwrap();
        if modern_is_next {
            assert_eq!(fixture.run(&["--get"]), "0");
        } else {
            std::thread::scope(|scope| {
                let next = scope.spawn(|| fixture.legacy(1).get());
                fixture.blocked(1);
                // Any of our commands repairs the loss.
                fixture.run(&["--idle"]);
                assert_eq!(next.join().unwrap(), "0");
            });
        }
        assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");
        assert_eq!(original.idle(), ["0"]);
    }
}

#[test]
fn sigterm_removes_the_waiter_and_ends_it() {
    let fixture = Fixture::of("0");
    let mut original = fixture.legacy(1);
    assert_eq!(original.get(), "0");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut child = waiter(&fixture, 2);
        send(&child, signal);
        assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
        assert!(!fixture.redis_has("GPU_V2:Q"), "the ticket is removed");
    }
    let mut shell = fixture.bash("GPU.py --get & pid=$!; read line; kill -INT $pid; wait $pid; echo $?");
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    fixture.blocked(2);
    drop(shell.stdin.take());
    // SIGINT is ignored in a background process of a script, as with the original.
    assert_eq!(original.release("0"), "GPU 0 released.");
    assert_eq!(stdout_of(&shell.wait_with_output().unwrap()), "0\n0");
}

#[test]
fn waiter_after_server_rollback_keeps_its_place() {
    let fixture = Fixture::of("0");
    let mut original = fixture.legacy(1);
    assert_eq!(original.get(), "0");
    let mut child = waiter(&fixture, 2);
    send(&child, Signal::STOP);
    assert_eq!(original.release("0"), "GPU 0 released.");
    // Removes the grant from Redis before the waiter reads it.
    let Reply::Text(lease) = original.query(&["HGET", "GPU_V2:OWN", "0"]) else { panic!("no grant") };
    let key = format!("GPU_V2:LEASE:{lease}");
    for args in [
        vec!["HSET", &key, "state", "waiting"],
        vec!["HDEL", &key, "gpus", "tok"],
        vec!["ZADD", "GPU_V2:Q", "1", &lease],
        vec!["HDEL", "GPU_V2:OWN", "0"],
        vec!["DEL", "GPU_GPU0"],
    ] {
        original.query(&args);
    }
    send(&child, Signal::CONT);
    fixture.blocked(2);
    original.query(&["LPUSH", "GPU_IDLE", "0"]);
    assert_eq!(first_line(&mut child), "0");
    assert!(child.wait().unwrap().success());
    assert_eq!(fixture.states(), ["leased"]);
}

#[test]
fn grant_with_unwritable_output_is_no_lease() {
    let fixture = Fixture::of("0");
    let output = fixture.bash("GPU.py --get >/dev/full").output().unwrap();
    assert!(error_message(&output, 1).contains("no space left on device"), "{output:?}");
    assert_eq!(fixture.states(), ["idle"]);
}

#[test]
fn missing_pool_is_waited_for() {
    let fixture = Fixture::new();
    let mut waiters: Vec<Child> = Vec::new();
    for number in 0..3 {
        waiters.push(waiter(&fixture, 2 * (number + 1)));
    }
    // GPU.py adds an id to the idle list before it adds it to the managed list.
    let mut original = fixture.legacy(1);
    assert_eq!(original.manage(&[0], 8, false), "1");
    let first = waiters.remove(0).wait_with_output().unwrap();
    assert_eq!(stdout_of(&first), "0");
    assert_eq!(
        String::from_utf8(first.stderr).unwrap(),
        "GPU.py: no GPU is managed under the prefix GPU; waits until some are (is it the right one?)\n"
    );
    assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");
    assert_eq!(stdout_of(&waiters.remove(0).wait_with_output().unwrap()), "0");
    // A waiter continues to wait, as the original's clients do.
    assert!(
        error_message(&fixture.gpu_py(&["--redis-delete"]).output().unwrap(), 1).contains("1 GPU is leased")
    );
    let forced = fixture.gpu_py(&["--redis-delete"]).env("GPU_PY_FORCE", "1").output().unwrap();
    assert_eq!(stdout_of(&forced), "All Redis objects related to GPU management were deleted.");
    assert!(!fixture.redis_has("GPU_GPU0"), "the record is deleted");
    assert_eq!(fixture.run(&["--redis-manage", "5"]), "1");
    assert_eq!(stdout_of(&waiters.remove(0).wait_with_output().unwrap()), "5");
}

#[test]
fn deleted_pool_leaves_no_key() {
    let fixture = Fixture::of("0");
    let mut original = fixture.legacy(1);
    let mut keys = || original.query(&["KEYS", "*"]).texts();
    assert_eq!(fixture.run(&["--get"]), "0");
    assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");
    assert!(!keys().is_empty());
    fixture.run(&["--redis-delete"]);
    assert_eq!(keys(), Vec::<String>::new());
    assert_eq!(fixture.run(&["--info"]), "GPU total:8 no managed");
    assert_eq!(fixture.run(&["--active"]), "There are no active GPUs.");
    assert_eq!(keys(), Vec::<String>::new(), "a read-only command writes nothing");
}

#[test]
fn manage_replaces_lists_of_a_wrong_type() {
    let fixture = Fixture::new();
    let mut original = fixture.legacy(1);
    let mut spoil = || {
        for key in ["GPU_IDLE", "GPU_MANAGED", "GPU_EVENTS"] {
            original.query(&["SET", key, "what is this"]);
        }
    };
    spoil();
    assert_eq!(fixture.run(&["--redis-manage-all"]), "8");
    assert_eq!(fixture.run(&["--info"]), "GPU total:8 managed:8 idle:8");
    spoil();
    assert_eq!(fixture.run(&["--redis-manage", "0"]), "Objects already initialized, add force to proceed.");
    assert_eq!(fixture.run(&["--redis-manage-count", "2", "--force"]), "2");
    assert_eq!(fixture.run(&["--get"]), "7");
    spoil();
    let refused = fixture.gpu_py(&["--redis-manage-all", "--force"]).output().unwrap();
    assert!(error_message(&refused, 1).contains("1 GPU is leased"), "{refused:?}");
    let forced =
        fixture.gpu_py(&["--redis-manage-all", "--force"]).env("GPU_PY_FORCE", "1").output().unwrap();
    assert_eq!(stdout_of(&forced), "8");
    spoil();
    fixture.run(&["--redis-delete"]);
    assert!(!fixture.redis_has("GPU_IDLE"));
}

#[test]
fn gpu_released_by_another_client_is_free_once() {
    let fixture = Fixture::of("0");
    let mut original = fixture.legacy(1);
    for by_original in [true, false, true] {
        assert_eq!(fixture.run(&["--get"]), "0");
        if by_original {
            assert_eq!(original.release("0"), "GPU 0 released.");
        } else {
            assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");
        }
        assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 is already idle.");
        assert_eq!(original.release("0"), "GPU 0 is already idle.");
        assert_eq!(original.idle(), ["0"]);
        assert_eq!(fixture.states(), ["idle"]);
    }
    // The GPU is leased again by an original client, so the earlier lease is over.
    assert_eq!(fixture.run(&["--get"]), "0");
    assert_eq!(original.release("0"), "GPU 0 released.");
    assert_eq!(original.get(), "0");
    assert_eq!(fixture.states(), ["legacy"]);
    assert_eq!(original.release("0"), "GPU 0 released.");
    assert_eq!(original.idle(), ["0"]);
}

#[test]
fn double_release_makes_no_second_holder() {
    let fixture = Fixture::of("0");
    let (mut one, mut other) = (fixture.legacy(1), fixture.legacy(1));
    assert_eq!(one.get(), "0");
    // Two concurrent releases, a race that the original loses.
    assert_eq!(one.refuse_release("0"), None);
    one.erase_record("0");
    assert_eq!(other.refuse_release("0"), None);
    one.push_idle("0");
    other.erase_record("0");
    other.push_idle("0");
    assert_eq!(one.idle(), ["0", "0"]);
    assert_eq!(fixture.run(&["--get"]), "0");
    let mut second = waiter(&fixture, 2);
    assert_eq!(fixture.lease(&["acquire", "--nonblock"]).output().unwrap().status.code(), Some(75));
    assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");
    assert_eq!(first_line(&mut second), "0", "the second waiter gets the GPU that the first released");
    assert!(second.wait().unwrap().success());
    assert_eq!(fixture.run(&["--release", "0"]), "GPU 0 released.");

    // A late release: one of our commands already holds the GPU.
    let mut run = spawned(fixture.lease(&["run", "--", "sh", "-c", "echo begun; cat"]));
    assert_eq!(first_line(&mut run), "begun");
    let refused = error_message(&fixture.gpu_py(&["--release", "0"]).output().unwrap(), 1);
    assert!(refused.starts_with("GPU.py: GPU 0 is held by the lease "), "{refused}");
    assert_eq!(one.release("0"), "GPU 0 released.", "the original cannot see the new lease");
    let mut second = spawned(fixture.gpu_py(&["--get"]));
    fixture.blocked(2);
    assert_eq!(one.idle(), Vec::<String>::new(), "the GPU is not idle");
    assert_eq!(fixture.states(), ["leased"]);
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    assert_eq!(first_line(&mut second), "0");
    assert!(second.wait().unwrap().success());
}

/// Returns whether the process exists, from the view of an unprivileged user.
fn process_exists(pid: &str) -> bool {
    Command::new("kill")
        .args(["-0", pid])
        .stderr(Stdio::null())
        .uid(NOBODY_UID)
        .gid(NOBODY_UID)
        .status()
        .unwrap()
        .success()
}

#[test]
fn purge_by_the_original_keeps_our_leases() {
    let fixture = Fixture::of("0,1");
    let (socket, all) = (fixture.redis.socket(), fs::Permissions::from_mode(0o777));
    for path in [socket.as_path(), socket.parent().unwrap(), fixture.directory.path()] {
        fs::set_permissions(path, all.clone()).unwrap();
    }
    let mut run = spawned(fixture.lease(&["run", "--", "sh", "-c", "echo begun; cat"]));
    assert_eq!(first_line(&mut run), "begun");
    assert_eq!(fixture.run(&["--get"]), "1");
    let mut original = fixture.legacy(1);
    original.purge(process_exists);
    assert_eq!(original.idle(), ["1"], "the drop-in's lease follows the original's rules");
    assert_eq!(fixture.states(), ["leased", "idle"]);
    assert_eq!(fixture.run(&["--get"]), "1");
    for args in [["--redis-purge"], ["---redis-purge"]] {
        let mut purge = fixture.gpu_py(&args);
        // A process that cannot be signalled (EPERM) exists.
        assert_eq!(stdout_of(&purge.uid(NOBODY_UID).gid(NOBODY_UID).output().unwrap()), "");
    }
    assert_eq!(fixture.states(), ["leased", "leased"]);
    drop(run.stdin.take());
    run.wait().unwrap();
}

#[test]
fn purge_frees_gpus_of_dead_local_holders() {
    let fixture = Fixture::of("0,1,2,3,4");
    // One lease belongs to a running script but was taken by a subshell that has exited; the other belongs to a script
    // that has exited.
    let mut alive = fixture.script("alive", "id=$(GPU.py --get | cat); echo $id; read line");
    assert_eq!(first_line(&mut alive), "0");
    let mut dead = fixture.script("dead", "read id < <(GPU.py --get); echo $id; read line");
    assert_eq!(first_line(&mut dead), "1");
    let mut other = fixture.script("other", "id=$(sh -c 'GPU.py --get; true'); echo $id; read line");
    assert_eq!(first_line(&mut other), "2");
    fixture.legacy(std::process::id()).get();
    fixture.legacy(4_194_305).get();
    let states = |fixture: &Fixture| fixture.states().join(" ");
    assert_eq!(fixture.run(&["--redis-purge"]), "");
    assert_eq!(states(&fixture), "leased leased leased legacy idle", "the process has exited");
    for child in [&mut dead, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    fixture.run(&["--idle"]);
    assert_eq!(states(&fixture), "leased leased leased legacy idle", "only a purge ends the lease");
    assert_eq!(fixture.run(&["--redis-purge"]), "");
    assert_eq!(states(&fixture), "leased idle idle legacy idle");
    alive.kill().unwrap();
    alive.wait().unwrap();
    assert_eq!(fixture.run(&["--redis-purge"]), "");
    assert_eq!(states(&fixture), "idle idle idle legacy idle");
    let log = fixture.legacy(1).log();
    let purged = format!(
        "GPU 1 acquired by process with PID {}, was released by redis purge as the process with given PID does no \
         longer exist.",
        dead.id()
    );
    assert!(log.contains(&purged), "{log:?}");
}

#[test]
fn purge_gpu_in_use_is_kept() {
    let fixture = Fixture::of("0,1");
    let node = Node::of("version: 1\nrules: []\n", &["", ""]);
    let left_behind = Tenant::ending_on_term(&node.home);
    node.hold(&left_behind, 0, "used: 1GiB");
    let tick = node.tick();
    until("the exporter to see it", || (node.tick() > tick + 1).then_some(()));
    for id in ["0", "1"] {
        let mut script = fixture.script("gone", "read id < <(GPU.py --get); echo $id");
        assert_eq!(first_line(&mut script), id);
        script.wait().unwrap();
    }
    let output =
        fixture.gpu_py(&["--redis-purge"]).env("BAILIFF_STREAM", node.home.stream()).output().unwrap();
    assert_eq!(stdout_of(&output), "");
    let printed = format!(
        "GPU.py: GPU 0: the process that took it has exited, but processes [{}] compute on it; not freed\n",
        left_behind.pid()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), printed);
    assert_eq!(fixture.states(), ["leased", "idle"]);
    assert_eq!(fixture.run(&["--redis-purge"]), "");
    assert_eq!(
        fixture.states(),
        ["idle", "idle"],
        "without an exporter, the process on the GPU is not known"
    );
}

#[test]
fn unusable_server_message_matches_the_original() {
    let fixture = Fixture::new();
    let mut original = fixture.legacy(1);
    original.query(&["SET", "GPU_MANAGED", "a text"]);
    let wrong = error_message(&fixture.gpu_py(&["--idle"]).output().unwrap(), 1);
    assert!(wrong.contains("WRONGTYPE") || wrong.contains("wrong kind"), "{wrong}");
    original.query(&["DEL", "GPU_MANAGED"]);
    original.query(&["CONFIG", "SET", "requirepass", "secret"]);
    let text = "Can not connect to Redis server, try to start server first.\n";
    let address = |query: &str| format!("{}?{query}", fixture.redis.address());
    for address in [fixture.redis.address(), address("pass=wrong"), "redis+unix:///nowhere.sock".to_owned()] {
        let output = fixture.gpu_py(&["--idle"]).env("LEASE_REDIS_URL", &address).output().unwrap();
        assert_eq!(output.status.code(), Some(255), "{address}: {output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{address}");
    }
    let output = fixture.gpu_py(&["--idle"]).env("LEASE_REDIS_URL", address("pass=secret")).output().unwrap();
    assert_eq!(stdout_of(&output), "There is 0 IDDLE GPUs, IDs:");
}
