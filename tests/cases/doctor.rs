//! Tests `bailiff doctor` on a healthy node, and on nodes where one part is broken. Needs root, to set
//! the owner of made-up processes.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
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
    /// Returns a healthy node on which the GPU Bailiff daemons are not running.
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

    /// Runs `bailiff doctor` with these additional flags.
    fn check(&self, flags: &[&str]) -> Report {
        Report::of(&self.doctor(&programs::bailiff(), &[&["--json"], flags].concat()).output().unwrap())
    }
}

/// The JSON report from one run.
struct Report {
    code: Option<i32>,
    checks: Vec<Value>,
}

impl Report {
    fn of(output: &Output) -> Self {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let code = output.status.code();
        assert_eq!(report["ok"], code == Some(0), "{report}");
        Self { code, checks: report["checks"].as_array().unwrap().clone() }
    }

    /// Returns the names of the checks with this state.
    fn of_state(&self, state: &str) -> Vec<&str> {
        let of_it = self.checks.iter().filter(|check| check["state"] == state);
        of_it.map(|check| check["check"].as_str().unwrap()).collect()
    }

    /// Asserts that a check has this state and that its text contains `text`.
    fn assert_check(&self, name: &str, state: &str, text: &str) {
        let matches = |check: &&Value| {
            check["check"] == name
                && check["state"] == state
                && check["text"].as_str().unwrap().contains(text)
        };
        let found = self.checks.iter().find(matches);
        let found =
            found.unwrap_or_else(|| panic!("{name} is not {state} with {text:?}: {:#?}", self.checks));
        assert!(state == "ok" || state == "skip" || found["hint"].is_string(), "{found} must contain a hint");
        assert_eq!(self.code, Some(i32::from(!self.of_state("fail").is_empty())));
    }
}

/// Returns the address of a Unix socket, with a user and a password.
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
    let report = node.check(&["--redis", &address(&redis, "secret")]);
    assert_eq!((report.of_state("fail"), report.of_state("warn")), (vec![], vec![]), "{:#?}", report.checks);
    for (name, text) in [
        ("driver", "580.95.05, NVML 13.580.95.05, CUDA 13.0"),
        ("kernel module", "580.95.05, same as NVML"),
        ("gpus", "2 of 2 respond: NVIDIA H200"),
        ("pid namespace", "the host's"),
        ("/proc", "shows"),
        ("rights", "open files"),
        ("exporter", "interval 200ms"),
        ("enforcer", "0.1.0, 1 rules, 0 of them in enforce mode"),
        ("rules", "is valid"),
        ("redis", "answers"),
        ("leases", "2 GPUs, 0 leased; 0 wait"),
        ("versions", "bailiff, bailiff-exporter, bailiff-enforcer 0.1.0"),
    ] {
        report.assert_check(name, "ok", text);
    }
    report.assert_check("mps", "skip", "no MPS daemon is running");
    report.assert_check("device order", "skip", "/nonexistent/libcuda.so.1");
    node.procfs.write("1/root/sys/fs/cgroup/user.slice/cgroup.max.depth", "max\n");
    node.check(&[]).assert_check("enforcer", "warn", "nest cgroups");
    // The hold and the user who set it are reported until the resume.
    assert_eq!(enforcer.run(&["pause", "--reason", "upgrade"]).status.code(), Some(0));
    let held = node.check(&[]);
    held.assert_check("enforcer", "warn", "paused");
    held.assert_check("enforcer", "warn", "upgrade");
    node.home.write("version: 1\nrules: [{}]\n");
    let broken = node.check(&[]);
    broken.assert_check("rules", "fail", "rules.yaml");
}

