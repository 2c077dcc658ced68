//! Tests the whole lifecycle of `bailiff run` with a real Redis server: what the exporter shows while a command runs,
//! and that nothing remains of it, no matter which process was sent which signal at which time.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a case runs programs, compares exact figures and fails loudly"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bailiff_lease::Leases as _;
use bailiff_lease::Pool;
use bailiff_lease::audit::Audit;
use end_to_end::cuda::{self, Machine, Running};
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::leases::{self, stdout_of};
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::redis::Redis;
use end_to_end::tenant::start;
use end_to_end::wait::until;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

const GIB: u64 = 1 << 30;
/// UUIDs of the GPUs in the fake drivers, CUDA and NVML.
const GPUS: [&str; 2] =
    ["GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"];
/// Environment variable that marks all processes in a round.
const TAG: &str = "RUN_WHOLE";

/// Returns two GPUs, the first of which has this process.
fn gpus(process: &str) -> String {
    let [first, second] = GPUS;
    format!(
        "sampling_period: 20ms\ngpus:\n  - {{uuid: {first}, processes: [{process}]}}\n  - {{uuid: {second}}}\n"
    )
}

/// A machine with two GPUs in a pool in Redis.
struct Fixture {
    machine: Machine,
    scenario: Scenario,
    redis: Redis,
}

impl Fixture {
    fn new() -> Self {
        let (machine, redis) = (Machine::new(), Redis::start());
        let scenario = Scenario::new(&gpus("{pid: 1, sm: 70}"));
        let library = programs::fake_nvml().display().to_string();
        let mut init = leases::bailiff(&redis, &["init", "--nvml-library", &library]);
        stdout_of(&init.env("FAKE_NVML_SCENARIO", scenario.path()).output().unwrap());
        Self { machine, scenario, redis }
    }

    /// Returns the directory that contains the users' quota directories.
    fn quotas(&self) -> PathBuf {
        self.machine.path("quotas")
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.quotas().join("0")).into_iter().flatten();
        files.map(|file| file.unwrap().path()).collect()
    }

    fn run(&self, args: &[&str]) -> Command {
        let mut command = self.machine.bare(programs::bailiff());
        for other in ["LEASE_DIR", "BAILIFF_QUOTA_LIBRARY", "LD_PRELOAD", "BAILIFF_LEASE_ID"] {
            command.env_remove(other);
        }
        command.env("LEASE_REDIS_URL", self.redis.address()).env("FAKE_NVML_SCENARIO", self.scenario.path());
        command.arg("run").arg("--quota-dir").arg(self.quotas().join("0"));
        command.arg("--nvml-library").arg(programs::fake_nvml()).args(args);
        command
    }

    /// Returns an audit from a dry run.
    fn audit(&self) -> Audit {
        Pool::open(&self.redis.address(), "GPU", Duration::from_secs(30)).unwrap().audit().unwrap()
    }

    /// Returns the number of idle GPUs, or `None` if a GPU is leased or requested.
    fn idle(&self) -> Option<u32> {
        let audit = self.audit();
        audit.leases.is_empty().then(|| audit.gpus.iter().map(|gpu| u32::from(gpu.idle == 1)).sum())
    }

    fn watch(&self) -> Exporter {
        let (address, quotas) = (self.redis.address(), self.quotas().display().to_string());
        let flags = ["--deadline", "10s", "--lease.redis", &address, "--quota.dir", &quotas];
        Exporter::start(&self.scenario, &flags)
    }
}

fn of(page: &Page, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    page.value(&format!("bailiff_quota_{name}"), labels)
}

#[expect(clippy::cast_precision_loss, reason = "it is a power of two")]
fn gib(count: u64) -> f64 {
    (count * GIB) as f64
}

fn series_count(page: &Page, name: &str) -> usize {
    page.all(name, &[]).count()
}

/// The client's calls: one allocation that fits into 4 GiB, and one that does not.
const CLIENT: &str = r#"echo $$; exec "$0" proc "init 0" "alloc 3221225472" "alloc 2147483648" wait"#;

