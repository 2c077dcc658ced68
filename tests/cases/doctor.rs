//! `bailiff doctor`: a node on which all is well, and then each part of it broken. It needs root, to give made-up
//! processes an owner.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::home::Home;
use end_to_end::mps::Mps;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;
use end_to_end::redis::Redis;
use rustix::process::Signal;
use serde_json::{Value, json};

const RULES: &str = "version: 1
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 60}
    then: [{flag: warning}]
";

/// A node: a driver, a made-up `/proc`, and a directory for sockets and rules.
struct Node {
    scenario: Scenario,
    procfs: Procfs,
    home: Home,
}

impl Node {
    /// One on which nothing is wrong, and nothing of ours runs yet.
    fn new(scenario: &str) -> Self {
        let procfs = Procfs::new();
        for pid in [4100, 4101, 4102, 4103, 4104, 4110, 4111] {
            procfs.add(&Process::new(pid));
        }
        procfs.write(
            "driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Mon\n",
        );
        procfs.write("self/status", "Name:\tbailiff\nCapEff:\t000001ffffffffff\n");
        procfs.write("self/mounts", &format!("proc {} proc rw,nosuid 0 0\n", procfs.path().display()));
        Self { scenario: Scenario::named(scenario), procfs, home: Home::with(RULES) }
    }

    fn exporter(&self) -> Exporter {
        let mut command = exporter::command(&self.scenario);
        command.args(["--interval", "200ms", "--deadline", "10s", "--procfs"]).arg(self.procfs.path());
        command.arg("--stream").arg(self.home.stream());
        Exporter::spawn(command)
    }

    fn doctor(&self, program: &Path, flags: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("doctor").args(flags);
        if !flags.contains(&"--nvml-library") {
            command.arg("--nvml-library").arg(programs::fake_nvml());
        }
        command.arg("--procfs").arg(self.procfs.path());
        command.arg("--stream").arg(self.home.stream()).arg("--control").arg(self.home.control());
        command.arg("--rules").arg(self.home.rules()).arg("--cuda-library").arg("/nonexistent/libcuda.so.1");
        command.env("FAKE_NVML_SCENARIO", self.scenario.path());
        command.env_remove("LEASE_REDIS_URL").env_remove("LEASE_PREFIX").env_remove("NO_COLOR");
        command.env("LEASE_DIR", self.home.path().join("pool"));
        command
    }

    /// What is told with these flags besides.
    fn told(&self, flags: &[&str]) -> Told {
        Told::of(&self.doctor(&programs::bailiff(), &[&["--json"], flags].concat()).output().unwrap())
    }
}

/// What a doctor told.
struct Told {
    code: Option<i32>,
    checks: Vec<Value>,
}

impl Told {
    fn of(output: &Output) -> Self {
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let code = output.status.code();
        assert_eq!(told["ok"], code == Some(0), "{told}");
        Self { code, checks: told["checks"].as_array().unwrap().clone() }
    }

    /// Those of a state, by name.
    fn of_state(&self, state: &str) -> Vec<&str> {
        let of_it = self.checks.iter().filter(|check| check["state"] == state);
        of_it.map(|check| check["check"].as_str().unwrap()).collect()
    }

    /// Whether a check is of this state and says this.
    fn says(&self, name: &str, state: &str, words: &str) {
        let says = |check: &&Value| {
            check["check"] == name
                && check["state"] == state
                && check["text"].as_str().unwrap().contains(words)
        };
        let found = self.checks.iter().find(says);
        let found =
            found.unwrap_or_else(|| panic!("{name} is not {state} with {words:?}: {:#?}", self.checks));
        assert!(state == "ok" || state == "skip" || found["hint"].is_string(), "no way out of {found}");
        assert_eq!(self.code, Some(i32::from(!self.of_state("fail").is_empty())));
    }
}

/// With a user and a password, on a socket.
fn address(redis: &Redis, password: &str) -> String {
    format!("{}?pass={password}", redis.address())
}

