//! Tests the exporter's MPS metrics with a stand-in for NVIDIA's MPS. The output and the logs of daemons are exported.
//! A daemon that is silent, dead or refuses queries affects only its own metrics. Logs can contain anything.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, compares exact figures and fails loudly"
)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use end_to_end::cuda::Running;
use end_to_end::exporter::{self, Exporter, TICKS};
use end_to_end::fake::Scenario;
use end_to_end::http;
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::wait::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const NOBODY_UID: u32 = 65534;
const UUID: &str = "GPU-00000000-0000-4000-8000-000000000001";

/// An MPS daemon with its own directories.
struct Mps {
    directory: tempfile::TempDir,
    daemon: Running,
}

impl Mps {
    fn start(release: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), release, 0)
    }

    /// Starts a user's daemon in this directory, to which other users may have access.
    fn start_in(directory: tempfile::TempDir, release: &str, uid: u32) -> Self {
        chown(directory.path(), Some(uid), Some(uid)).unwrap();
        let mut command = Command::new(programs::built("nvidia-cuda-mps-control"));
        command.arg("-f").env("FAKE_MPS_RELEASE", release).uid(uid).gid(uid);
        let mps = Self { daemon: Running(places(&directory, &mut command).spawn().unwrap()), directory };
        until("the daemon responds", || mps.query("get_server_list\n").then_some(()));
        mps
    }

    fn pid(&self) -> String {
        self.daemon.0.id().to_string()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join("logs").join(name)
    }

    fn write(&self, name: &str, text: &[u8]) {
        let file = OpenOptions::new().create(true).append(true).open(self.log(name));
        file.unwrap().write_all(text).unwrap();
    }

    /// Starts a program that computes under the daemon. Returns it and the pid of its server.
    fn client(&self) -> (Running, u32) {
        let mut command = Command::new(programs::built("fake-mps-client"));
        let mut child = places(&self.directory, &mut command).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let server = line.trim().strip_prefix("connected ").unwrap_or_else(|| panic!("{line}"));
        (Running(child), server.parse().unwrap())
    }

    /// Sends a command as an administrator would.
    fn send(&self, text: &str) {
        assert!(self.query(text));
    }

    /// Sends a query and returns whether the daemon was running.
    fn query(&self, text: &str) -> bool {
        let mut command = Command::new(programs::built("nvidia-cuda-mps-control"));
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = places(&self.directory, &mut command).spawn().unwrap();
        // The process may already have exited if no daemon is listening.
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        child.wait().unwrap().success()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemon.0), signal).unwrap();
    }

    /// Returns a metric of this daemon, independent of other daemons on this machine.
    fn of(&self, page: &Page, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let directory = self.directory.path().join("pipes").display().to_string();
        page.value(&format!("bailiff_mps_{name}"), &[&[("pipe_directory", &*directory)], labels].concat())
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        // Servers are children of the daemon and keep running after it exits.
        for server in end_to_end::holder::children(self.daemon.0.id()) {
            let pid = Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn places<'a>(directory: &tempfile::TempDir, command: &'a mut Command) -> &'a mut Command {
    command.env("CUDA_MPS_PIPE_DIRECTORY", directory.path().join("pipes"));
    command.env("CUDA_MPS_LOG_DIRECTORY", directory.path().join("logs"))
}

fn scenario(held: &[(u32, &str)]) -> String {
    let one = |(pid, kind): &(u32, &str)| format!("{{pid: {pid}, used: 1GiB, sm: 0, kind: {kind}}}");
    let held: Vec<String> = held.iter().map(one).collect();
    format!("sampling_period: 20ms\ngpus:\n  - uuid: {UUID}\n    processes: [{}]\n", held.join(", "))
}

fn watch(scenario: &Scenario, control: &str, interval: &str) -> Exporter {
    let flags = ["--deadline", "10s", "--mps.control", control, "--mps.interval", interval];
    Exporter::start(scenario, &flags)
}

fn control() -> String {
    programs::built("nvidia-cuda-mps-control").display().to_string()
}