#[test]
fn limited_command_is_exported_until_it_idles() {
    let fixture = Fixture::new();
    let exporter = fixture.watch();
    let args = ["--gpus", "2", "--vram", "4GiB", "--idle-timeout", "600ms", "--grace", "10s"];
    let mut command = fixture.run(&[&args[..], &["--", "sh", "-c", CLIENT]].concat());
    command.arg(cuda::client("proc")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let pid = lines.next().unwrap();
    let holds = |usage: u32| gpus(&format!("{{pid: {pid}, sm: {usage}, used: 3500MiB}}"));
    fixture.scenario.set(&holds(70));
    let answers: Vec<String> = lines.by_ref().take(4).collect();
    assert_eq!(answers, ["0", "0", "2", "waiting"], "the second allocation exceeds the limit");
    let page = exporter
        .until("all is shown", |page| of(page, "process_used_bytes", &[("pid", &pid)]).map(|_| page.clone()));
    for gpu in ["0", "1"] {
        let held = [("gpu", gpu), ("gpu_uuid", GPUS[gpu.parse::<usize>().unwrap()]), ("mode", "run")];
        assert_eq!(page.value("bailiff_lease_held", &held), Some(1.0), "{gpu}");
    }
    let [file] = fixture.files().try_into().unwrap();
    let quota = format!("0/{}", file.file_name().unwrap().to_str().unwrap());
    let first = [("quota", &*quota), ("gpu", "0"), ("gpu_uuid", GPUS[0])];
    let figures = ["limit_bytes", "used_bytes", "process_used_bytes", "denied_total", "denied_bytes_total"];
    let expected = [gib(4), gib(3), gib(3), 1.0, gib(2)].map(Some);
    assert_eq!(figures.map(|name| of(&page, name, &first)), expected);
    assert_eq!(page.value("bailiff_source_up", &[("source", "quota")]), Some(1.0));
    fixture.scenario.set(&holds(0));
    let status = until("the idle timeout ends it", || running.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(124));
    // The launcher is the only process that releases the GPUs and the file.
    assert_eq!((fixture.idle(), fixture.files()), (Some(2), Vec::new()));
    assert_eq!(start(pid.parse().unwrap()), None);
    assert_summary(&mut running);
    fixture.scenario.set(&gpus(""));
    exporter.until("nothing is shown any more", |page| {
        let gone = ["bailiff_lease_held", "bailiff_quota_region_valid", "bailiff_quota_used_bytes"];
        (gone.map(|name| series_count(page, name)) == [0; 3]).then_some(())
    });
}

/// Asserts the start and the end of each line; between them is a duration.
fn assert_summary(running: &mut Running) {
    let expected = [
        ("bailiff: GPUs 0,1 leased", ""),
        ("bailiff: the GPUs are idle: stopping the command", ""),
        ("bailiff: the command was stopped after ", "s"),
        ("bailiff: 2 GPUs held, ", " GPU-seconds busy"),
        (&format!("bailiff: peak memory: 3.4 GiB on {}", GPUS[0]), ""),
        (
            &format!(
                "bailiff: peak under the quota: 3.0 GiB of 4.0 GiB on {}, 1 request refused",
                &GPUS[0]["GPU-".len()..]
            ),
            "",
        ),
        ("bailiff: the command was stopped: its GPUs were idle", ""),
    ];
    let mut printed = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    let fits = printed.lines().zip(expected).all(|(line, (begin, end))| {
        let rest = line.strip_prefix(begin);
        rest.is_some_and(|rest| rest.ends_with(end) && rest.is_empty() == end.is_empty())
    });
    assert!(fits && printed.lines().count() == expected.len(), "{printed}");
}

/// A kind of process in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Launcher,
    /// The helper that queries the driver for the launcher.
    Helper,
    Child,
    Grandchild,
    /// A process that has forked and not yet called exec.
    Beginning,
}

/// The command: a child with two descendants, one with memory under the quota, and one on which the child waits.
const TREE: &str = r#"sleep "$1" | "$0" proc "init 0" "alloc 4096" wait & sleep 0.02; wait"#;
/// The time for which the child waits. With this time, most processes are signalled while they exit, or outlive their
/// parent.
const SHORT: &str = "0.05";
const LONG: &str = "0.4";

/// Returns the number of random rounds: few in the usual run, more in `make soak`.
fn times(usual: usize, variable: &str) -> usize {
    std::env::var(variable).ok().and_then(|times| times.parse().ok()).unwrap_or(usual)
}

/// A random generator with a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// A disturbance in a round.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// The previous holder of a GPU releases it.
    Free,
    Send(Part, Signal),
}

