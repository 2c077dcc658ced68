//! The programs that run during a report: workers, the exporter with `--record`, the enforcer, and an MPS daemon.
//! All of them are children of this program and exit with it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bailiff_mps::Control;
use bailiff_mps::control::{PROGRAM, Question};
use bailiff_mps::place::{LOGS, PIPES};
use bailiff_snapshot::wire::{self, Snapshot};
use serde_json::Value;

use crate::worker::{OTHER_USER, Work};

/// Time limit for quick operations.
const LONG: Duration = Duration::from_mins(1);
/// Uid and gid of programs that a run of root starts as another user (`nobody`).
const OTHER_UID: u32 = 65534;
/// Time limit for MPS servers after `quit`.
const QUIT: Duration = Duration::from_secs(5);

/// A program in this run, terminated on drop.
pub(crate) struct Program {
    child: Child,
    /// The MPS daemon, if the program is one. It is sent `quit` first, because that also stops its servers.
    mps: Option<Control>,
}

impl Program {
    fn start(command: &mut Command, log: &Path) -> Result<Self, String> {
        let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = started.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        Ok(Self { child, mps: None })
    }

    /// Returns the exit status once the program has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(control) = self.mps.take() {
            let _ = control.query(Question::Quit(Some(QUIT)));
            let _ = until("the end of MPS", || self.ended().is_some());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker, which exits when its standard input is closed.
pub(crate) struct Worker {
    pub(crate) pid: u32,
    /// The child that the worker forked.
    pub(crate) child: Option<u32>,
    pub(crate) program: Program,
    _out: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker and waits until its work has started.
    pub(crate) fn start(
        setting: &Setting,
        work: Work,
        environment: &[(&str, OsString)],
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["worker", work, &setting.comm(work)]).env("CUDA_VISIBLE_DEVICES", &setting.uuid);
        // A daemon that was already running is not used: without a socket in this directory, CUDA runs without MPS.
        let pipes = setting.directory.join(if work.starts_with("mps") { "mps" } else { "no-mps" });
        command.env(PIPES, pipes).envs(environment.iter().map(|(name, value)| (name, value)));
        if work == OTHER_USER && !run_as_other_user(&mut command) {
            return Err("only root can start a process of another user".to_owned());
        }
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| format!("the worker {work} cannot be started: {error}"))?;
        let out = child.stdout.take().ok_or("no output")?;
        let (pid, mut out, mut line) = (child.id(), BufReader::new(out), String::new());
        let program = Program { child, mps: None };
        out.read_line(&mut line).map_err(|error| error.to_string())?;
        let Some(child) = line.strip_prefix("ready") else {
            let why = if line.is_empty() { "it ended without output" } else { line.trim_end() };
            return Err(format!("worker {work}: {why}"));
        };
        Ok(Self { pid, child: child.trim().parse().ok(), program, _out: out })
    }

    /// Kills the worker without its child, and reaps it. The child runs until this value is dropped.
    pub(crate) fn kill(&mut self) {
        // The child shares the standard input, which `wait` would close.
        let child = &mut self.program.child;
        let input = child.stdin.take();
        let _ = child.kill();
        let _ = child.wait();
        child.stdin = input;
    }
}

/// Settings of the programs.
pub(crate) struct Setting {
    /// Directory of `bailiff-exporter` and the other programs.
    pub(crate) programs: PathBuf,
    /// Directory of records, logs and sockets. Its name is unique on the machine.
    pub(crate) directory: PathBuf,
    pub(crate) nvml: Option<PathBuf>,
    /// Prefix of the paths of device files.
    pub(crate) devices: String,
    pub(crate) kernel_log: PathBuf,
    pub(crate) interval: Duration,
    pub(crate) look_back: Duration,
    pub(crate) observe: Duration,
    /// UUID of the GPU.
    pub(crate) uuid: String,
    /// Whether the driver lists processes by their pids in this PID namespace.
    pub(crate) shares_pid_namespace: bool,
}

