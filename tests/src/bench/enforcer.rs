//! Benchmarks the enforcer under load. The benchmark replaces the exporter, so that only the enforcer is measured. The
//! processes are real, because the enforcer reads each of them before it acts.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bailiff_proc::Pidfd;
use bailiff_proc::clock::Deadline;
use bailiff_snapshot::{Place, stat, wire};
use rustix::process::Signal;
use snapshot_fixtures::stream as fixtures;
use tempfile::TempDir;

use crate::programs;
use crate::wait::{LONG, until};

/// Uid of user nobody. It is used because root's processes are protected.
const NOBODY_UID: u32 = 65534;
/// Interval in the snapshots. They are sent as fast as the enforcer reads them.
const TICK: Duration = Duration::from_secs(1);

/// An enforcer, its stream, and processes that hold a GPU.
pub struct EvalContext {
    directory: TempDir,
    enforcer: Child,
    stream: UnixStream,
    holders: Vec<Holder>,
    seq: u64,
}

/// A process that holds a GPU. It is not a child of this process, because the enforcer exempts descendants of the process
/// that listens on the stream's socket.
struct Holder {
    pidfd: Pidfd,
    process: wire::Process,
}

impl EvalContext {
    /// Starts an enforcer with this many holders, and with this many rules in addition to the rule for holders that
    /// have been idle for three samples.
    ///
    /// # Panics
    /// If a program cannot be started.
    pub fn new(holders: usize, rules: usize) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        File::create(directory.path().join("nvidia0")).expect("a stand-in for a device");
        std::fs::write(directory.path().join("rules.yaml"), policy(rules)).expect("rules can be written");
        let listener = UnixListener::bind(directory.path().join("stream.sock")).expect("a socket");
        let enforcer = start(&directory);
        let (stream, _) = listener.accept().expect("the enforcer connects");
        let holders = (0..holders).map(|_| Holder::start(&directory)).collect();
        let mut context = Self { directory, enforcer, stream, holders, seq: 0 };
        // The enforcer does not start actions in the first snapshots after its start.
        for _ in 0..4 {
            context.send(0);
            context.until_evaluated();
        }
        context
    }

    /// Sends a snapshot in which the first holders are idle and the others are busy. Returns the time before it was
    /// sent.
    ///
    /// # Panics
    /// If the enforcer no longer reads the stream.
    pub fn send(&mut self, idle: usize) -> Instant {
        self.seq += 1;
        let mut line = serde_json::to_vec(&self.snapshot(idle)).expect("a snapshot has a form");
        line.push(b'\n');
        let began = Instant::now();
        self.stream.write_all(&line).expect("the enforcer reads");
        began
    }

    /// Makes the first holder idle until it is terminated. Returns the time from the confirming snapshot to its exit.
    ///
    /// # Panics
    /// If the holder is not terminated.
    pub fn end_one(&mut self) -> Duration {
        // The third of three samples triggers the action.
        for _ in 0..3 {
            self.send(1);
            self.until_evaluated();
        }
        // A tick takes longer than the work after the decision, which is writing the state to disk and reading all
        // processes.
        std::thread::park_timeout(TICK / 10);
        until("the state to be on the disk", || {
            self.metric("bailiff_hold_active{hold=\"state\"}").filter(|held| *held == 0.0)
        });
        let began = self.send(1);
        self.holders[0].wait();
        let took = began.elapsed();
        self.holders.remove(0);
        // The holder's memory is released, so that the next holder can be terminated.
        until("the action's end", || {
            self.send(0);
            self.until_evaluated();
            self.metric("bailiff_action_in_flight").filter(|flying| *flying == 0.0)
        });
        took
    }

    /// Measures the lower bound: signals the last holder directly. Returns the time from the signal to the holder's
    /// exit.
    ///
    /// # Panics
    /// If the holder does not exit.
    pub fn end_without(&mut self) -> Duration {
        let victim = self.holders.pop().expect("a holder is left");
        let began = Instant::now();
        victim.pidfd.send(Signal::TERM).expect("a signal can be sent");
        victim.wait();
        began.elapsed()
    }

    /// Waits until the last snapshot has been evaluated.
    ///
    /// # Panics
    /// If it is not evaluated in time.
    pub fn until_evaluated(&self) {
        let seq = self.seq;
        until("the snapshot to be evaluated", || {
            let until_evaluated = self.metric("bailiff_enforcer_snapshots_total")?;
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            (until_evaluated >= seq as f64).then_some(())
        });
    }

    /// Returns the enforcer's resident memory in MiB.
    ///
    /// # Panics
    /// If `/proc` cannot be read.
    pub fn rss_mib(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.enforcer.id()))
            .expect("the status is readable");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS is present");
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib / 1024.0
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let address = std::fs::read_to_string(self.directory.path().join("log")).ok()?;
        let address = address.lines().find_map(|line| line.split("address=").nth(1))?.trim().parse().ok()?;
        let page = crate::http::get(address, "/metrics", &[]).ok()?.text();
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    fn snapshot(&self, idle: usize) -> wire::Snapshot {
        let holders = self.holders.iter().enumerate().map(|(place, holder)| {
            fixtures::holder(holder.process.pid, Some(64 << 20), Some(if place < idle { 0 } else { 50 }))
        });
        let used = (64u64 << 20) * self.holders.len() as u64;
        let memory = wire::Memory {
            total: 1 << 40,
            free: (1 << 40) - used,
            used,
            unaccounted: Some(0),
            ..wire::Memory::default()
        };
        let gpu = wire::Gpu { memory: Some(memory), ..fixtures::gpu("bench", holders.collect()) };
        let processes = self.holders.iter().map(|holder| holder.process.clone()).collect();
        wire::Snapshot {
            boot_id: Some(boot_id()),
            wall_ms: wall_ms(),
            boot_ms: boot_ms(),
            interval_ms: u64::try_from(TICK.as_millis()).unwrap_or(u64::MAX),
            relatives: Some(Vec::new()),
            ..fixtures::snapshot(self.seq, vec![gpu], processes)
        }
    }
}

