//! The programs that run during a report: workers, the exporter with its record, the enforcer in a dry run. All of them are
//! children of this program, and end with it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bailiff_snapshot::wire::{self, Snapshot};
use serde_json::Value;

use crate::worker::Work;

/// How long something that takes no time may take.
const LONG: Duration = Duration::from_mins(1);

/// Nothing is ended in a dry run; only processes of this program's name are looked at.
const RULES: &str = "version: 1
rules:
  - name: idle
    mode: watch
    of: process
    select: {comms: hardware}
    when: {gpu_util: {max: 1%}}
    for: 3s
    then: [{flag: warning}]
  - name: idle-for-long
    mode: watch
    of: process
    select: {comms: hardware}
    when: {gpu_util: {max: 1%}}
    for: 30s
    then: [{terminate: {grace: 1s}}]
";

/// A program of ours, ended when this is dropped.
pub(crate) struct Program(Child);

impl Program {
    fn start(command: &mut Command, log: &Path) -> Result<Self, String> {
        let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        started.map(Self).map_err(|error| format!("{}: {error}", command.get_program().display()))
    }

    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker, which ends when its standard input does.
pub(crate) struct Worker {
    pub(crate) work: Work,
    pub(crate) pid: u32,
    /// The child that it forked.
    pub(crate) child: Option<u32>,
    program: Program,
    _out: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one on this GPU; back when it does its work.
    pub(crate) fn start(work: Work, uuid: &str, environment: &[(&str, OsString)]) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["worker", work.name()]).env("CUDA_VISIBLE_DEVICES", uuid);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let out = child.stdout.take().ok_or("no output")?;
        let (pid, mut out, mut line) = (child.id(), BufReader::new(out), String::new());
        let program = Program(child);
        out.read_line(&mut line).map_err(|error| error.to_string())?;
        let mut words = line.split_whitespace();
        if words.next() != Some("ready") {
            let why = if line.is_empty() { "it ended without a word" } else { line.trim_end() };
            return Err(format!("worker {}: {why}", work.name()));
        }
        let child = words.next().and_then(|pid| pid.parse().ok());
        Ok(Self { work, pid, child, program, _out: out })
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.program.lives()
    }

    /// Kills it, not its child, and waits until it is gone. The child goes on until this is dropped.
    pub(crate) fn kill(&mut self) {
        // Standard input is kept open, since the child has it too; `wait` would close it.
        let input = self.program.0.stdin.take();
        let _ = self.program.0.kill();
        let _ = self.program.0.wait();
        self.program.0.stdin = input;
    }
}

/// What the programs need to know.
pub(crate) struct Setting {
    /// Where `bailiff-exporter` and so on are.
    pub(crate) programs: PathBuf,
    /// Where records, logs and sockets go.
    pub(crate) folder: PathBuf,
    pub(crate) nvml: Option<PathBuf>,
    pub(crate) interval: Duration,
    pub(crate) look_back: Duration,
    pub(crate) observe: Duration,
    /// The driver lists our processes by the pids that they have here.
    pub(crate) pids_are_ours: bool,
}

/// The exporter and the enforcer.
pub(crate) struct Daemons {
    exporter: Program,
    enforcer: Program,
    folder: PathBuf,
}