/// Returns a script that replaces NVIDIA's client.
fn script(directory: &tempfile::TempDir, text: &str) -> String {
    let path = directory.path().join("client");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn daemon_output_of_both_releases_is_exported() {
    for (release, status) in [("550", Some(1.0)), ("535", None)] {
        let mps = Mps::start(release);
        mps.send("set_default_device_pinned_mem_limit 0 2G\n");
        let scenario = Scenario::new(&scenario(&[]));
        let exporter = watch(&scenario, &control(), "100ms");
        exporter.until("the daemon responds", |page| {
            mps.of(page, "control_responsive", &[]).filter(|answers| *answers == 1.0)
        });
        let page = exporter.next();
        assert_eq!(mps.of(&page, "control_up", &[]), Some(1.0));
        assert_eq!(mps.of(&page, "server_info", &[]), None);
        assert_eq!(mps.of(&page, "default_active_thread_ratio", &[]), Some(1.0));
        let limit = mps.of(&page, "default_pinned_memory_limit_bytes", &[("device", "0")]);
        assert_eq!(limit, Some(2_147_483_648.0));
        assert_eq!(page.value("bailiff_source_up", &[("source", "mps")]), Some(1.0));
        assert_eq!(
            mps.of(&page, "server_starts_total", &[]),
            Some(0.0),
            "no server has started since the first observation"
        );
        let (client, server) = mps.client();
        scenario.set(&self::scenario(&[(server, "compute"), (client.0.id(), "[compute, mps]")]));
        let server = [("server", &*server.to_string())];
        exporter.until("the client is exported", |page| {
            mps.of(page, "clients", &server).filter(|clients| *clients == 1.0)
        });
        let page = exporter.next();
        let active = [&server[..], &[("status", "active")]].concat();
        assert_eq!(mps.of(&page, "server_status", &active), status, "{release}");
        let pid = client.0.id().to_string();
        let named = [&server[..], &[("pid", &*pid)]].concat();
        assert_eq!(mps.of(&page, "client_info", &named), Some(1.0));
        let kinds = [("pid", &*pid), ("context", "M+C")];
        assert_eq!(page.value("bailiff_process_gpu_context_info", &kinds), Some(1.0));
        assert_eq!(page.value("bailiff_process_gpu_memory_bytes", &[("pid", &*pid)]), Some(1_073_741_824.0));
        assert_eq!(mps.of(&page, "server_starts_total", &[]), Some(1.0));
        assert_eq!(mps.of(&page, "log_state", &[("log", "server"), ("state", "read")]), Some(1.0));
        assert_eq!(mps.of(&page, "log_unparsed_lines_total", &[]), Some(0.0), "every log line is parsed");
        let shown = http::get(exporter.address(), "/", &[]).unwrap().text();
        assert!(shown.contains(">MPS</h2>") && shown.contains("control daemon"), "{shown}");
        if status.is_some() {
            mps.send(&format!("fake_fault {}\n", server[0].1));
            let fault = [&server[..], &[("status", "fault")]].concat();
            exporter.until("the fault is exported", |page| mps.of(page, "server_status", &fault));
            exporter.until("and counted", |page| {
                mps.of(page, "client_faults_total", &[]).filter(|faults| *faults == 1.0)
            });
        }
    }
}

#[test]
fn stopped_daemon_is_reported_at_the_next_sample() {
    let mps = Mps::start("550");
    let scenario = Scenario::new(&scenario(&[]));
    // The daemon is queried once a minute, but its processes are read at each tick.
    let exporter = watch(&scenario, &control(), "1m");
    let responsive = |expected| {
        exporter.until("the server responds or closes", |page| {
            mps.of(page, "control_responsive", &[]).filter(|answers| *answers == expected)
        })
    };
    responsive(1.0);
    mps.signal(Signal::STOP);
    responsive(0.0);
    let page = exporter.next();
    assert_eq!(mps.of(&page, "control_fault_info", &[("reason", "stopped")]), Some(1.0));
    assert_eq!(mps.of(&page, "query_seconds", &[]), None);
    assert_eq!(mps.of(&page, "control_up", &[]), Some(1.0));
    assert_eq!(mps.of(&page, "log_state", &[("log", "control"), ("state", "read")]), Some(1.0));
    mps.signal(Signal::CONT);
    responsive(1.0);
}

#[test]
fn silent_daemon_is_reported_and_its_query_ended() {
    let mps = Mps::start("550");
    let directory = tempfile::tempdir().unwrap();
    let query = directory.path().join("asks");
    let client = script(&directory, &format!("echo $$ >> {}; exec sleep 1000", query.display()));
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, &client, "1m");
    let pids = || fs::read_to_string(&query).unwrap_or_default();
    until("the daemon is queried", || pids().contains('\n').then_some(()));
    // Ticks continue during the query.
    let (tick, page) = (exporter.tick(), exporter.next());
    assert!(exporter.tick() >= tick + 2.0);
    assert_eq!(mps.of(&page, "control_up", &[]), Some(1.0));
    exporter.until("the timeout is exported", |page| {
        mps.of(page, "control_fault_info", &[("reason", "timeout")])
    });
    assert_eq!(mps.of(&exporter.next(), "control_responsive", &[]), Some(0.0));
    for pid in pids().split_whitespace() {
        until("the query process is gone", || (!fs::exists(format!("/proc/{pid}")).unwrap()).then_some(()));
    }
}