#[test]
fn unhealthy_driver_is_reported() {
    let node = Node::new("idle");
    node.check(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]).assert_check(
        "driver",
        "fail",
        "library not found",
    );
    let cases = [
        ("init: hang\n", "driver", "timeout"),
        ("init: driver_not_loaded\n", "driver", "driver not loaded"),
        ("init: lib_rm_version_mismatch\n", "driver", "version mismatch"),
        ("gpus: []\n", "gpus", "the driver reports no GPUs"),
        ("gpus: [{}, {faults: {lost: true}}]\n", "gpus", "GPU 1: lost"),
        ("driver: 575.1\nnvml: 12.575.1\ngpus: [{}]\n", "kernel module", "580.95.05, but NVML is 575.1"),
    ];
    for (scenario, name, text) in cases {
        node.scenario.set(scenario);
        node.check(&["--deadline", "500ms"]).assert_check(name, "fail", text);
    }
    node.scenario
        .set("gpus: [{}, {faults: {hang: [nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2]}}]\n");
    let report = node.check(&["--deadline", "1s"]);
    report.assert_check("gpus", "fail", "GPU 1");
    report.assert_check("gpus", "ok", "1 of 2 respond");
}

#[test]
fn restricted_proc_is_reported() {
    let node = Node::new("idle");
    node.procfs.write("self/status", "CapEff:\t0000000000000000\n");
    fs::remove_file(node.procfs.path().join("driver/nvidia/version")).unwrap();
    let report = node.check(&[]);
    report.assert_check("rights", "skip", "without CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE");
    report.assert_check("kernel module", "skip", "/proc/driver/nvidia/version does not exist");
    assert_eq!(report.code, Some(0), "skipped checks do not count as failures");
    fs::remove_file(node.procfs.path().join("1/stat")).unwrap();
    let link = node.procfs.path().join("self/ns/pid");
    fs::remove_file(&link).unwrap();
    symlink("pid:[4026532999]", &link).unwrap();
    let path = node.procfs.path().display().to_string();
    node.procfs.write("self/mounts", &format!("proc {path} proc rw,hidepid=invisible 0 0\n"));
    let report = node.check(&[]);
    report.assert_check("/proc", "warn", "hidepid=invisible");
    report.assert_check("pid namespace", "warn", "not the host's");
}

#[test]
fn missing_exporter_data_is_reported() {
    let node = Node::new("idle");
    node.check(&[]).assert_check("exporter", "skip", "no process listens");
    let listener = UnixListener::bind(node.home.stream()).unwrap();
    node.check(&["--deadline", "200ms"]).assert_check("exporter", "fail", "no snapshot before the deadline");
    let line = |version: u32| {
        json!({
            "version": version, "seq": 7, "wall_ms": 0, "boot_ms": 0, "interval_ms": 1000, "pid_namespace": "host",
            "sources": {"nvml": {"up": false, "fault": "timeout"}}, "gpus": [], "processes": [],
        })
    };
    // The first client is still connected, but its data is no longer read.
    let answer = |version: u32| {
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                loop {
                    let (mut client, _) = listener.accept().unwrap();
                    if writeln!(client, "{}", line(version)).is_ok()
                        && fs::metadata("/").is_ok()
                        && is_running(&client)
                    {
                        return;
                    }
                }
            });
            let report = node.check(&[]);
            answering.join().unwrap();
            report
        })
    };
    let report = answer(1);
    report.assert_check("exporter", "fail", "the newest snapshot is stale: sample 7");
    report.assert_check("exporter", "fail", "the exporter cannot read nvml: timeout");
    answer(2).assert_check(
        "exporter",
        "fail",
        "the snapshot has version 2, but this program reads version 1",
    );
}

/// Returns whether the client is still connected.
fn is_running(client: &std::os::unix::net::UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(client).unwrap();
    fs::metadata(format!("/proc/{}", peer.pid.as_raw_pid())).is_ok()
}