impl Setting {
    /// Returns whether the kernel log can be read.
    pub(crate) fn has_kernel_log(&self) -> bool {
        fs::File::open(&self.kernel_log).is_ok()
    }

    /// Returns the path of a file in the run's directory.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the process name of workers. It is unique, because it contains the name of the run's directory.
    pub(crate) fn comm(&self, work: Work) -> String {
        let unique = self.directory.file_name().unwrap_or_default().to_string_lossy();
        let unique: String = unique.chars().filter(char::is_ascii_alphanumeric).collect();
        let unique = &unique[unique.len().saturating_sub(6)..];
        let prefix = if work == "terminated" { "hw-ended" } else { "hardware" };
        format!("{prefix}-{unique}")
    }

    /// Rules that protect every process except this user's workers. Only the rule `ended` is enforced, and it
    /// terminates at most one process.
    fn rules(&self) -> String {
        let user = rustix::process::geteuid();
        let (root, user) = (user.is_root(), user.as_raw());
        let (comm, ended) = (self.comm("idle"), self.comm("terminated"));
        let rule = |name: &str, comm: &str, mode: &str, samples: u32, step: &str| {
            format!(
                "  - {{name: {name}, mode: {mode}, target: process, select: {{comms: '{comm}', users: [{user}]}}, \
                 when: {{gpu_util: {{max: 1%}}}}, for: {{samples: {samples}}}, then: [{step}]}}\n"
            )
        };
        format!(
            "version: 1\nallow_root: {root}\ndefaults: {{startup_grace: 0s, grace: 10s}}\n\
             limits: {{per_node_hour: 1, max_processes: 1}}\n\
             protect: [{{not: {{comms: ['{comm}', '{ended}'], users: [{user}]}}, reason: not a worker of this run}}]\n\
             rules:\n{}{}{}",
            rule("idle", &comm, "dry-run", 3, "{flag: warning}"),
            rule("idle-for-long", &comm, "dry-run", 30, "{terminate: {}}"),
            rule("ended", &ended, "enforce", 3, "{terminate: {}}"),
        )
    }
}

/// Makes a command run as an ordinary user if this run is root's. Returns whether it does.
pub(crate) fn run_as_other_user(command: &mut Command) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        command.uid(OTHER_UID).gid(OTHER_UID);
    }
    is_root
}

/// Returns a flag with a path.
pub(crate) fn flag(name: &str, value: &Path) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

/// Starts the exporter, with a record and a stream.
pub(crate) fn exporter(setting: &Setting) -> Result<Program, String> {
    let time = |name: &str, time: Duration| format!("--{name}={}ms", time.as_millis());
    let mut command = Command::new(setting.programs.join("bailiff-exporter"));
    command.args(["--web.listen-address=127.0.0.1:0", "--mps.control="]);
    command.arg(time("interval", setting.interval)).arg(time("look-back", setting.look_back));
    command.arg(flag("record", &setting.at("record.jsonl"))).arg(flag("stream", &setting.at("stream.sock")));
    command.args(setting.nvml.as_ref().map(|path| flag("nvml-library", path)));
    command.args(setting.shares_pid_namespace.then_some("--trust-pid-namespace"));
    command.args(setting.has_kernel_log().then(|| flag("kernel-log", &setting.kernel_log)));
    let exporter = Program::start(&mut command, &setting.at("exporter.log"))?;
    until("the exporter's stream", || setting.at("stream.sock").exists())?;
    Ok(exporter)
}