impl Daemons {
    pub(crate) fn start(setting: &Setting) -> Result<Self, String> {
        let at = |name: &str| setting.folder.join(name);
        let program = |name: &str| Command::new(setting.programs.join(name));
        let flag = |name: &str, value: &Path| {
            let mut flag = OsString::from(format!("--{name}="));
            flag.push(value);
            flag
        };
        let time = |name: &str, time: Duration| format!("--{name}={}ms", time.as_millis());
        let mut exporter = program("bailiff-exporter");
        exporter.arg("--web.listen-address=127.0.0.1:0").arg("--mps.control=");
        exporter.arg(time("interval", setting.interval)).arg(time("look-back", setting.look_back));
        exporter.arg(flag("record", &at("record.jsonl"))).arg(flag("stream", &at("stream.sock")));
        exporter.args(setting.nvml.as_ref().map(|path| flag("nvml-library", path)));
        let mut enforcer = program("bailiff-enforcer");
        fs::write(at("rules.yaml"), RULES).map_err(|error| format!("rules.yaml: {error}"))?;
        fs::create_dir_all(at("state")).map_err(|error| format!("state: {error}"))?;
        enforcer.arg("run").arg(at("rules.yaml")).args(["--watch", "--web.listen-address="]);
        enforcer.arg(flag("stream", &at("stream.sock"))).arg(flag("control", &at("control.sock")));
        enforcer.arg(flag("state", &at("state"))).arg(flag("audit", &at("audit.jsonl")));
        if setting.pids_are_ours {
            exporter.arg("--trust-pid-namespace");
            enforcer.arg("--trust-pid-namespace");
        }
        let exporter = Program::start(&mut exporter, &at("exporter.log"))?;
        until("the exporter's stream", || at("stream.sock").exists())?;
        let enforcer = Program::start(&mut enforcer, &at("enforcer.log"))?;
        Ok(Self { exporter, enforcer, folder: setting.folder.clone() })
    }

    /// What is wrong with them.
    pub(crate) fn fault(&mut self) -> Option<String> {
        let log = |name: &str| {
            let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
            text.lines().rev().take(3).collect::<Vec<_>>().join("; ")
        };
        match (self.exporter.lives(), self.enforcer.lives()) {
            (false, _) => Some(format!("bailiff-exporter ended: {}", log("exporter.log"))),
            (_, false) => Some(format!("bailiff-enforcer ended: {}", log("enforcer.log"))),
            _ => None,
        }
    }

    /// The snapshots of a period in milliseconds since the epoch.
    pub(crate) fn snapshots(&self, from: u64, to: u64) -> Vec<Snapshot> {
        let text = fs::read_to_string(self.folder.join("record.jsonl")).unwrap_or_default();
        let all = text.lines().filter_map(|line| wire::parse(line.as_bytes()).ok());
        all.filter(|snapshot| (from..=to).contains(&snapshot.wall_ms)).collect()
    }

    /// Lines of the audit log.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("audit.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// What the exporter published of a process over several snapshots.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Observed utilization, percent.
    pub(crate) percent: Vec<u32>,
    /// How often it was unknown, and why.
    pub(crate) unknown: BTreeMap<String, usize>,
    pub(crate) memory: Option<u64>,
    pub(crate) state: Option<String>,
    snapshots: usize,
}

impl Published {
    pub(crate) fn of(pid: u32, snapshots: &[Snapshot]) -> Self {
        let mut published = Self { snapshots: snapshots.len(), ..Self::default() };
        for snapshot in snapshots {
            let mut holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
            let Some(holder) = holders.find(|holder| holder.pid == pid) else { continue };
            published.memory = holder.memory;
            let process = snapshot.processes.iter().find(|process| process.pid == pid);
            published.state = process.map(|process| process.state.clone());
            match (holder.utilization, holder.unknown) {
                (Some(percent), _) => published.percent.push(percent),
                (None, why) => {
                    let why = why.and_then(|why| Some(serde_json::to_value(why).ok()?.as_str()?.to_owned()));
                    *published.unknown.entry(why.unwrap_or_default()).or_default() += 1;
                }
            }
        }
        published
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.percent.is_empty() && self.percent.iter().all(|percent| *percent <= 1)
    }

    /// Never published as idle.
    pub(crate) fn is_never_idle(&self) -> bool {
        self.percent.iter().all(|percent| *percent > 1)
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.percent.is_empty() && self.is_never_idle()
    }

    pub(crate) fn words(&self) -> String {
        let mut parts = Vec::new();
        if let (Some(least), Some(most)) = (self.percent.iter().min(), self.percent.iter().max()) {
            let range = if least == most { format!("{least} %") } else { format!("{least} to {most} %") };
            parts.push(format!("{range} in {} of {} snapshots", self.percent.len(), self.snapshots));
        }
        parts.extend(self.unknown.iter().map(|(why, count)| format!("unknown ({why}) in {count}")));
        if parts.is_empty() {
            parts.push(format!("not listed in {} snapshots", self.snapshots));
        }
        parts.join(", ")
    }
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > LONG {
            return Err(format!("waited {} s for: {what}", LONG.as_secs()));
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}
