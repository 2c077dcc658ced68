//! Tests the exporter with a real Redis server: metrics of leases and of use without a lease, and a server that
//! hangs, is killed or refuses commands.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a case runs programs, compares exact figures and fails loudly"
)]

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use bailiff_snapshot::lease::attribution::{Attribution, Members};
use bailiff_snapshot::{Truth, wire};
use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::hostile_redis::{ATTACKS, HostileRedis, MOST_MIB};
use end_to_end::leases::{bailiff, command_of, end, hold, pool, run, stdout_of};
use end_to_end::page::Page;
use end_to_end::redis::Redis;
use end_to_end::tenant::NOBODY_UID;
use end_to_end::{http, programs};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const GIB: &str = "used: 1GiB, sm: 0";

/// Returns GPUs, each with the pids of the processes that hold it.
fn gpus(held: &[&[u32]]) -> String {
    let one = |pids: &&[u32]| {
        let processes: Vec<String> = pids.iter().map(|pid| format!("{{pid: {pid}, {GIB}}}")).collect();
        format!("  - processes: [{}]\n", processes.join(", "))
    };
    format!("sampling_period: 20ms\ngpus:\n{}", held.iter().map(one).collect::<String>())
}

/// A late reply counts as a hang. After a hang, environments are not read for a long time.
const PATIENT: [&str; 2] = ["--deadline", "10s"];

fn watch(scenario: &Scenario, redis: &Redis, arguments: &[&str]) -> Exporter {
    let address = redis.address();
    Exporter::start(scenario, &[&PATIENT, &["--lease.redis", &address], arguments].concat())
}

fn up(page: &Page) -> Option<f64> {
    page.value("bailiff_source_up", &[("source", "redis")])
}

fn state(page: &Page, state: &str) -> Option<f64> {
    page.value("bailiff_lease_gpus", &[("state", state)])
}

fn unreserved(page: &Page, gpu: &str) -> Option<f64> {
    page.value("bailiff_lease_unreserved_use", &[("gpu", gpu)])
}

/// Returns the number of lease series.
fn series(page: &Page) -> usize {
    ["gpus", "held", "age_seconds", "idle_seconds", "queue_length", "unreserved_use", "events_total"]
        .iter()
        .map(|name| page.all(&format!("bailiff_lease_{name}"), &[]).count())
        .sum()
}

/// A node with three GPUs: a command under a lease is on the first, and a process without a lease is on the
/// second.
struct Node {
    redis: Redis,
    scenario: Scenario,
    runner: Child,
    command: Pid,
    intruder: Holder,
}

impl Node {
    fn new() -> Self {
        let (scenario, redis) = (Scenario::new(&gpus(&[&[], &[], &[]])), Redis::start());
        let library = programs::fake_nvml().display().to_string();
        let mut init = bailiff(&redis, &["init", "--nvml-library", &library]);
        stdout_of(&init.env("FAKE_NVML_SCENARIO", scenario.path()).output().unwrap());
        let runner = hold(&redis, &["run"]);
        let (command, intruder) = (command_of(&runner), Holder::sleeping());
        scenario.set(&gpus(&[&[number(command)], &[intruder.pid()], &[]]));
        Self { redis, scenario, runner, command, intruder }
    }

    fn end(mut self) {
        kill_process(self.command, Signal::KILL).unwrap();
        self.runner.wait().unwrap();
        self.intruder.end();
    }
}

fn number(pid: Pid) -> u32 {
    u32::try_from(pid.as_raw_nonzero().get()).unwrap()
}

fn until_intruder_is_reported(exporter: &Exporter) {
    exporter.until("the intruder is reported", |page| (unreserved(page, "1") == Some(1.0)).then_some(()));
}