#[test]
fn unavailable_queries_are_reported() {
    let mps = Mps::start("550");
    let directory = tempfile::tempdir().unwrap();
    let refuses = script(&directory, "echo 'Insufficient privileges for UID 65534'");
    let alone = "echo 'Cannot find MPS control daemon process' >&2; exit 1";
    let lost = tempfile::tempdir().unwrap();
    let cases = [
        (refuses, "not_permitted"),
        (script(&lost, alone), "unreachable"),
        ("/nonexistent/nvidia-cuda-mps-control".to_owned(), "no_program"),
    ];
    let scenario = Scenario::new(&scenario(&[]));
    for (client, reason) in cases {
        let exporter = watch(&scenario, &client, "100ms");
        exporter.until(reason, |page| mps.of(page, "control_fault_info", &[("reason", reason)]));
        let page = exporter.next();
        assert_eq!(mps.of(&page, "control_responsive", &[]), None, "the state is unknown");
        assert_eq!(mps.of(&page, "control_up", &[]), Some(1.0));
        assert_eq!(page.value("bailiff_source_up", &[("source", "mps")]), Some(0.0));
    }
    let exporter = watch(&scenario, "", "100ms");
    exporter.until("the log is exported", |page| mps.of(page, "log_state", &[("log", "control")]));
    assert_eq!(mps.of(&exporter.next(), "control_fault_info", &[]), None, "the daemon was not queried");
}

