//! Tests the executor on real processes, which each test starts and ends itself. They run as user nobody, because
//! root's processes are protected. A made-up snapshot replaces the driver.
#![expect(clippy::disallowed_methods, reason = "tests start programs, read files and wait")]

mod clients;
mod formats;
mod mail;
mod namespaces;
mod outside;
mod refusing;
mod result;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bailiff_snapshot::{LostGpu, ProcessKey, wire};
use serde_json::Value;
use snapshot_fixtures::stream as fixtures;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{ActionRequest, Executor, ExecutorSettings, Permission, Question};
use crate::audit::{self, About, Audit};
use crate::clock;
use crate::process_table::Processes;
use bailiff_engine::Kind;
use bailiff_engine::guard::{Limits, OnHold, Root};
use bailiff_engine::policy::{Action, Mode};
use bailiff_engine::process::is_over;
use bailiff_engine::verdict::{ActionReport, Evidence, Member, Subject};
use bailiff_engine::view::{TargetId, View};

const NOBODY: u32 = 65534;
const MIB: u64 = 1 << 20;
const INTERVAL: Duration = Duration::from_millis(20);

/// Polls until there is a result; the time limit only keeps a broken test from hanging.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(50), "waited for: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A process of this test, in its own session, with a device file as its standard input.
struct Holder(Child);

impl Holder {
    /// A shell program run as user nobody; returns after its first line of output.
    fn shell(home: &Home, program: &str) -> Self {
        Self::start(home, NOBODY, &["/bin/sh", "-c", program])
    }

    fn start(home: &Home, uid: u32, argv: &[&str]) -> Self {
        let mut command = Command::new("setsid");
        command.args(argv).uid(uid).gid(uid).current_dir("/");
        Self::begin(command.stdin(File::open(home.device()).unwrap()))
    }

    fn begin(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it ended before its first line");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn key(&self) -> ProcessKey {
        key(self.pid())
    }

    /// Returns whether the process is running; a zombie is not.
    fn lives(&self) -> bool {
        lives(self.pid())
    }
}

/// Kills all processes in its session, whether the test passed or not.
impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        for pid in of_session(self.0.id()) {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            if let Ok(left) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
                let _ = rustix::process::pidfd_send_signal(left, rustix::process::Signal::KILL);
            }
        }
    }
}

fn proc_table() -> Processes {
    Processes::open("/proc".as_ref(), "/dev/nvidia").unwrap()
}

fn key(pid: u32) -> ProcessKey {
    proc_table().person(pid).unwrap().unwrap().stat.key
}

/// Returns whether a thread of the process is running.
fn lives(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    proc_table().person(pid).unwrap().is_some_and(|person| !is_over(person.stat.state) || threads > 1)
}

/// Returns the running processes of a session.
fn of_session(leader: u32) -> Vec<u32> {
    let table = proc_table().everybody().unwrap();
    let all = table.people.values();
    let theirs = all.filter(|person| person.stat.session == leader && !is_over(person.stat.state));
    theirs.map(|person| person.stat.key.pid).collect()
}

