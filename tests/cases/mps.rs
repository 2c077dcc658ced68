//! Tests `bailiff mps` with a stand-in for MPS, the fake driver, and an `nvidia-smi` that records its
//! arguments.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use end_to_end::fake::Scenario;
use end_to_end::mps::Mps;
use end_to_end::programs;
use end_to_end::wait::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const NOBODY_UID: u32 = 65534;

/// A machine with two GPUs, whose UUIDs are unique to this test.
struct Machine {
    scenario: Scenario,
    mps: Mps,
    driver: String,
    number: u32,
}

impl Machine {
    fn new(release: &'static str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let driver = format!("{release}.163.01");
        let machine = Self { scenario: Scenario::new("gpus: []"), mps: Mps::of(release), driver, number };
        machine.modes(["default", "default"]);
        machine
    }

    /// Returns the UUID of a GPU by its number.
    fn uuid(&self, index: usize) -> String {
        format!("GPU-{:08x}-{:04x}-4000-8000-{index:012x}", std::process::id(), self.number)
    }

    /// Sets the compute modes that the driver reports.
    fn modes(&self, modes: [&str; 2]) {
        self.gpus([&format!("compute_mode: {}", modes[0]), &format!("compute_mode: {}", modes[1])]);
    }

    fn gpus(&self, texts: [&str; 2]) {
        let [first, second] = texts;
        self.scenario.set(&format!(
            "driver: {}\nrecheck: 0us\ngpus:\n  - {{uuid: {}, {first}}}\n  - {{uuid: {}, {second}}}\n",
            self.driver,
            self.uuid(0),
            self.uuid(1)
        ));
    }