/// Returns a schedule of disturbances.
fn plan(dice: &mut Dice, span: Duration) -> Vec<(Duration, Act)> {
    let most = u64::try_from(span.as_micros()).unwrap();
    let parts = [Part::Launcher, Part::Launcher, Part::Child, Part::Grandchild, Part::Helper];
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL];
    let mut plan: Vec<(Duration, Act)> = (0..=dice.below(3))
        .map(|_| {
            let act = Act::Send(dice.one_of(&parts), dice.one_of(&signals));
            (Duration::from_micros(dice.below(most + most / 4)), act)
        })
        .collect();
    if dice.below(2) == 0 {
        plan.push((Duration::from_micros(dice.below(most)), Act::Free));
    }
    plan.sort_by_key(|(moment, _)| *moment);
    plan
}

/// A process tree that is disturbed. Its remaining processes are killed on drop.
struct Round<'a> {
    fixture: &'a Fixture,
    seed: String,
    /// Unique to this round.
    tag: String,
    launcher: Child,
    rival: Option<Child>,
}

impl<'a> Round<'a> {
    fn start(fixture: &'a Fixture, seed: String, (sleep_time, has_rival): (&str, bool)) -> Self {
        let tag = fixture.machine.path(&seed).display().to_string();
        let rival = has_rival.then(|| leases::hold(&fixture.redis, &["run", "-n", "1"]));
        let mut command = fixture.run(&["--gpus", "2", "--vram", "1GiB", "--", "sh", "-c", TREE]);
        command.arg(cuda::client("proc")).arg(sleep_time).env(TAG, &tag).process_group(0);
        let stderr = fs::File::create(fixture.machine.path("stderr")).unwrap();
        let launcher = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Self { fixture, seed, tag, launcher, rival }
    }

    /// Returns whether this process belongs to the tree and is running.
    fn has(&self, pid: u32) -> bool {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let tag = format!("{TAG}={}", self.tag);
        environment.split(|byte| *byte == 0).any(|pair| pair == tag.as_bytes()) && start(pid).is_some()
    }

    fn part(&self, pid: u32) -> Part {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut args = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let program = args.next().unwrap_or_default().into_owned();
        match args.next().as_deref() {
            _ if pid == self.launcher.id() => Part::Launcher,
            Some("sampling-launcher" | "sampling-worker") => Part::Helper,
            _ if program == "sh" && self.is_first(pid) => Part::Child,
            _ if program.ends_with("/bailiff") => Part::Beginning,
            _ => Part::Grandchild,
        }
    }

    /// Returns whether the process was not forked by a shell in the tree (shells fork before they call exec).
    fn is_first(&self, pid: u32) -> bool {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok();
        let parent = stat.and_then(|stat| bailiff_snapshot::stat::parse(&stat)).map(|stat| stat.ppid);
        parent.is_some_and(|parent| parent == self.launcher.id() || !self.has(parent))
    }