#[test]
fn lease_and_use_without_a_lease_are_exported() {
    let node = Node::new();
    let exporter = watch(&node.scenario, &node.redis, &[]);
    until_intruder_is_reported(&exporter);
    let page = exporter.until("idle time is seen", |page| {
        let idle = page.value("bailiff_lease_idle_seconds", &[("gpu", "0")])?;
        (idle > 0.0).then(|| page.clone())
    });
    assert_eq!(
        (up(&page), unreserved(&page, "0"), unreserved(&page, "2")),
        (Some(1.0), Some(0.0), Some(0.0))
    );
    assert_eq!(
        (state(&page, "leased"), state(&page, "idle"), state(&page, "gathering")),
        (Some(1.0), Some(2.0), Some(0.0))
    );
    let user = stdout_of(&Command::new("id").arg("-un").output().unwrap());
    let held = page.all("bailiff_lease_held", &[]).collect::<Vec<_>>();
    assert_eq!(held.len(), 1);
    let expected = [("gpu", "0"), ("user", user.trim()), ("mode", "run")];
    assert!(expected.iter().all(|(name, value)| held[0].0[*name] == *value), "{held:?}");
    let uuid = page.label("bailiff_gpu_info", &[("gpu", "0")], "gpu_uuid");
    assert_eq!(held[0].0.get("gpu_uuid"), uuid.as_ref());
    assert!(page.value("bailiff_lease_age_seconds", &[("gpu", "0")]) > Some(0.0));
    assert_eq!(page.value("bailiff_lease_events_total", &[("event", "grant")]), Some(1.0));
    assert_eq!(page.value("bailiff_lease_wait_seconds_count", &[]), Some(1.0));
    assert_eq!(page.value("bailiff_lease_redis_aof_enabled", &[]), Some(0.0));
    assert_eq!(page.value("bailiff_lease_queue_length", &[]), Some(0.0));
    assert_eq!(page.value("bailiff_lease_queue_oldest_seconds", &[]), None);
    assert!(http::get(exporter.address(), "/", &[]).unwrap().text().contains(">Leases</h2>"));
    node.end();
}

#[test]
fn stream_has_the_lease_holders() {
    let node = Node::new();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("stream.sock");
    let exporter = watch(&node.scenario, &node.redis, &["--stream", &socket.display().to_string()]);
    until_intruder_is_reported(&exporter);
    let mut line = String::new();
    BufReader::new(UnixStream::connect(&socket).unwrap()).read_line(&mut line).unwrap();
    let snapshot = wire::parse(line.as_bytes()).unwrap();
    let leases = snapshot.leases.as_ref().unwrap();
    let held = &leases.held[0];
    assert_eq!((held.alive, held.holder.unwrap().pid), (Truth::True, node.runner.id()));
    let tie = |pid: u32, gpu: usize| {
        let process = snapshot.processes.iter().find(|process| process.pid == pid).unwrap();
        leases.lease_of(&Members::of_wire(process).unwrap(), leases.gpu(&snapshot.gpus[gpu]))
    };
    assert_eq!(tie(number(node.command), 0), Attribution::Lease(held));
    assert_eq!(tie(node.intruder.pid(), 1), Attribution::Nothing);
    node.end();
}

#[test]
fn handover_reports_no_use_without_a_lease() {
    let mut node = Node::new();
    let exporter = watch(&node.scenario, &node.redis, &[]);
    until_intruder_is_reported(&exporter);
    let waiter = bailiff(&node.redis, &["run", "-n", "3", "true"]).spawn().unwrap();
    let gathered = |page: &Page| (state(page, "gathering") == Some(2.0)).then(|| page.clone());
    let page = exporter.until("a client waits", gathered);
    assert_eq!(page.value("bailiff_lease_queue_length", &[]), Some(1.0));
    assert!(page.value("bailiff_lease_queue_oldest_seconds", &[]).is_some());
    assert_eq!((unreserved(&page, "1"), unreserved(&page, "0")), (None, Some(0.0)));
    end(waiter, Signal::TERM);
    // A process that was orphaned by its runner is identified by its environment.
    node.runner.kill().unwrap();
    node.runner.wait().unwrap();
    let page = exporter.next();
    assert_eq!((unreserved(&page, "0"), state(&page, "leased")), (Some(0.0), Some(1.0)));
    node.end();
}

#[test]
fn intruder_on_a_leased_gpu_is_not_its_holder() {
    let redis = pool("0");
    let runner = hold(&redis, &["run"]);
    let (mut own, mut intruder) = (Holder::sleeping(), Holder::sleeping_as(NOBODY_UID));
    let scenario = Scenario::new(&gpus(&[&[own.pid()]]));
    let exporter = watch(&scenario, &redis, &[]);
    for _ in 0..3 {
        assert_eq!(
            unreserved(&exporter.next(), "0"),
            None,
            "the memory may belong to the holder's own process"
        );
    }
    scenario.set(&gpus(&[&[intruder.pid()]]));
    exporter.until("the intruder is reported", |page| (unreserved(page, "0") == Some(1.0)).then_some(()));
    scenario.set(&gpus(&[&[intruder.pid(), number(command_of(&runner))]]));
    exporter.until("the holder is there too", |page| (unreserved(page, "0") == Some(0.0)).then_some(()));
    own.end();
    intruder.end();
    end(runner, Signal::TERM);
}