    fn bailiff(&self, name: &str, args: &[&str]) -> Command {
        let mut command = self.mps.command(&programs::bailiff(), name);
        command.arg("mps").args(args).arg("--nvml-library").arg(programs::fake_nvml());
        command.arg("--pipe-dir").arg(self.mps.pipes(name));
        command.env("FAKE_NVML_SCENARIO", self.scenario.path()).env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// Runs the command and returns its exit code and output.
    fn run(&self, name: &str, args: &[&str]) -> (Option<i32>, String) {
        code_and_output(&self.bailiff(name, args).output().unwrap())
    }

    /// Starts the command in the background.
    fn spawn(&self, name: &str, args: &[&str]) -> Child {
        let mut command = self.bailiff(name, args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn status(&self, name: &str) -> (Option<i32>, Value) {
        let output = self.bailiff(name, &["status", "--json"]).output().unwrap();
        let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code(), json)
    }
}

fn code_and_output(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn daemon_is_started_listed_and_stopped() {
    let machine = Machine::new("550");
    let (code, printed) = machine.run("a", &["start", "--gpu", "1"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("+ nvidia-smi -i 1 -c EXCLUSIVE_PROCESS\n"), "{printed}");
    assert!(printed.contains(&format!("CUDA_VISIBLE_DEVICES={}", machine.uuid(1))), "{printed}");
    assert!(
        printed.contains("nvidia-cuda-mps-control -d\n") && printed.contains("the daemon is ready"),
        "{printed}"
    );
    assert_eq!(machine.mps.smi_calls(), ["-i 1 -c EXCLUSIVE_PROCESS"]);
    machine.modes(["default", "exclusive_process"]);
    let (code, printed) = machine.run("a", &["start", "--gpu", "1"]);
    assert_eq!(code, Some(69), "{printed}");
    assert!(printed.contains("a daemon is already running"), "{printed}");
    let (code, printed) = machine.run("a", &["stop"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("+ echo quit | "), "{printed}");
    assert_eq!(machine.mps.smi_calls(), ["-i 1 -c EXCLUSIVE_PROCESS", "-i 1 -c DEFAULT"]);
    let (code, report) = machine.status("a");
    assert_eq!((code, report["daemons"].as_array().unwrap().len()), (Some(0), 0), "{report}");
    assert_eq!(machine.run("a", &["stop"]).0, Some(69));
}

#[test]
fn root_starts_no_daemon_in_a_directory_of_another_user() {
    let machine = Machine::new("550");
    let pipes = machine.mps.pipes("a");
    std::fs::create_dir_all(&pipes).unwrap();
    let refused = |why: &str| {
        let (code, printed) = machine.run("a", &["start", "--gpu", "1"]);
        assert!(code == Some(69) && printed.contains(why), "{printed}");
        printed
    };
    std::os::unix::fs::chown(&pipes, Some(4002), None).unwrap();
    refused("must be a directory that only root can change");
    std::os::unix::fs::chown(&pipes, Some(0), None).unwrap();
    std::fs::set_permissions(&pipes, std::fs::Permissions::from_mode(0o777)).unwrap();
    refused("must be a directory that only root can change");
    std::fs::set_permissions(&pipes, std::fs::Permissions::from_mode(0o755)).unwrap();
    let above = pipes.parent().unwrap();
    std::os::unix::fs::chown(above, Some(4002), None).unwrap();
    let printed = refused("another user can replace it");
    std::os::unix::fs::chown(above, Some(0), None).unwrap();
    assert!(machine.mps.smi_calls().is_empty(), "{printed}");
    // A user can mount a file system over a directory of the user in `/tmp` (`fusermount3`), and report any owner.
    std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let mount = |program: &str, args: &[&str]| {
        Command::new(program).args(args).arg(&pipes).status().unwrap().success()
    };
    assert!(mount("mount", &["-t", "tmpfs", "-o", "mode=755", "none"]));
    let printed = refused("a mount point in a directory that all users can write to");
    assert!(mount("umount", &[]));
    assert!(machine.mps.smi_calls().is_empty(), "{printed}");
}

#[test]
fn status_lists_servers_clients_and_limits_in_80_columns() {
    for (release, status) in [("550", "active"), ("535", "unknown")] {
        let machine = Machine::new(release);
        machine.mps.start("a", &machine.uuid(0));
        let client = machine.mps.client("a");
        let _ = machine.mps.query("a", "set_default_device_pinned_mem_limit 0 3G");
        let (code, report) = machine.status("a");
        let daemon = &report["daemons"][0];
        assert_eq!((code, &daemon["state"]), (Some(0), &"answers".into()), "{report}");
        assert_eq!(daemon["pid"], machine.mps.daemon("a"));
        assert_eq!(
            (&daemon["log"], &daemon["default_memory_limits"]["0"]),
            (&"readable".into(), &(3_u64 << 30).into())
        );
        let server = &daemon["servers"][0];
        assert_eq!(
            (&server["status"], &server["thread_percentage"]),
            (&status.into(), &100.0.into()),
            "{report}"
        );
        assert_eq!(server["clients"][0]["pid"], client.pid());
        assert_eq!(server["clients"][0]["command"], "./nbody -n 4096");
        let any_user = report["warnings"].to_string().contains("any user can change");
        assert_eq!(any_user, release == "535", "{report}");
        let (_, text) = machine.run("a", &["status"]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("./nbody -n 4096") && text.contains("GPU 0    DEFAULT"), "{text}");
    }
}

#[test]
fn fault_is_reported_as_a_warning() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    let client = machine.mps.client("a");
    assert!(client.first.starts_with("connected"), "{}", client.first);
    let _ = machine.mps.query("a", &format!("fake_fault {}", machine.mps.server("a")));
    let (_, report) = machine.status("a");
    assert_eq!(report["daemons"][0]["servers"][0]["status"], "fault");
    assert!(report["warnings"].to_string().contains("FAULT"), "{report}");
}

#[test]
fn hung_daemon_is_reported_within_5_seconds() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    machine.mps.signal("a", Signal::STOP);
    let began = Instant::now();
    let (code, report) = machine.status("a");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((code, &report["daemons"][0]["state"]), (Some(1), &"hung".into()), "{report}");
    assert!(report["warnings"].to_string().contains("hang as well"), "{report}");
    for args in [["start"], ["stop"]] {
        let (code, printed) = machine.run("a", &args);
        assert_eq!(code, Some(69), "{printed}");
        assert!(printed.contains("hangs") && printed.contains("stop it manually"), "{printed}");
    }
    assert!(machine.mps.smi_calls().is_empty());
    machine.mps.signal("a", Signal::CONT);
    until("the daemon's reply", || {
        (machine.mps.query("a", "get_default_active_thread_percentage") == "100.0\n").then_some(())
    });
}

#[test]
fn stale_pipe_directory_is_reported_and_reusable() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    machine.modes(["exclusive_process", "default"]);
    machine.mps.signal("a", Signal::KILL);
    let report = until("the exit", || {
        let (_, report) = machine.status("a");
        (report["daemons"][0]["state"] == "stale").then_some(report)
    });
    assert!(report["warnings"].to_string().contains("is stale"), "{report}");
    assert!(report["warnings"].to_string().contains("no daemon is running"), "{report}");
    let (code, printed) = machine.run("a", &["start", "--gpu", "0"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(machine.mps.smi_calls().is_empty(), "the compute mode was already exclusive");
}

#[test]
fn start_over_a_leftover_server_is_refused() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    let _client = machine.mps.client("a");
    machine.mps.signal("a", Signal::KILL);
    let orphan = machine.mps.server("a");
    until("the exit", || (machine.run("a", &["stop"]).0 == Some(69)).then_some(()));
    let (code, printed) = machine.run("a", &["start", "--gpu", "0"]);
    assert_eq!(code, Some(75), "{printed}");
    assert!(printed.contains(&format!("server {orphan} of an exited daemon")), "{printed}");
    assert_eq!(machine.status("a").1["orphans"][0]["pid"], orphan);
    assert_eq!(machine.mps.servers("a"), [orphan], "the server is still running");
}

#[test]
fn stop_with_active_clients_is_refused() {
    let machine = Machine::new("550");
    assert_eq!(machine.run("a", &["start", "--gpu", "0"]).0, Some(0));
    machine.modes(["exclusive_process", "default"]);
    let client = machine.mps.client("a");
    let (code, printed) = machine.run("a", &["stop"]);
    assert_eq!(code, Some(75), "{printed}");
    assert!(printed.contains(&format!("process {} uses", client.pid())), "{printed}");
    assert_eq!(machine.mps.servers("a"), [machine.mps.server("a")]);
    let (code, printed) = machine.run("a", &["stop", "--force", "--timeout", "1s"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("+ echo quit -t 1 | "), "{printed}");
    assert_eq!(machine.mps.smi_calls().last().unwrap(), "-i 0 -c DEFAULT");
    assert!(machine.mps.servers("a").is_empty());
}

#[test]
fn compute_modes_stay_while_clients_are_listed() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    machine.gpus([
        "compute_mode: exclusive_process, processes: [{pid: 4100, kind: mps}]",
        "compute_mode: default",
    ]);
    let (code, printed) = machine.run("a", &["stop"]);
    assert_eq!(code, Some(75), "{printed}");
    assert!(printed.contains("still has MPS clients (4100)"), "{printed}");
    assert!(machine.mps.smi_calls().is_empty());
}

#[test]
fn refused_quit_changes_nothing() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    let mut command = machine.bailiff("a", &["stop"]);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let (code, printed) = code_and_output(&command.output().unwrap());
    assert_eq!(code, Some(69), "{printed}");
    assert!(printed.contains("Not enough privilege"), "{printed}");
    assert_eq!(machine.status("a").1["daemons"][0]["state"], "answers");
    assert!(machine.mps.smi_calls().is_empty());
}

#[test]
fn failed_start_restores_the_compute_modes() {
    let machine = Machine::new("550");
    machine.modes(["default", "exclusive_process"]);
    let mut command = machine.bailiff("a", &["start"]);
    let (code, printed) = code_and_output(&command.env("FAKE_MPS_NO_START", "1").output().unwrap());
    assert_eq!(code, Some(69), "{printed}");
    assert!(printed.contains("did not start: Failed to start the daemon"), "{printed}");
    assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS", "-i 0 -c DEFAULT"]);
}

#[test]
fn start_refuses_invalid_options() {
    let machine = Machine::new("550");
    let cases: [(&[&str], i32, &str); 3] = [
        (&["start", "--gpu", "7"], 64, "there is no GPU 7"),
        (&["start", "--log-dir", "logs"], 64, "must be absolute"),
        (&["start", "--mps-control", "/nonexistent/control"], 69, "cannot run"),
    ];
    for (args, expected, why) in cases {
        let (code, printed) = machine.run("a", args);
        assert_eq!(code, Some(expected), "{printed}");
        assert!(printed.contains(why), "{printed}");
    }
    machine.gpus(["processes: [{pid: 4100}]", "compute_mode: prohibited"]);
    let (code, printed) = machine.run("a", &["start", "--gpu", "0"]);
    assert_eq!((code, printed.contains("process 4100 uses GPU 0")), (Some(75), true), "{printed}");
    let (code, printed) = machine.run("a", &["start", "--gpu", "1"]);
    assert_eq!((code, printed.contains("PROHIBITED")), (Some(69), true), "{printed}");
    assert!(machine.mps.smi_calls().is_empty());
}

#[test]
fn dry_run_prints_commands_and_runs_none() {
    let machine = Machine::new("550");
    let (code, printed) = machine.run("a", &["start", "--dry-run"]);
    assert_eq!(code, Some(0), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(
        lines[..2],
        ["+ nvidia-smi -i 0 -c EXCLUSIVE_PROCESS", "+ nvidia-smi -i 1 -c EXCLUSIVE_PROCESS"]
    );
    assert!(lines[2].ends_with("nvidia-cuda-mps-control -d"), "{printed}");
    assert!(machine.mps.smi_calls().is_empty());
    assert!(machine.status("a").1["daemons"].as_array().unwrap().is_empty());
}

#[test]
fn two_daemons_are_distinguished_by_pipe_directory() {
    let machine = Machine::new("550");
    assert_eq!(machine.run("a", &["start", "--gpu", "0"]).0, Some(0));
    machine.modes(["exclusive_process", "default"]);
    assert_eq!(machine.run("b", &["start", "--gpu", "1"]).0, Some(0));
    machine.modes(["exclusive_process", "exclusive_process"]);
    let client = machine.mps.client("b");
    let (_, of_a) = machine.status("a");
    let (_, of_b) = machine.status("b");
    assert_eq!(of_a["daemons"].as_array().unwrap().len(), 1, "{of_a}");
    assert_eq!(of_a["daemons"][0]["servers"].as_array().unwrap().len(), 0, "{of_a}");
    assert_eq!(of_b["daemons"][0]["servers"][0]["clients"][0]["pid"], client.pid(), "{of_b}");
    let (code, printed) = machine.run("a", &["stop"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(machine.mps.smi_calls().last().unwrap(), "-i 0 -c DEFAULT");
    assert_eq!(machine.status("b").1["daemons"][0]["state"], "answers");
    assert_eq!(machine.run("b", &["stop"]).0, Some(75));
}

#[test]
fn stop_after_a_failed_server_start_restores_the_gpu() {
    for round in 0..5 {
        let machine = Machine::new("550");
        let mut command = machine.bailiff("a", &["start", "--gpu", "0"]);
        let (code, printed) = code_and_output(&command.env("FAKE_MPS_NO_GPU", "1").output().unwrap());
        assert_eq!(code, Some(0), "{printed}");
        machine.modes(["exclusive_process", "default"]);
        assert_eq!(machine.mps.client("a").first, "805");
        let (code, printed) = machine.run("a", &["stop"]);
        assert_eq!(code, Some(0), "run {round}: {printed}");
        assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS", "-i 0 -c DEFAULT"], "{printed}");
    }
}

#[test]
fn stop_of_a_daemon_that_does_not_quit_reports_its_client() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    machine.modes(["exclusive_process", "default"]);
    let control = machine.mps.bin().join("nvidia-cuda-mps-control").display().to_string();
    let wrapped_control = machine.mps.wrapped_control(&format!(
        "read word; [ \"$word\" = quit ] && {{ echo no room >&2; exit 1; }}; echo \"$word\" | {control}"
    ));
    let (code, printed) = machine.run("a", &["stop", "--mps-control", wrapped_control.to_str().unwrap()]);
    assert_eq!(code, Some(75), "{printed}");
    assert!(printed.contains("is still running") && printed.contains("no room"), "{printed}");
    assert!(machine.mps.smi_calls().is_empty(), "{printed}");
}

#[test]
fn foreground_on_sigterm_restores_the_gpus() {
    let machine = Machine::new("550");
    let mut command = machine.bailiff("a", &["start", "--gpu", "0", "--foreground"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "the daemon is ready"));
    assert!(machine.mps.client("a").first.starts_with("connected"));
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS", "-i 0 -c DEFAULT"]);
}

#[test]
fn foreground_after_a_failed_server_start_exits_with_0() {
    let machine = Machine::new("550");
    let mut command = machine.bailiff("a", &["start", "--gpu", "0", "--foreground"]);
    let mut child = command.env("FAKE_MPS_NO_GPU", "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "the daemon is ready"));
    assert_eq!(machine.mps.client("a").first, "805");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS", "-i 0 -c DEFAULT"]);
}

#[test]
fn log_that_is_no_regular_file_is_not_opened() {
    let machine = Machine::new("550");
    let logs = machine.mps.pipes("logs");
    std::fs::create_dir(&logs).unwrap();
    mknodat(CWD, logs.join("control.log"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let pipes = machine.mps.pipes("a").display().to_string();
    let variables =
        [("CUDA_MPS_PIPE_DIRECTORY", &*pipes), ("CUDA_MPS_LOG_DIRECTORY", logs.to_str().unwrap())];
    let _impostor = machine.mps.impostor("nvidia-cuda-mps-control", NOBODY_UID, &variables);
    let status = Background(machine.spawn("a", &["status", "--json"]));
    let report: Value = serde_json::from_str(&status.finish().1).unwrap();
    assert_eq!(report["daemons"][0]["log"], "no_file", "{report}");
}

/// A background command that is killed with the test.
struct Background(Child);

impl Background {
    /// Waits for the command to exit; returns its exit code and output.
    fn finish(mut self) -> (Option<i32>, String) {
        until("the exit", || self.0.try_wait().unwrap());
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code(), text)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn process_of_another_user_affects_no_start_or_stop() {
    let machine = Machine::new("550");
    let (pipes, uuid) = (machine.mps.pipes("a").display().to_string(), machine.uuid(1));
    let variables = [("CUDA_MPS_PIPE_DIRECTORY", &*pipes), ("CUDA_VISIBLE_DEVICES", &*uuid)];
    let _daemon = machine.mps.impostor("nvidia-cuda-mps-control", NOBODY_UID, &variables);
    let _server = machine.mps.impostor("nvidia-cuda-mps-server", NOBODY_UID, &variables);
    let (code, printed) = machine.run("a", &["start", "--gpu", "0"]);
    assert_eq!(code, Some(0), "{printed}");
    machine.modes(["exclusive_process", "exclusive_process"]);
    let (code, printed) = machine.run("a", &["stop"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS", "-i 0 -c DEFAULT"], "{printed}");
}

#[test]
fn listed_server_of_another_user_counts() {
    let machine = Machine::new("550");
    let pipes = machine.mps.pipes("a").display().to_string();
    let variables = [("CUDA_MPS_PIPE_DIRECTORY", &*pipes)];
    let server = machine.mps.impostor("nvidia-cuda-mps-server", NOBODY_UID, &variables);
    machine.gpus([
        "compute_mode: default",
        &format!("compute_mode: default, processes: [{{pid: {}}}]", server.0.id()),
    ]);
    let (code, printed) = machine.run("a", &["start", "--gpu", "0"]);
    assert_eq!(code, Some(75), "{printed}");
    assert!(printed.contains(&format!("server {} of an exited daemon", server.0.id())), "{printed}");
}

#[test]
fn gpus_reported_by_another_users_daemon_are_ignored() {
    let machine = Machine::new("550");
    let mut command = machine.mps.command(&machine.mps.bin().join("nvidia-cuda-mps-control"), "a");
    command.arg("-d").env("CUDA_VISIBLE_DEVICES", machine.uuid(1));
    for directory in [machine.mps.pipes("a"), machine.mps.logs("a")] {
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
    }
    std::os::unix::process::CommandExt::uid(&mut command, NOBODY_UID);
    assert!(command.status().unwrap().success());
    machine.modes(["exclusive_process", "exclusive_process"]);
    let (code, printed) = machine.run("a", &["stop"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("the daemon's GPUs are unknown"), "{printed}");
    assert!(machine.mps.smi_calls().is_empty());
}

#[test]
fn foreground_with_a_leftover_server_keeps_gpu_modes() {
    let machine = Machine::new("550");
    let mut beside = Background(machine.spawn("a", &["start", "--gpu", "0", "--foreground"]));
    let mut lines = BufReader::new(beside.0.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "the daemon is ready"));
    let _client = machine.mps.client("a");
    let server = machine.mps.server("a");
    machine.mps.signal("a", Signal::KILL);
    let (code, printed) = beside.finish();
    assert_eq!(code, Some(69), "{printed}");
    assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS"], "{printed}");
    assert!(
        printed.contains(&format!("server {server} ")) && printed.contains("nvidia-smi -i 0"),
        "{printed}"
    );
}

#[test]
fn silent_started_daemon_keeps_gpu_modes() {
    for form in [&["start", "--gpu", "0"][..], &["start", "--gpu", "0", "--foreground"]] {
        let machine = Machine::new("550");
        let wrapped_control = machine.mps.wrapped_control("exec sleep 1000").display().to_string();
        let mut start =
            Background(machine.spawn("a", &[form, &["--mps-control", &wrapped_control]].concat()));
        until("the exit", || start.0.try_wait().unwrap());
        // The daemon is still running and has the output files open.
        machine.mps.signal("a", Signal::KILL);
        let (code, printed) = start.finish();
        assert_eq!(code, Some(69), "{printed}");
        assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS"], "{printed}");
        assert!(printed.contains("did not respond") && printed.contains("nvidia-smi -i 0"), "{printed}");
    }
}

/// Returns whether a process is waiting for a file lock.
fn waits_for_a_lock(pid: u32) -> bool {
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let pid = pid.to_string();
    locks.lines().any(|line| line.contains("->") && line.split_whitespace().any(|word| word == pid))
}

#[test]
fn two_concurrent_starts_start_one_daemon() {
    let machine = Machine::new("550");
    let smi = machine.mps.slow_smi().display().to_string();
    let first = Background(machine.spawn("a", &["start", "--gpu", "0", "--nvidia-smi", &smi]));
    until("the command sets a mode", || (!machine.mps.smi_calls().is_empty()).then_some(()));
    let mut second = Background(machine.spawn("a", &["start", "--gpu", "0"]));
    until("the command is waiting or has exited", || {
        (waits_for_a_lock(second.0.id()) || second.0.try_wait().unwrap().is_some()).then_some(())
    });
    machine.mps.go();
    let (first, second) = (first.finish(), second.finish());
    assert_eq!((first.0, second.0), (Some(0), Some(69)), "{first:?} {second:?}");
    assert!(
        !machine.mps.smi_calls().iter().any(|line| line.contains("DEFAULT")),
        "{:?}",
        machine.mps.smi_calls()
    );
}

#[test]
fn sigterm_before_the_daemon_starts_restores_the_modes() {
    let machine = Machine::new("550");
    let smi = machine.mps.slow_smi().display().to_string();
    let start = Background(machine.spawn("a", &["start", "--gpu", "0", "--nvidia-smi", &smi]));
    until("the command sets a mode", || (!machine.mps.smi_calls().is_empty()).then_some(()));
    start.signal(Signal::INT);
    machine.mps.go();
    let (code, printed) = start.finish();
    assert_eq!(code, Some(130), "{printed}");
    assert_eq!(machine.mps.smi_calls(), ["-i 0 -c EXCLUSIVE_PROCESS", "-i 0 -c DEFAULT"], "{printed}");
    assert!(!printed.contains("the daemon is ready"), "{printed}");
}

#[test]
fn daemons_are_queried_concurrently() {
    let machine = Machine::new("550");
    let names = ["a", "b", "c", "d"];
    for name in names {
        machine.mps.start(name, &machine.uuid(0));
    }
    // The stand-in replies to the first query once four queries are waiting.
    let queries = machine.mps.pipes("asks").display().to_string();
    let wrapped_control = machine.mps.wrapped_control(&format!(
        "echo >> {queries}; until [ $(wc -l < {queries}) -ge 4 ]; do sleep 0.02; done"
    ));
    let mut command = machine.mps.command(&programs::bailiff(), "a");
    command.args(["mps", "status", "--json", "--mps-control"]).arg(wrapped_control);
    command
        .arg("--nvml-library")
        .arg(programs::fake_nvml())
        .env("FAKE_NVML_SCENARIO", machine.scenario.path());
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in names {
        let place = machine.mps.pipes(name).display().to_string();
        let daemons = report["daemons"].as_array().unwrap();
        let daemon = daemons.iter().find(|daemon| daemon["pipe_dir"] == *place).unwrap();
        assert_eq!(daemon["state"], "answers", "{daemon}");
    }
}

#[test]
fn daemon_that_falls_silent_is_not_queried_again() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    let queries = machine.mps.pipes("asks").display().to_string();
    let wrapped_control = machine.mps.wrapped_control(&format!(
        "read question; echo $question >> {queries}; [ \"$question\" = get_server_list ] || exec sleep 1000"
    ));
    let args = ["status", "--json", "--mps-control", wrapped_control.to_str().unwrap()];
    let output = machine.bailiff("a", &args).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["daemons"][0]["state"], "hung", "{report}");
    let queries = std::fs::read_to_string(queries).unwrap();
    assert_eq!(queries, "get_server_list\nget_default_active_thread_percentage\n");
}

#[test]
fn daemon_output_is_escaped_on_a_terminal() {
    let machine = Machine::new("550");
    machine.mps.start("a", &machine.uuid(0));
    let wrapped_control =
        machine.mps.wrapped_control("printf '\\033]0;title\\007\\033[2J' >&2; exit 3").display().to_string();
    for args in
        [&["start", "--mps-control", &wrapped_control][..], &["stop", "--mps-control", &wrapped_control]]
    {
        let (code, printed) = machine.run("a", args);
        assert_eq!(code, Some(69), "{printed:?}");
        assert!(printed.contains("title") && !printed.contains(['\u{1b}', '\u{7}']), "{printed:?}");
    }
}