/// Starts the enforcer with an audit log under this name.
pub(crate) fn enforcer(setting: &Setting, audit: &str, dry_run: bool) -> Result<Program, String> {
    let (rules, state) = (setting.at("rules.yaml"), setting.at(audit).with_extension("state"));
    fs::write(&rules, setting.rules()).map_err(|error| format!("{}: {error}", rules.display()))?;
    fs::create_dir_all(&state).map_err(|error| format!("{}: {error}", state.display()))?;
    let mut command = Command::new(setting.programs.join("bailiff-enforcer"));
    command.arg("run").arg(rules).arg("--web.listen-address=").args(dry_run.then_some("--dry-run"));
    command.arg(flag("stream", &setting.at("stream.sock"))).arg(flag("control", &state.join("control.sock")));
    command.arg(flag("devices", Path::new(&setting.devices)));
    command.arg(flag("state", &state)).arg(flag("audit", &setting.at(audit)));
    command.args(setting.shares_pid_namespace.then_some("--trust-pid-namespace"));
    Program::start(&mut command, &setting.at("enforcer.log"))
}

/// Starts ffmpeg, which decodes a video of a few seconds again and again with the GPU, after it has made the video.
pub(crate) fn decoder(setting: &Setting) -> Result<Program, String> {
    let (video, log) = (setting.at("video.mp4"), setting.at("ffmpeg.log"));
    let ffmpeg = || {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-loglevel", "error", "-y"]);
        command
    };
    let source = ["-f", "lavfi", "-i", "testsrc2=size=1920x1080:rate=60:duration=4"];
    let made = ffmpeg().args(source).args(["-c:v", "libx264", "-pix_fmt", "yuv420p"]).arg(&video).output();
    let made = made.map_err(|error| format!("no ffmpeg: {error}"))?;
    if !made.status.success() {
        return Err(format!("ffmpeg cannot make a video: {}", String::from_utf8_lossy(&made.stderr).trim()));
    }
    let mut command = ffmpeg();
    command.args(["-stream_loop", "-1", "-c:v", "h264_cuvid", "-i"]).arg(&video).args(["-f", "null", "-"]);
    command.env("CUDA_VISIBLE_DEVICES", &setting.uuid);
    let mut decoder = Program::start(&mut command, &log)?;
    std::thread::park_timeout(setting.interval);
    match decoder.ended() {
        Some(_) => Err(format!("ffmpeg cannot decode with the GPU: {}", self::log(setting, "ffmpeg.log"))),
        None => Ok(decoder),
    }
}

/// Starts an MPS control daemon in a directory of this run. Its server starts with the first client.
pub(crate) fn mps(setting: &Setting) -> Result<(Program, Control), String> {
    let (pipes, logs) = (setting.at("mps"), setting.at("mps-log"));
    for directory in [&pipes, &logs] {
        fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let mut command = Command::new(PROGRAM);
    command.arg("-f").env(PIPES, &pipes).env(LOGS, logs).env("CUDA_VISIBLE_DEVICES", &setting.uuid);
    let mut program = Program::start(&mut command, &setting.at("mps.log"))?;
    let control = Control::new(PROGRAM).at(&pipes);
    until("the control daemon of MPS", || {
        program.ended().is_some() || control.query(Question::Servers).is_ok()
    })?;
    program.mps = Some(control.clone());
    Ok((program, control))
}

/// Returns the last lines in one of the run's logs.
pub(crate) fn log(setting: &Setting, name: &str) -> String {
    let text = fs::read_to_string(setting.at(name)).unwrap_or_default();
    text.lines().rev().take(3).collect::<Vec<_>>().join("; ")
}

/// Returns the snapshots recorded since a time in milliseconds since the epoch.
pub(crate) fn snapshots(setting: &Setting, since: u64) -> Vec<Snapshot> {
    let text = fs::read_to_string(setting.at("record.jsonl")).unwrap_or_default();
    let all = text.lines().filter_map(|line| wire::parse(line.as_bytes()).ok());
    all.filter(|snapshot| snapshot.wall_ms >= since).collect()
}

/// Returns the lines in an audit log.
pub(crate) fn audit(setting: &Setting, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(setting.at(name)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
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