fn redis_cli(redis: &Redis, args: &[&str]) {
    stdout_of(&Command::new("redis-cli").arg("-s").arg(redis.socket()).args(args).output().unwrap());
}

#[test]
fn lease_of_an_original_client_is_exported() {
    let (redis, mut holder) = (pool("0-2"), Holder::sleeping());
    let mut ended = Holder::sleeping();
    ended.end();
    for (id, pid) in [("0", holder.pid()), ("1", ended.pid())] {
        redis_cli(&redis, &["LREM", "GPU_IDLE", "0", id]);
        let record = format!("GPU_GPU{id}");
        redis_cli(&redis, &["HSET", &record, "PID", &pid.to_string(), "TIME", "2026-11-21 06:29:57"]);
    }
    let scenario = Scenario::new(&gpus(&[&[holder.pid()], &[], &[]]));
    let exporter = watch(&scenario, &redis, &[]);
    let page = exporter.until("the lease holder is known", |page| {
        (unreserved(page, "0") == Some(0.0)).then(|| page.clone())
    });
    assert_eq!((state(&page, "legacy"), state(&page, "idle")), (Some(2.0), Some(1.0)));
    assert_eq!(page.all("bailiff_lease_held", &[("mode", "legacy")]).count(), 2);
    assert_eq!(page.value("bailiff_lease_legacy_suspect", &[]), Some(1.0));
    scenario.set(&gpus(&[&[holder.pid()], &[holder.pid()], &[]]));
    exporter.until("a process is on it", |page| {
        (page.value("bailiff_lease_legacy_suspect", &[]) == Some(0.0)).then_some(())
    });
    assert_eq!(unreserved(&exporter.next(), "1"), None, "the record does not contain the process");
    holder.end();
}