impl Drop for EvalContext {
    fn drop(&mut self) {
        let _ = self.enforcer.kill();
        let _ = self.enforcer.wait();
    }
}

impl Holder {
    fn start(directory: &TempDir) -> Self {
        let device = File::open(directory.path().join("nvidia0")).expect("the stand-in for a device");
        let mut command = Command::new("sh");
        // A background process of sh would have /dev/null as its standard input.
        command.args(["-c", "exec 3<&0; sleep infinity <&3 >/dev/null 2>&1 & echo $!"]).stdin(device);
        let output = command.uid(NOBODY_UID).gid(NOBODY_UID).output().expect("sh starts");
        let pid = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a pid");
        let pidfd = Pidfd::open(pid).expect("a pidfd").expect("sleep runs");
        let process = until("what /proc says of it", || describe(pid));
        Self { pidfd, process }
    }

    /// Waits until the process has exited.
    fn wait(&self) {
        let exited = self.pidfd.exited_by(Some(Deadline::after(LONG)));
        assert_eq!(exited, Ok(true), "the process is terminated");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.pidfd.send(Signal::KILL);
    }
}

/// Describes a process as the exporter reports it, in its own process tree.
fn describe(pid: u32) -> Option<wire::Process> {
    let found = stat::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let facts = wire::Facts {
        ppid: found.ppid,
        uid: Some(NOBODY_UID),
        user: Some("nobody".into()),
        place: Place::parse(&cgroup).into(),
        reaped_cpu_seconds: Some(0.0),
        workload: Some(format!("tree:{pid}@{}", found.key.start_ticks)),
        ..fixtures::facts(&found.comm)
    };
    (found.comm == "sleep").then(|| fixtures::process(pid, found.key.start_ticks, facts))
}

fn start(directory: &TempDir) -> Child {
    let at = |name: &str| directory.path().join(name);
    let argument = |flag: &str, path: PathBuf| format!("{flag}={}", path.display());
    let mut command = Command::new(programs::enforcer());
    command.arg("run").arg(at("rules.yaml"));
    command.arg(argument("--stream", at("stream.sock"))).arg(argument("--control", at("control.sock")));
    command.arg(argument("--state", directory.path().to_owned())).arg(argument("--audit", at("audit.jsonl")));
    command.arg(argument("--devices", at("nvidia"))).args(["--trust-pid-namespace", "--verify=5s"]);
    command.arg("--web.listen-address=127.0.0.1:0");
    command.stderr(File::create(at("log")).expect("a log")).spawn().expect("the enforcer starts")
}

fn policy(rules: usize) -> String {
    let mut text = "version: 1
limits: {per_gpu_hour: 1000, per_user_hour: 1000, per_node_hour: 1000}
rules:
  - name: idle
    mode: enforce
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    startup_grace: 0s
    cooldown: 0s
    then: [{terminate: {grace: 5s}}]
"
    .to_owned();
    for number in 0..rules {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "  - name: more-{number}
    target: process
    select: {{vram: {{min: {}MiB}}, users: [\"no*\"]}}
    when: {{gpu_util: {{max: 1%}}, cpu_util: {{max: 5%}}}}
    for: {{samples: {}}}
    startup_grace: 0s
    then: [{{flag: warning}}]
",
            number % 64 + 1,
            1000 + number,
        );
    }
    text
}

fn boot_id() -> String {
    let mut text = String::new();
    let mut file = File::open("/proc/sys/kernel/random/boot_id").expect("the boot has an id");
    file.read_to_string(&mut text).expect("the text is UTF-8");
    text.trim().to_owned()
}

fn boot_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