/// Root's daemon runs in a mount namespace with its own directories. Outside that namespace, a user's daemon has the
/// same paths.
#[test]
fn daemon_at_the_path_of_another_is_not_confused() {
    let directory = tempfile::tempdir().unwrap();
    let users = Mps::start_in(directory, "535", NOBODY_UID);
    users.send("set_default_active_thread_percentage 7\n");
    let mut command = Command::new("unshare");
    let hide = "mount -t tmpfs none \"$1\" && echo hidden && exec \"$2\" -f";
    command.args(["--mount", "sh", "-c", hide, "-"]).arg(users.directory.path());
    command.arg(programs::built("nvidia-cuda-mps-control")).stdout(Stdio::piped());
    let mut hidden = Running(places(&users.directory, &mut command).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(hidden.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hidden\n");
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, &control(), "100ms");
    let pid = hidden.0.id().to_string();
    exporter.until("the daemon is exported", |page| {
        users.of(page, "control_info", &[("pid", &*pid), ("uid", "0")])
    });
    exporter.until("the reason is exported", |page| {
        users.of(page, "control_fault_info", &[("reason", "foreign")])
    });
    let is_reported_foreign = |page: &Page| {
        assert_eq!(users.of(page, "default_active_thread_ratio", &[]), None);
        assert_eq!(users.of(page, "control_responsive", &[]), None);
        assert_eq!(users.of(page, "server_starts_total", &[]), None);
    };
    let page = exporter.next();
    is_reported_foreign(&page);
    assert_eq!(users.of(&page, "log_state", &[("log", "control"), ("state", "foreign")]), Some(1.0));
    // If the user's daemon is not responding, root's daemon is not reported as unresponsive.
    users.signal(Signal::STOP);
    for _ in 0..5 {
        is_reported_foreign(&exporter.next());
    }
}

#[test]
fn user_daemon_is_queried_despite_a_foreign_claim() {
    let directory = tempfile::tempdir().unwrap();
    let stand_in = end_to_end::mps::Mps::of("550");
    let pipes = directory.path().join("pipes").display().to_string();
    // These processes started earlier, and there are more of them than the exporter queries.
    let names = [("CUDA_MPS_PIPE_DIRECTORY", &*pipes)];
    let _pretenders: Vec<Running> =
        (0..9).map(|_| stand_in.impostor("nvidia-cuda-mps-control", NOBODY_UID - 1, &names)).collect();
    let mps = Mps::start_in(directory, "550", NOBODY_UID);
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, &control(), "100ms");
    exporter.until("the daemon is exported", |page| mps.of(page, "control_info", &[("pid", &*mps.pid())]));
    exporter.until("the daemon responds", |page| {
        mps.of(page, "control_responsive", &[]).filter(|answers| *answers == 1.0)
    });
}

#[test]
fn process_that_only_claims_a_directory_is_not_its_daemon() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("pipes")).unwrap();
    let pipes = directory.path().join("pipes").display().to_string();
    let names = [("CUDA_MPS_PIPE_DIRECTORY", &*pipes)];
    let stand_in = end_to_end::mps::Mps::of("550");
    let claims = stand_in.impostor("nvidia-cuda-mps-control", NOBODY_UID, &names);
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, &control(), "100ms");
    let (pid, at) = (claims.0.id().to_string(), [("pipe_directory", &*pipes)]);
    exporter.until("the process is exported", |page| {
        page.value("bailiff_mps_control_info", &[("pid", &*pid), ("uid", "65534")])
    });
    exporter.until("the reason", |page| {
        page.value("bailiff_mps_control_fault_info", &[at[0], ("reason", "unreachable")])
    });
    let page = exporter.next();
    for name in ["bailiff_mps_control_up", "bailiff_mps_control_start_time_seconds"] {
        assert_eq!(page.value(name, &at), None, "{name}");
    }
    chown(&pipes, Some(NOBODY_UID), None).unwrap();
    exporter.until("it owns the directory", |page| page.value("bailiff_mps_control_up", &at));
}