#[test]
fn redis_without_persistence_is_reported() {
    let node = Node::new("idle");
    let redis = Redis::with(&["--maxmemory-policy", "allkeys-lru", "--requirepass", "secret"]);
    let report = node.check(&["--redis", &address(&redis, "secret")]);
    report.assert_check("redis", "warn", "evicts keys");
    report.assert_check("redis", "warn", "loses the newest leases");
    report.assert_check("leases", "skip", "there is no lease pool");
    node.check(&["--redis", &address(&redis, "wrong")]).assert_check("redis", "fail", "refuses");
    node.check(&["--redis", &redis.address()]).assert_check("redis", "fail", "refuses");
    drop(redis);
    node.check(&["--redis", "redis+unix:///nonexistent/redis.sock"]).assert_check(
        "redis",
        "fail",
        "does not respond",
    );
    node.check(&["--redis", "nonsense"]).assert_check("redis", "fail", "is not a Redis URL");
    // Without Redis, the pool is a directory on this machine.
    let report = node.check(&[]);
    report.assert_check("redis", "skip", "this machine uses its own pool");
    report.assert_check("leases", "skip", "there is no lease pool");
    let directory = node.home.path().join("pool").display().to_string();
    let mut init = Command::new(programs::bailiff());
    init.args(["lease", "init", "--gpus", "0,1", "--pool-dir", &directory]).env_remove("LEASE_REDIS_URL");
    let output = init.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    node.check(&[]).assert_check("leases", "ok", "2 GPUs, 0 leased; 0 wait");
}

#[test]
fn inconsistent_mps_is_reported() {
    let node = Node::new("mps");
    let mps = Mps::of("550");
    let report = || {
        let mut command = node.doctor(&programs::bailiff(), &["--json"]);
        Report::of(&command.env("PATH", mps.bin()).output().unwrap())
    };
    report().assert_check("mps", "warn", "GPU 0 allows only one process at a time");
    let part = |pid: u32, program: &str| {
        node.procfs.add(&Process { comm: "nvidia-cuda-mps".into(), ..Process::new(pid) });
        node.procfs.write(&format!("{pid}/cmdline"), &format!("{program}\0-d\0"));
    };
    part(4100, "nvidia-cuda-mps-server");
    report().assert_check("mps", "warn", "server 4100 is running without its daemon");
    part(900, "/usr/bin/nvidia-cuda-mps-control");
    report().assert_check("mps", "skip", "cannot read the daemon's environment");
    let pipes = mps.pipes("a").display().to_string();
    node.procfs.write("900/environ", &format!("CUDA_MPS_PIPE_DIRECTORY={pipes}\0"));
    report().assert_check(
        "mps",
        "skip",
        &format!("daemon 900 ({pipes}): no control daemon listens in the pipe directory"),
    );
    mps.start("a", "GPU-1");
    node.procfs.write("4101/environ", "HOME=/root\0CUDA_VISIBLE_DEVICES=GPU-1\0");
    let found = report();
    found.assert_check("mps", "ok", "daemon 900, 1 servers, 4 clients");
    assert!(!found.of_state("warn").contains(&"mps"), "{:#?}", found.checks);
    node.procfs.write("4102/environ", "HOME=/root\0CUDA_VISIBLE_DEVICES=1\0");
    report().assert_check("mps", "warn", "client 4102 was started with CUDA_VISIBLE_DEVICES=1");
    mps.signal("a", Signal::STOP);
    let found = report();
    found.assert_check("mps", "fail", &format!("daemon 900 ({pipes}) does not respond"));
    assert!(!found.of_state("ok").contains(&"mps"), "{:#?}", found.checks);
}