#[test]
fn lease_of_a_script_is_exported() {
    let (redis, directory) = (pool("0"), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(programs::bailiff(), directory.path().join("GPU.py")).unwrap();
    // The recorded pid is that of a subshell that has exited.
    let mut script = Command::new("bash");
    script.args(["-c", "D=$(GPU.py --get | cat); sleep infinity & echo $!; wait"]).process_group(0);
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    script.env("PATH", path).env("LEASE_REDIS_URL", redis.address()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let scenario = Scenario::new(&gpus(&[&[line.trim().parse().unwrap()]]));
    let exporter = watch(&scenario, &redis, &[]);
    exporter.until("the holder is known", |page| (unreserved(page, "0") == Some(0.0)).then_some(()));
    assert_eq!(exporter.page().all("bailiff_lease_held", &[("mode", "compat")]).count(), 1);
    kill_process_group(Pid::from_child(&script), Signal::KILL).unwrap();
    script.wait().unwrap();
}

/// Waits until the pool is reported as down for this reason, and returns that page.
fn until_down(exporter: &Exporter, reason: &str) -> Page {
    exporter.until(reason, |page| {
        let why = [("source", "redis"), ("reason", reason)];
        page.value("bailiff_source_fault_info", &why).map(|_| page.clone())
    })
}

#[test]
fn failed_redis_leaves_a_gap_and_recovers() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    stdout_of(&run(&redis, &["init", "--gpus", "0-1"]));
    let runner = hold(&redis, &["run"]);
    let scenario = Scenario::new(&gpus(&[&[], &[]]));
    let exporter = watch(&scenario, &redis, &[]);
    let whole = |page: &Page| (state(page, "leased") == Some(1.0)).then_some(());
    exporter.until("the pool is exported", whole);
    redis.while_stopped(|| {
        let page = until_down(&exporter, "timeout");
        assert_eq!((up(&page), series(&page)), (Some(0.0), 0), "stale series are not exported");
        for _ in 0..3 {
            let page = exporter.next();
            assert_eq!((up(&page), series(&page)), (Some(0.0), 0));
            assert_eq!(
                page.value("bailiff_gpu_up", &[("gpu", "0")]),
                Some(1.0),
                "other sources are not affected"
            );
        }
    });
    exporter.until("the pool is readable again", whole);
    redis.kill();
    let page = until_down(&exporter, "unreachable");
    assert_eq!((up(&page), series(&page)), (Some(0.0), 0));
    let _ = exporter.next();
    redis.start_again();
    let page = exporter.until("the pool recovers", |page| whole(page).map(|()| page.clone()));
    assert_eq!(state(&page, "barrier"), Some(1.0), "idle GPUs are reserved for other holders");
    assert_eq!(
        page.value("bailiff_lease_events_total", &[("event", "grant")]),
        Some(1.0),
        "events are still counted"
    );
    assert_eq!(page.value("bailiff_lease_redis_aof_enabled", &[]), Some(1.0));
    for args in ["cannot read leases: Redis did not respond in time", "leases can be read again"] {
        exporter.until_logged(args);
    }
    end(runner, Signal::TERM);
}

#[test]
fn redis_password_is_used_and_never_printed() {
    let redis = Redis::with(&["--requirepass", "hunter2"]);
    let scenario = Scenario::new(&gpus(&[&[]]));
    let mut command = exporter::command(&scenario);
    command
        .args(exporter::TICKS)
        .args(PATIENT)
        .env("LEASE_REDIS_URL", format!("{}?pass=hunter3", redis.address()));
    let wrong = Exporter::spawn(command);
    let page = until_down(&wrong, "not_permitted");
    assert_eq!((up(&page), series(&page)), (Some(0.0), 0));
    wrong.until_logged("cannot read leases");
    assert!(!wrong.log().contains("hunter"), "{}", wrong.log());
    let right = format!("{}?pass=hunter2", redis.address());
    let exporter = Exporter::start(&scenario, &[&PATIENT, ["--lease.redis", &right].as_slice()].concat());
    exporter.until("the exporter may read the pool", |page| (up(page) == Some(1.0)).then_some(()));
    let output = exporter::run(&["--lease.redis=redsi://bob:hunter2@host/0"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{printed}");
    assert!(printed.contains("--lease.redis") && !printed.contains("hunter"), "{printed}");
    let mut help = Command::new(programs::exporter());
    let help = help.arg("--help").env("LEASE_REDIS_URL", &right).output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("hunter"));
}

#[test]
fn without_a_pool_lease_metrics_are_absent() {
    let scenario = Scenario::named("busy");
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.next();
    assert_eq!((up(&page), series(&page)), (None, 0));
}

/// Every client with the password can write any numbers.
#[test]
fn huge_counts_in_redis_are_limited() {
    let (scenario, redis) = (Scenario::new(&gpus(&[&[]])), pool("0"));
    let most = u64::MAX.to_string();
    redis_cli(&redis, &["HSET", "GPU_V2:COUNTS", "wait:10", &most, "wait:100", "1", "wait:longer", &most]);
    redis_cli(&redis, &["HSET", "GPU_V2:COUNTS", "waited", &most]);
    let exporter = watch(&scenario, &redis, &[]);
    exporter.until("the counts", |page| {
        page.value("bailiff_lease_wait_seconds_count", &[]).filter(|count| *count > 1.8e19)
    });
}

#[test]
fn hostile_redis_is_bounded() {
    let (scenario, mut redis) = (Scenario::new(&gpus(&[&[]])), pool("0"));
    let exporter = Exporter::start(&scenario, &["--lease.redis", &redis.address()]);
    let until_up = || exporter.until("Redis responds", |page| (up(page) == Some(1.0)).then_some(()));
    until_up();
    let before = exporter.peak_mib();
    for (attack, _) in ATTACKS {
        redis.kill();
        let hostile = HostileRedis::listen(&redis.socket(), attack);
        hostile.until_refused(4);
        exporter.until("Redis is down", |page| (up(page) == Some(0.0)).then_some(()));
        assert_eq!(series(&exporter.page()), 0, "{attack:?}");
        println!("{} MiB after {attack:?}", exporter.peak_mib());
        redis.start_again();
        until_up();
    }
    let after = exporter.peak_mib();
    assert!(after < before + MOST_MIB, "{before} MiB before, {after} MiB after");
}