/// A directory with a device file in it, and an audit log.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        fs::write(home.device(), "").unwrap();
        home
    }

    fn device(&self) -> PathBuf {
        self.0.path().join("nvidia0")
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("audit.jsonl")
    }

    fn audit(&self) -> Audit {
        let settings = audit::AuditSettings { path: self.log(), max_bytes: 1 << 20, keep: 2, kept: None };
        Audit::open(settings, About { node: "n1".into(), boot_id: Some("b".into()) }, super::continue_stopped)
            .unwrap()
    }

    /// The lines of the audit log.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The `result` of each line of the audit log, in order.
    fn results(&self) -> Vec<String> {
        self.lines().iter().map(|line| line["result"].as_str().unwrap().to_owned()).collect()
    }

    /// Signals in the last line of the audit log, without repetitions.
    fn signals(&self) -> Vec<String> {
        let lines = self.lines();
        let sent = lines.last().unwrap()["sent"].as_array().unwrap();
        let mut names: Vec<String> =
            sent.iter().map(|sent| sent["signal"].as_str().unwrap().to_owned()).collect();
        names.dedup();
        names
    }

    fn settings(&self) -> ExecutorSettings {
        ExecutorSettings {
            devices: self.device().display().to_string(),
            verify: Duration::from_secs(5),
            cgroups: None,
            node: "n1".into(),
            ..ExecutorSettings::default()
        }
    }

    fn executor(&self) -> Executors {
        self.executor_with(self.settings())
    }

    fn executor_with(&self, settings: ExecutorSettings) -> Executors {
        let (executor, channels) = Executor::start(settings, self.audit()).unwrap();
        let executor = Arc::new(executor);
        let answer = Arc::new(Mutex::new(Permission::Granted));
        answer_questions(&executor, channels.questions, &answer);
        Executors { executor: Some(executor), reports: channels.reports, answer, seq: 0 }
    }
}

/// Answers every question from the executor with `answer`, until the executor is dropped.
fn answer_questions(
    executor: &Arc<Executor>,
    mut questions: UnboundedReceiver<Question>,
    answer: &Arc<Mutex<Permission>>,
) {
    let (executor, answer) = (Arc::downgrade(executor), Arc::clone(answer));
    std::thread::spawn(move || {
        while let Some(question) = questions.blocking_recv() {
            let Some(executor) = executor.upgrade() else { return };
            executor.permit(question, answer.lock().unwrap().clone());
        }
    });
}

/// The executor and its callers.
struct Executors {
    executor: Option<Arc<Executor>>,
    reports: UnboundedReceiver<ActionReport>,
    /// Answer to the executor's questions.
    answer: Arc<Mutex<Permission>>,
    seq: u64,
}

impl Executors {
    fn executor(&self) -> &Executor {
        self.executor.as_ref().unwrap()
    }

    /// Passes a snapshot with these holders to the executor.
    fn see(&mut self, machine: &Machine) {
        self.seq += 1;
        self.executor().seen(Arc::new(machine.view(self.seq)));
    }

    /// Performs an action, passing on snapshots with the running holders until the report arrives.
    fn act(&mut self, request: ActionRequest, machine: &mut Machine) -> ActionReport {
        self.see(machine);
        self.executor().act(request).unwrap();
        self.report(machine)
    }

    fn report(&mut self, machine: &mut Machine) -> ActionReport {
        let mut seen = Instant::now();
        until("a report", || {
            if seen.elapsed() > INTERVAL {
                seen = Instant::now();
                machine.sample();
                self.see(machine);
            }
            self.reports.try_recv().ok()
        })
    }
}

/// Holders and memory that the driver would report.
#[derive(Default)]
struct Machine {
    holders: Vec<Listed>,
    unaccounted: i64,
    /// Exited holders stay listed.
    stuck: bool,
    /// Memory of exited holders becomes unaccounted.
    leaks: bool,
    /// The holders are MPS clients.
    clients: bool,
    /// Further GPUs.
    others: Vec<wire::Gpu>,
    lost: Vec<LostGpu>,
    /// Processes that the driver lists, but `/proc` did not show in time.
    unread: Vec<wire::Process>,
}

struct Listed {
    key: ProcessKey,
    bytes: u64,
    utilization: u32,
    io_bytes: u64,
}

impl Machine {
    fn with(holders: &[ProcessKey]) -> Self {
        let listed = |key: &ProcessKey| Listed { key: *key, bytes: 100 * MIB, utilization: 0, io_bytes: 0 };
        Self { holders: holders.iter().map(listed).collect(), ..Self::default() }
    }