#[test]
fn healthy_node_passes_every_check() {
    let node = Node::new("idle");
    let exporter = node.exporter();
    exporter
        .until("a window", |page| page.value("bailiff_snapshots_total", &[]).filter(|ticks| *ticks >= 2.0));
    let mut command = end_to_end::enforcer::command(&node.home);
    command.arg("--procfs").arg(node.procfs.path());
    let enforcer = end_to_end::enforcer::Enforcer::spawn(&node.home, command);
    enforcer.until_status("the stream", |status| (status["stream"]["connected"] == true).then_some(()));
    let redis = Redis::with(&["--appendonly", "yes", "--requirepass", "secret"]);
    let mut init = Command::new(programs::bailiff());
    init.args(["lease", "init", "--redis", &address(&redis, "secret"), "--nvml-library"]);
    init.arg(programs::fake_nvml()).env("FAKE_NVML_SCENARIO", node.scenario.path());
    assert!(init.output().unwrap().status.success());
    let told = node.told(&["--redis", &address(&redis, "secret")]);
    assert_eq!((told.of_state("fail"), told.of_state("warn")), (vec![], vec![]), "{:#?}", told.checks);
    for (name, words) in [
        ("driver", "580.95.05, NVML 13.580.95.05, CUDA 13.0"),
        ("kernel module", "580.95.05, as NVML"),
        ("gpus", "2 of 2 answer: NVIDIA H200"),
        ("pid namespace", "the host's"),
        ("/proc", "shows"),
        ("rights", "open files"),
        ("exporter", "an interval of 200ms"),
        ("enforcer", "0.1.0, 1 rules, of which 0 may act"),
        ("rules", "makes sense"),
        ("redis", "answers"),
        ("leases", "2 GPUs, 0 leased; 0 wait"),
        ("versions", "bailiff, bailiff-exporter, bailiff-enforcer 0.1.0"),
    ] {
        told.says(name, "ok", words);
    }
    told.says("mps", "skip", "no MPS daemon runs");
    told.says("device order", "skip", "/nonexistent/libcuda.so.1");
    // What is held, and by whom, is told until it is resumed.
    assert_eq!(enforcer.run(&["pause", "--reason", "upgrade"]).status.code(), Some(0));
    let held = node.told(&[]);
    held.says("enforcer", "warn", "paused");
    held.says("enforcer", "warn", "upgrade");
    node.home.write("version: 1\nrules: [{}]\n");
    let broken = node.told(&[]);
    broken.says("rules", "fail", "rules.yaml");
}

#[test]
fn unhealthy_driver_is_reported() {
    let node = Node::new("idle");
    node.told(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]).says(
        "driver",
        "fail",
        "library not found",
    );
    let cases = [
        ("init: hang\n", "driver", "timeout"),
        ("init: driver_not_loaded\n", "driver", "driver not loaded"),
        ("init: lib_rm_version_mismatch\n", "driver", "version mismatch"),
        ("gpus: []\n", "gpus", "the driver has none"),
        ("gpus: [{}, {faults: {lost: true}}]\n", "gpus", "GPU 1: lost"),
        ("driver: 575.1\nnvml: 12.575.1\ngpus: [{}]\n", "kernel module", "580.95.05, and NVML is of 575.1"),
    ];
    for (scenario, name, words) in cases {
        node.scenario.set(scenario);
        node.told(&["--deadline", "500ms"]).says(name, "fail", words);
    }
    node.scenario
        .set("gpus: [{}, {faults: {hang: [nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2]}}]\n");
    let told = node.told(&["--deadline", "1s"]);
    told.says("gpus", "fail", "GPU 1");
    told.says("gpus", "ok", "1 of 2 answer");
}

#[test]
fn restricted_proc_is_reported() {
    let node = Node::new("idle");
    node.procfs.write("self/status", "CapEff:\t0000000000000000\n");
    fs::remove_file(node.procfs.path().join("driver/nvidia/version")).unwrap();
    let told = node.told(&[]);
    told.says("rights", "skip", "without CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE");
    told.says("kernel module", "skip", "no driver/nvidia/version");
    assert_eq!(told.code, Some(0), "what is skipped is no failure");
    fs::remove_file(node.procfs.path().join("1/stat")).unwrap();
    let link = node.procfs.path().join("self/ns/pid");
    fs::remove_file(&link).unwrap();
    symlink("pid:[4026532999]", &link).unwrap();
    let path = node.procfs.path().display().to_string();
    node.procfs.write("self/mounts", &format!("proc {path} proc rw,hidepid=invisible 0 0\n"));
    let told = node.told(&[]);
    told.says("/proc", "warn", "hidepid=invisible");
    told.says("pid namespace", "warn", "not the host's");
}

#[test]
fn missing_exporter_data_is_reported() {
    let node = Node::new("idle");
    node.told(&[]).says("exporter", "skip", "nobody listens");
    let listener = UnixListener::bind(node.home.stream()).unwrap();
    node.told(&["--deadline", "200ms"]).says("exporter", "fail", "it told nothing in time");
    let line = |version: u32| {
        json!({
            "version": version, "seq": 7, "wall_ms": 0, "boot_ms": 0, "interval_ms": 1000, "pid_namespace": "host",
            "sources": {"nvml": {"up": false, "fault": "timeout"}}, "gpus": [], "processes": [],
        })
    };
    // The first that asked is still in the line, and reads no more.
    let answer = |version: u32| {
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                loop {
                    let (mut client, _) = listener.accept().unwrap();
                    if writeln!(client, "{}", line(version)).is_ok()
                        && fs::metadata("/").is_ok()
                        && lives(&client)
                    {
                        return;
                    }
                }
            });
            let told = node.told(&[]);
            answering.join().unwrap();
            told
        })
    };
    let told = answer(1);
    told.says("exporter", "fail", "it tells nothing new: look 7");
    told.says("exporter", "fail", "it does not see nvml: timeout");
    answer(2).says("exporter", "fail", "a snapshot of version 2, and this program reads version 1");
}

/// Whether whoever connected is still there.
fn lives(client: &std::os::unix::net::UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(client).unwrap();
    fs::metadata(format!("/proc/{}", peer.pid.as_raw_pid())).is_ok()
}