    /// Returns the running processes in the tree.
    fn members(&self) -> BTreeMap<u32, Part> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| self.has(*pid)).map(|pid| (pid, self.part(pid))).collect()
    }

    /// Returns the running processes of the command.
    fn command(&self) -> Vec<u32> {
        let of_it = |part: &Part| matches!(part, Part::Child | Part::Grandchild);
        self.members().into_iter().filter(|(_, part)| of_it(part)).map(|(pid, _)| pid).collect()
    }

    /// Signals a process in the tree, but never another process that has reused its pid.
    fn signal(&self, pid: u32, signal: Signal) -> bool {
        let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let handle = pidfd_open(process, PidfdFlags::empty());
        handle.is_ok_and(|handle| self.has(pid) && pidfd_send_signal(&handle, signal).is_ok())
    }

    /// Applies a disturbance. Returns whether there was a process for it.
    fn act(&mut self, act: Act, dice: &mut Dice) -> bool {
        match act {
            Act::Free => self.rival.take().map(|rival| leases::end(rival, Signal::TERM)).is_some(),
            Act::Send(Part::Launcher, signal) => {
                // The pid cannot be reused before the launcher has been waited for.
                self.has(self.launcher.id()) && kill_process(Pid::from_child(&self.launcher), signal).is_ok()
            }
            Act::Send(part, signal) => {
                let those = self.members().into_iter().filter(|(_, other)| *other == part);
                let those: Vec<u32> = those.map(|(pid, _)| pid).collect();
                !those.is_empty() && self.signal(dice.one_of(&those), signal)
            }
        }
    }

    /// Returns the standard error of the launcher so far.
    fn stderr_text(&self) -> String {
        fs::read_to_string(self.fixture.machine.path("stderr")).unwrap_or_default()
    }

    /// Asserts that nothing remains and that no cleanup is needed.
    fn assert_nothing_left(&self) {
        assert_eq!(self.command(), Vec::<u32>::new());
        assert_eq!(self.fixture.files(), Vec::<PathBuf>::new());
        // A launcher that exits at the moment when GPUs are granted to it leaves them for the next command to release.
        if self.fixture.idle() != Some(2) {
            assert!(!self.stderr_text().contains("the command"), "the launcher has not released its GPUs");
            self.reap();
        }
        assert_eq!(self.fixture.idle(), Some(2));
    }

    /// Asserts that remaining processes keep all resources until they exit, and that later commands free the resources
    /// then. Returns whether a process remained.
    fn assert_used_resources_kept(&self) -> bool {
        let before = self.command();
        self.reap();
        let (audit, files) = (self.fixture.audit(), self.fixture.files());
        let survivors = self.command().iter().any(|pid| before.contains(pid));
        if survivors {
            let held = audit.leases.iter().map(|lease| (&*lease.state, lease.gpus().count()));
            assert_eq!(held.collect::<Vec<_>>(), [("held", 2)]);
            assert_eq!(files.len(), 1);
        }
        until("the end of the remaining processes", || {
            for pid in self.command() {
                self.signal(pid, Signal::KILL);
            }
            self.members().is_empty().then_some(())
        });
        until("the GPUs are idle", || {
            self.reap();
            (self.fixture.idle() == Some(2)).then_some(())
        });
        stdout_of(&self.fixture.run(&["--quiet", "--vram", "1GiB", "true"]).output().unwrap());
        assert_eq!(self.fixture.files(), Vec::<PathBuf>::new());
        survivors
    }

    fn reap(&self) {
        stdout_of(&leases::run(&self.fixture.redis, &["reap"]));
    }

    fn ended(&mut self) -> ExitStatus {
        until("the launcher's end", || self.launcher.try_wait().unwrap())
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("BAILIFF_SEED={}; {:?}; stderr: {}", self.seed, self.members(), self.stderr_text());
        }
        for pid in self.members().into_keys() {
            self.signal(pid, Signal::KILL);
        }
        let _ = self.launcher.wait();
        if let Some(mut rival) = self.rival.take() {
            let _ = rival.kill();
            let _ = rival.wait();
        }
    }
}

/// Disturbs one tree. Returns what was done and how the tree ended.
fn disturb(fixture: &Fixture, seed: u64, span: Duration) -> Vec<String> {
    let mut dice = Dice(seed);
    let plan = plan(&mut dice, span);
    let has_rival = plan.iter().any(|(_, act)| matches!(act, Act::Free));
    let sleep_time = dice.one_of(&[SHORT, LONG]);
    let began = Instant::now();
    let mut round = Round::start(fixture, seed.to_string(), (sleep_time, has_rival));
    let began = if has_rival { Instant::now() } else { began };
    let mut done = Vec::new();
    for (moment, act) in plan {
        // Only the moment of the disturbance is random.
        std::thread::park_timeout(moment.saturating_sub(began.elapsed()));
        let met = round.act(act, &mut dice);
        done.push(if met { format!("{act:?}") } else { "no process".to_owned() });
    }
    let status = round.ended();
    let left = round.stderr_text().contains("are still running after");
    done.push(match status.signal() {
        Some(9) => "the launcher was killed".to_owned(),
        _ if left => "some were left".to_owned(),
        _ => format!("ended by {status}"),
    });
    if status.signal() == Some(9) || left {
        if round.assert_used_resources_kept() {
            done.push("the command lived on".to_owned());
        }
    } else {
        round.assert_nothing_left();
    }
    until("the end of its helpers", || round.members().is_empty().then_some(()));
    assert_eq!(fixture.machine.used(0), 0);
    done
}

#[test]
fn signalled_run_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let began = Instant::now();
    let mut calm = Round::start(&fixture, "calm".to_owned(), (SHORT, false));
    assert!(calm.ended().success(), "{}", calm.stderr_text());
    let span = began.elapsed();
    calm.assert_nothing_left();
    drop(calm);
    let first = times(std::process::id() as usize, "BAILIFF_SEED");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let rounds = times(12, "BAILIFF_ENDS");
    for seed in first..first + rounds {
        for what in disturb(&fixture, seed as u64, span) {
            *counts.entry(what).or_default() += 1;
        }
    }
    println!("{rounds} rounds of {span:?} in {:?}: {counts:#?}", began.elapsed());
}