#[test]
fn programs_of_two_releases_are_reported() {
    let node = Node::new("idle");
    let directory = node.home.path().join("bin");
    fs::create_dir(&directory).unwrap();
    let copy = directory.join("bailiff");
    fs::copy(programs::bailiff(), &copy).unwrap();
    let script = directory.join("bailiff-exporter");
    fs::write(&script, "#!/bin/sh\necho bailiff-exporter 0.0.9\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    fs::write(directory.join("libbailiff_quota.so"), "none\n").unwrap();
    let report = Report::of(&node.doctor(&copy, &["--json"]).env("PATH", "/usr/bin:/bin").output().unwrap());
    report.assert_check("versions", "warn", "bailiff 0.1.0, and bailiff-exporter 0.0.9");
    report.assert_check("quota library", "fail", "cannot be loaded");
    report.assert_check("rules", "skip", "not checked, because bailiff-enforcer is not installed");
    fs::remove_file(directory.join("libbailiff_quota.so")).unwrap();
    let mut without = node.doctor(&copy, &["--json"]);
    Report::of(&without.output().unwrap()).assert_check(
        "quota library",
        "skip",
        "bin/libbailiff_quota.so, /usr/lib/bailiff",
    );
    let report = Report::of(&without.env("BAILIFF_QUOTA_LIBRARY", "/nowhere.so").output().unwrap());
    report.assert_check("quota library", "fail", "searched /nowhere.so");
}

/// An administrator copies `bailiff` to `/tmp` and runs it there as root.
#[test]
fn program_of_another_user_beside_the_own_is_not_run() {
    let node = Node::new("idle");
    let directory = node.home.path().join("shared");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
    let (copy, started) = (directory.join("bailiff"), directory.join("started"));
    fs::copy(programs::bailiff(), &copy).unwrap();
    let planted = ["bailiff-exporter", "bailiff-enforcer"].map(|name| {
        let script = directory.join(name);
        fs::write(&script, format!("#!/bin/sh\necho $0 >>{}\necho {name} 0.0.9\n", started.display()))
            .unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        chown(&script, Some(4002), Some(4002)).unwrap();
        script
    });
    let report =
        || Report::of(&node.doctor(&copy, &["--json"]).env("PATH", "/usr/bin:/bin").output().unwrap());
    let found = report();
    assert!(!started.exists(), "{:?}", fs::read_to_string(&started));
    found.assert_check("versions", "ok", "bailiff 0.1.0");
    found.assert_check("rules", "skip", "not checked, because bailiff-enforcer is not installed");
    for script in &planted {
        chown(script, Some(0), Some(0)).unwrap();
    }
    report().assert_check("versions", "warn", "bailiff-exporter 0.0.9");
    fs::set_permissions(&planted[0], Permissions::from_mode(0o757)).unwrap();
    let rest = report();
    rest.assert_check("versions", "warn", "bailiff-enforcer 0.0.9");
    assert!(!format!("{:?}", rest.checks).contains("bailiff-exporter 0.0.9"), "{:#?}", rest.checks);
}

/// A user can mount a file system over an entry of `/tmp` with FUSE, which reports any owner. Here, root mounts one.
#[test]
fn program_in_a_file_system_that_another_user_may_have_mounted_is_not_run() {
    let node = Node::new("idle");
    let [shared, mount, tools] = ["shared", "mount", "shared/tools"].map(|name| node.home.path().join(name));
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    fs::create_dir(&mount).unwrap();
    fs::create_dir(&tools).unwrap();
    let started = node.home.path().join("started");
    // The file system has a program beside `shared/bailiff`, and a library for `shared/tools/bailiff`.
    let script = "set -e
mount -t tmpfs none \"$1\"
printf '#!/bin/sh\\necho >%s; echo bailiff-exporter 0.0.9\\n' \"$4\" >\"$1/program\"
chmod 755 \"$1/program\"
mkdir -p \"$1/lib/bailiff\" && echo none >\"$1/lib/bailiff/libbailiff_quota.so\"
touch \"$2/bailiff-exporter\" && mount --bind \"$1/program\" \"$2/bailiff-exporter\"
mkdir \"$2/lib\" && mount --bind \"$1/lib\" \"$2/lib\"
shift 4
exec \"$@\"";
    for (copy, library) in [(shared.join("bailiff"), false), (tools.join("bailiff"), true)] {
        fs::copy(programs::bailiff(), &copy).unwrap();
        let doctor = node.doctor(&copy, &["--json"]);
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-c", script, "sh"]).args([&mount, &shared, &tools, &started]);
        inside.arg(doctor.get_program()).args(doctor.get_args());
        inside
            .envs(doctor.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let report = Report::of(&inside.output().unwrap());
        assert!(!started.exists());
        report.assert_check("versions", "ok", "bailiff 0.1.0");
        if library {
            report.assert_check("quota library", "skip", "/usr/lib/bailiff");
        }
        let _ = fs::remove_dir(shared.join("lib"));
        let _ = fs::remove_file(shared.join("bailiff-exporter"));
    }
}

#[test]
fn report_fits_80_columns() {
    let node = Node::new("lost");
    let output = node.doctor(&programs::bailiff(), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80 && !line.contains('\u{1b}')), "{text}");
    assert!(text.contains("fail  gpus          GPU 1: lost\n                    -> check dmesg"), "{text}");
    assert!(text.ends_with("\n1 failed\n"), "{text}");
}