/// Starts the exporter as another user, with these capabilities for its children.
fn unattributed(scenario: &Scenario, rights: &str, flags: &[&str]) -> Exporter {
    let real = exporter::command(scenario);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args([format!("--inh-caps={rights}"), format!("--ambient-caps={rights}"), "--".to_owned()]);
    command.arg(real.get_program()).args(real.get_args()).args(TICKS).args(flags);
    for (name, value) in real.get_envs() {
        command.env(name, value.unwrap());
    }
    fs::set_permissions(scenario.path().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    Exporter::spawn(command)
}

#[test]
fn daemon_without_permission_is_unknown() {
    let mps = Mps::start("550");
    let (_client, _server) = mps.client();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let scenario = Scenario::new(&scenario(&[]));
    let record = directory.path().join("record");
    let control = control();
    let flags = ["--deadline", "10s", "--mps.control", &*control, "--mps.interval", "100ms"];
    let recorded = [&flags[..], &["--record", record.to_str().unwrap()]].concat();
    let _exporter = unattributed(&scenario, "-all", &recorded);
    let daemon = until("the daemon is exported", || {
        let text = fs::read_to_string(&record).ok()?;
        let snapshots = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut daemons = snapshots.filter_map(|snapshot| snapshot["mps"]["daemons"].as_array().cloned());
        daemons.next()?.into_iter().find(|daemon| daemon["process"]["pid"] == mps.daemon.0.id())
    });
    assert_eq!(daemon["answer"]["fault"], "no_directory", "{daemon}");
    assert_eq!((&daemon["log"], &daemon["pipe_directory"]), (&Value::Null, &Value::Null), "{daemon}");
}

#[test]
fn inaccessible_daemon_is_reported_without_values() {
    let mps = Mps::start("550");
    let (_client, _server) = mps.client();
    for closed in ["pipes", "logs"] {
        fs::set_permissions(mps.directory.path().join(closed), Permissions::from_mode(0o700)).unwrap();
    }
    fs::set_permissions(mps.directory.path(), Permissions::from_mode(0o755)).unwrap();
    let scenario = Scenario::new(&scenario(&[]));
    let control = control();
    let flags = ["--deadline", "10s", "--mps.control", &*control, "--mps.interval", "100ms"];
    let exporter = unattributed(&scenario, "-all,+sys_ptrace,+dac_read_search", &flags);
    exporter.until("the reason is exported", |page| {
        mps.of(page, "control_fault_info", &[("reason", "not_permitted")])
    });
    exporter.until("of the logs, too", |page| {
        mps.of(page, "log_state", &[("log", "control"), ("state", "unreadable")])
    });
    let page = exporter.next();
    assert_eq!(mps.of(&page, "control_up", &[]), Some(1.0));
    for name in ["control_responsive", "clients", "server_starts_total", "client_faults_total"] {
        assert_eq!(mps.of(&page, name, &[]), None, "{name}");
    }
}

#[test]
fn exited_daemon_leaves_only_its_server() {
    let mut mps = Mps::start("550");
    let (_client, server) = mps.client();
    let scenario = Scenario::new(&scenario(&[(server, "compute")]));
    let exporter = watch(&scenario, &control(), "100ms");
    let label = server.to_string();
    exporter.until("the client is exported", |page| mps.of(page, "clients", &[("server", &label)]));
    mps.daemon.0.kill().unwrap();
    mps.daemon.0.wait().unwrap();
    exporter.until("the daemon is down", |page| mps.of(page, "control_up", &[]).filter(|up| *up == 0.0));
    let page = exporter.next();
    assert_eq!(mps.of(&page, "server_info", &[("server", &label)]), Some(1.0));
    assert_eq!(mps.of(&page, "clients", &[]), None, "the last output is no longer exported");
    assert_eq!(mps.of(&page, "control_responsive", &[]), None);
    assert!(page.value("bailiff_mps_orphan_servers", &[]) >= Some(1.0));
    kill_process(Pid::from_raw(i32::try_from(server).unwrap()).unwrap(), Signal::KILL).unwrap();
    scenario.set(&self::scenario(&[]));
    exporter.until("nothing is left", |page| mps.of(page, "control_up", &[]).is_none().then_some(()));
    assert_eq!(mps.of(&exporter.next(), "server_info", &[]), None);
}

#[test]
fn logs_are_read_across_rotation_and_truncation() {
    let mps = Mps::start("550");
    mps.write(
        "server.log",
        b"[2026-11-21 06:27:48.525 Server 9] Client process 7 encountered a fatal GPU error.\n",
    );
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, "", "1m");
    let faults = |expected| {
        exporter.until("faults", |page| {
            let found = mps.of(page, "client_faults_total", &[]);
            assert!(found.is_none_or(|found| found <= expected), "{found:?} of {expected}");
            found.filter(|found| *found == expected)
        })
    };
    let fault = b"[2026-11-21 06:27:48.525 Server 9] Client process 8 encountered a fatal GPU error.\n";
    faults(0.0);
    mps.write("server.log", fault);
    faults(1.0);
    fs::rename(mps.log("server.log"), mps.log("server.log.1")).unwrap();
    mps.write("server.log.1", fault);
    mps.write("server.log", fault);
    faults(3.0);
    OpenOptions::new().write(true).open(mps.log("server.log")).unwrap().set_len(0).unwrap();
    exporter.next();
    mps.write("server.log", fault);
    faults(4.0);
    let state = |state| {
        exporter.until(state, |page| mps.of(page, "log_state", &[("log", "server"), ("state", state)]));
    };
    for _ in 0..2 {
        fs::rename(mps.log("server.log"), mps.log("aside")).unwrap();
        state("absent");
        fs::rename(mps.log("aside"), mps.log("server.log")).unwrap();
        state("read");
        faults(4.0);
    }
    fs::remove_file(mps.log("server.log")).unwrap();
    state("absent");
    // Waits until this process has exited.
    let mut waits = Running(Command::new("sleep").arg("1000").uid(1001).spawn().unwrap());
    let line = format!(
        "[2026-11-21 06:27:48.525 Control 1] NEW CLIENT {} from user 1001: Server is not ready, push client to pending list\n",
        waits.0.id()
    );
    mps.write("control.log", line.as_bytes());
    exporter.until("a pending client", |page| mps.of(page, "pending_clients", &[("uid", "1001")]));
    waits.0.kill().unwrap();
    waits.0.wait().unwrap();
    exporter.until("no pending client", |page| mps.of(page, "pending_clients", &[]).is_none().then_some(()));
}