#[test]
fn redis_without_persistence_is_reported() {
    let node = Node::new("idle");
    let redis = Redis::with(&["--maxmemory-policy", "allkeys-lru", "--requirepass", "secret"]);
    let told = node.told(&["--redis", &address(&redis, "secret")]);
    told.says("redis", "warn", "evicts keys");
    told.says("redis", "warn", "loses the last leases");
    told.says("leases", "skip", "there is no pool");
    node.told(&["--redis", &address(&redis, "wrong")]).says("redis", "fail", "refuses");
    node.told(&["--redis", &redis.address()]).says("redis", "fail", "refuses");
    drop(redis);
    node.told(&["--redis", "redis+unix:///nonexistent/redis.sock"]).says("redis", "fail", "does not answer");
    node.told(&["--redis", "nonsense"]).says("redis", "fail", "is no address");
    // Without a Redis this machine keeps its pool.
    let told = node.told(&[]);
    told.says("redis", "skip", "this machine keeps its pool itself");
    told.says("leases", "skip", "there is no pool");
    let directory = node.home.path().join("pool").display().to_string();
    let mut init = Command::new(programs::bailiff());
    init.args(["lease", "init", "--gpus", "0,1", "--pool-dir", &directory]).env_remove("LEASE_REDIS_URL");
    let output = init.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    node.told(&[]).says("leases", "ok", "2 GPUs, 0 leased; 0 wait");
}

#[test]
fn inconsistent_mps_is_reported() {
    let node = Node::new("mps");
    let mps = Mps::of("550");
    let told = || {
        let mut command = node.doctor(&programs::bailiff(), &["--json"]);
        Told::of(&command.env("PATH", mps.bin()).output().unwrap())
    };
    told().says("mps", "warn", "GPU 0 takes one process at a time");
    let part = |pid: u32, program: &str| {
        node.procfs.add(&Process { comm: "nvidia-cuda-mps".into(), ..Process::new(pid) });
        node.procfs.write(&format!("{pid}/cmdline"), &format!("{program}\0-d\0"));
    };
    part(4100, "nvidia-cuda-mps-server");
    told().says("mps", "warn", "server 4100 runs without its daemon");
    part(900, "/usr/bin/nvidia-cuda-mps-control");
    told().says("mps", "skip", "its environment is not for this user to read");
    let pipes = mps.pipes("a").display().to_string();
    node.procfs.write("900/environ", &format!("CUDA_MPS_PIPE_DIRECTORY={pipes}\0"));
    told().says("mps", "skip", &format!("daemon 900 ({pipes}): no control daemon answers there"));
    mps.start("a", "GPU-1");
    node.procfs.write("4101/environ", "HOME=/root\0CUDA_VISIBLE_DEVICES=GPU-1\0");
    let found = told();
    found.says("mps", "ok", "daemon 900, 1 servers, 4 clients");
    assert!(!found.of_state("warn").contains(&"mps"), "{:#?}", found.checks);
    node.procfs.write("4102/environ", "HOME=/root\0CUDA_VISIBLE_DEVICES=1\0");
    told().says("mps", "warn", "client 4102 was started with CUDA_VISIBLE_DEVICES=1");
    mps.signal("a", Signal::STOP);
    let found = told();
    found.says("mps", "fail", &format!("daemon 900 ({pipes}) does not answer"));
    assert!(!found.of_state("ok").contains(&"mps"), "{:#?}", found.checks);
}

#[test]
fn programs_of_two_releases_are_reported() {
    let node = Node::new("idle");
    let directory = node.home.path().join("bin");
    fs::create_dir(&directory).unwrap();
    let ours = directory.join("bailiff");
    fs::copy(programs::bailiff(), &ours).unwrap();
    let script = directory.join("bailiff-exporter");
    fs::write(&script, "#!/bin/sh\necho bailiff-exporter 0.0.9\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    fs::write(directory.join("libbailiff_quota.so"), "none\n").unwrap();
    let told = Told::of(&node.doctor(&ours, &["--json"]).env("PATH", "/usr/bin:/bin").output().unwrap());
    told.says("versions", "warn", "bailiff 0.1.0, and bailiff-exporter 0.0.9");
    told.says("quota library", "fail", "cannot be loaded");
    told.says("rules", "skip", "no bailiff-enforcer is installed");
    fs::remove_file(directory.join("libbailiff_quota.so")).unwrap();
    let mut without = node.doctor(&ours, &["--json"]);
    Told::of(&without.output().unwrap()).says(
        "quota library",
        "skip",
        "bin/libbailiff_quota.so, nor /usr/lib",
    );
    let told = Told::of(&without.env("BAILIFF_QUOTA_LIBRARY", "/nowhere.so").output().unwrap());
    told.says("quota library", "fail", "not /nowhere.so");
}

#[test]
fn report_fits_80_columns() {
    let node = Node::new("lost");
    let output = node.doctor(&programs::bailiff(), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80 && !line.contains('\u{1b}')), "{text}");
    assert!(text.contains("fail  gpus          GPU 1: lost\n                    -> dmesg"), "{text}");
    assert!(text.ends_with("\n1 failed\n"), "{text}");
}