    /// Removes exited holders from the list.
    fn sample(&mut self) {
        if self.stuck {
            return;
        }
        let leaks = self.leaks;
        let mut lost = 0;
        self.holders.retain(|listed| {
            let there = lives(listed.key.pid) && key(listed.key.pid) == listed.key;
            lost += if there { 0 } else { listed.bytes };
            there
        });
        if leaks {
            self.unaccounted += lost.cast_signed();
        }
    }

    fn view(&self, seq: u64) -> View {
        let holder = |listed: &Listed| wire::Holder {
            kinds: if self.clients { "M" } else { "C" }.into(),
            ..fixtures::holder(listed.key.pid, Some(listed.bytes), Some(listed.utilization))
        };
        let memory = wire::Memory {
            total: 1 << 34,
            free: 1 << 33,
            used: 1 << 33,
            unaccounted: Some(self.unaccounted),
            ..wire::Memory::default()
        };
        let gpu = wire::Gpu {
            uuid: Some("GPU-1".into()),
            minor: Some(0),
            memory: Some(memory),
            ..fixtures::gpu("0", self.holders.iter().map(holder).collect())
        };
        let gpus = [gpu].into_iter().chain(self.others.clone()).collect();
        let processes = self.holders.iter().map(process).chain(self.unread.clone()).collect();
        let snapshot = wire::Snapshot {
            boot_ms: u64::try_from(clock::since_boot().as_millis()).unwrap(),
            interval_ms: u64::try_from(INTERVAL.as_millis()).unwrap(),
            lost: self.lost.clone(),
            ..fixtures::snapshot(seq, gpus, processes)
        };
        View::between(None, snapshot)
    }
}

fn process(listed: &Listed) -> wire::Process {
    let facts = wire::Facts { uid: Some(NOBODY), io_bytes: Some(listed.io_bytes), ..fixtures::facts("x") };
    fixtures::process(listed.key.pid, listed.key.start_ticks, facts)
}

/// Returns a subject whose members are these holders, as `/proc` shows them now.
fn subject(kind: Kind, id: &str, holders: &[ProcessKey]) -> Subject {
    let member = |key: &ProcessKey| {
        let person = proc_table().person(key.pid).unwrap().unwrap();
        Member {
            key: Some(*key),
            pid: key.pid,
            uid: Some(person.uid),
            comm: person.stat.comm.clone(),
            exe: None,
            cgroup: person.place.cgroup.clone(),
            confinement: person.place.confinement().to_owned(),
            notebook: None,
            vram: Some(100 * MIB),
            holds: true,
        }
    };
    let members: Vec<Member> = holders.iter().map(member).collect();
    Subject {
        id: TargetId(id.into()),
        kind,
        uid: members.first().and_then(|member| member.uid),
        user: None,
        gpus: vec!["GPU-1".into()],
        job: None,
        pod: None,
        members,
    }
}

fn of_process(holder: &Holder) -> Subject {
    let key = holder.key();
    subject(Kind::Process, &format!("process:{}@{}", key.pid, key.start_ticks), &[key])
}

fn of_tree(holder: &Holder) -> Subject {
    let key = holder.key();
    subject(Kind::Workload, &format!("workload:tree:{}@{}", key.pid, key.start_ticks), &[key])
}

fn request(subject: Subject, action: Action) -> ActionRequest {
    ActionRequest {
        id: 7,
        rule: "idle".into(),
        mode: Mode::Enforce,
        subject: Arc::new(subject),
        action,
        evidence: Evidence { seq: 1, streak: 3, needed: 3, leaves: Vec::new() },
        policy: "0123".into(),
        limits: Limits {
            root: Root::Protected,
            max_processes: 1000,
            exporter: None,
            protect: None,
            on_hold: OnHold::Exempt,
        },
        leases: None,
        slurm: Arc::default(),
        kubernetes: None,
        peers: Vec::new(),
        stops: BTreeMap::new(),
        cooldown: Duration::ZERO,
        until: None,
    }
}

fn terminate(subject: Subject, grace: Duration) -> ActionRequest {
    request(subject, Action::Terminate { grace, requires_notice: false })
}