#[test]
fn hostile_logs_are_bounded() {
    let mps = Mps::start("550");
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, "", "1m");
    let state = |state| {
        exporter.until(state, |page| mps.of(page, "log_state", &[("log", "server"), ("state", state)]));
    };
    state("absent");
    mknodat(CWD, mps.log("server.log"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    state("no_file");
    fs::remove_file(mps.log("server.log")).unwrap();
    state("absent");
    symlink("/dev/zero", mps.log("server.log")).unwrap();
    state("no_file");
    fs::remove_file(mps.log("server.log")).unwrap();
    state("absent");
    let noise: Vec<u8> =
        (0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    mps.write("server.log", &noise);
    exporter.until("invalid lines are counted", |page| {
        mps.of(page, "log_unparsed_lines_total", &[]).filter(|lines| *lines > 100.0)
    });
    let file = OpenOptions::new().write(true).open(mps.log("server.log")).unwrap();
    file.set_len(1 << 30).unwrap();
    exporter.until("excess entries are skipped", |page| {
        mps.of(page, "log_skipped_bytes_total", &[]).filter(|bytes| *bytes > 1e9)
    });
    let page = exporter.next();
    assert!(page.value("bailiff_gaps_total", &[("gap", "mps")]) > Some(0.0), "the gap is counted");
    mps.send("foo [2026-11-21 06:27:48.525 Server 9] Client process 8 encountered a fatal GPU error.\n");
    mps.write(
        "server.log",
        b"\n[2026-11-21 06:27:48.525 Server 9] Client process 8 encountered a fatal GPU error.\n",
    );
    exporter.until("the log is read again", |page| {
        mps.of(page, "client_faults_total", &[]).filter(|faults| *faults == 1.0)
    });
}

/// Logs that are together longer than a counter can hold do not stop the exporter.
#[test]
fn sparse_logs_of_the_greatest_length_are_counted() {
    // Of the usual file systems, only some permit the greatest length.
    let mps = Mps::start_in(tempfile::tempdir_in("/dev/shm").unwrap(), "550", 0);
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, "", "1m");
    exporter.until("the log is absent", |page| {
        mps.of(page, "log_state", &[("log", "server"), ("state", "absent")])
    });
    for round in 1..=3 {
        let next = mps.log("next");
        File::create(&next).unwrap().set_len(i64::MAX.unsigned_abs() - (2 << 20)).unwrap();
        mps.write(
            "next",
            b"\n[2026-11-21 06:27:48.525 Server 9] Client process 8 encountered a fatal GPU error.\n",
        );
        fs::rename(&next, mps.log("server.log")).unwrap();
        let all = (f64::from(round) * 9.2e18).min(1.8e19);
        exporter.until("the log is read", |page| {
            mps.of(page, "client_faults_total", &[]).filter(|faults| *faults == f64::from(round))
        });
        let skipped = mps.of(&exporter.next(), "log_skipped_bytes_total", &[]);
        assert!(skipped.is_some_and(|bytes| bytes > all), "{skipped:?}");
    }
}
