//! The exporter and the enforcer: started, stopped, killed and queried.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use end_to_end::home::Home;
use end_to_end::slow_sync::SlowSync;
use end_to_end::{enforcer, programs};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::run;

/// One of the two daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Daemon {
    Exporter,
    Enforcer,
}

/// Both daemons, and the disk for the audit log.
pub(crate) struct Daemons {
    pub(crate) home: Home,
    pub(crate) sync: SlowSync,
    scenario: PathBuf,
    /// Pids by [`Daemon`], `None` if the daemon is not running.
    pids: [Option<u32>; 2],
    pub(crate) stopped: [bool; 2],
}

impl Daemons {
    /// Returns both daemons, not started yet.
    pub(crate) fn new(home: Home, scenario: PathBuf) -> Self {
        let disk = home.path().join("disk");
        fs::create_dir(&disk).expect("a directory");
        run("mount", &["-t", "tmpfs", "-o", "size=1g", "tmpfs", &disk.display().to_string()]);
        let sync = SlowSync::new(home.path());
        Self { sync, home, scenario, pids: [None; 2], stopped: [false; 2] }
    }

    /// Returns the path of the audit log.
    pub(crate) fn audit(&self) -> PathBuf {
        self.home.path().join("disk/audit.jsonl")
    }

    /// Returns the exporter's own socket. The enforcer reads from the relay instead.
    pub(crate) fn source(&self) -> PathBuf {
        self.home.path().join("source.sock")
    }

    /// Starts a daemon that is not running.
    #[expect(clippy::zombie_processes, reason = "all children are waited for in one place")]
    pub(crate) fn start(&mut self, which: Daemon) {
        if self.pid(which).is_some() {
            return;
        }
        let log = OpenOptions::new().create(true).append(true).open(self.log(which)).expect("a log");
        let mut command = Command::new("setpriv");
        // The daemons are killed if the trial itself is killed.
        command.args(["--pdeathsig", "KILL"]);
        match which {
            Daemon::Exporter => self.exporter(&mut command),
            Daemon::Enforcer => self.enforcer(&mut command),
        }
        let child = command.stderr(log).spawn().expect("a daemon starts");
        self.pids[which as usize] = Some(child.id());
        self.stopped[which as usize] = false;
    }

    /// Returns the end of a daemon's log.
    pub(crate) fn remaining_output(&self, which: Daemon) -> String {
        let log = fs::read_to_string(self.log(which)).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(12).collect();
        format!("{which:?}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
    }

    fn log(&self, which: Daemon) -> PathBuf {
        self.home.path().join(format!("{which:?}.log").to_lowercase())
    }

    fn exporter(&self, command: &mut Command) {
        command.arg(programs::exporter()).arg("--nvml-library").arg(programs::fake_nvml());
        command.env("FAKE_NVML_SCENARIO", &self.scenario).arg("--stream").arg(self.source());
        command.args(["--interval", "200ms", "--look-back", "400ms", "--deadline", "2s"]);
        command.args(["--trust-pid-namespace", "--web.listen-address", "127.0.0.1:0"]);
    }

    fn enforcer(&self, command: &mut Command) {
        command
            .arg(programs::enforcer())
            .args(enforcer::arguments(&self.home))
            .arg("--audit")
            .arg(self.audit());
        command.args(["--audit.max-size", "1GiB", "--verify", "1s", "--log.level", "warn"]);
        self.sync.preload(command);
    }

    /// Fills the disk that contains the audit log, or frees it.
    pub(crate) fn fill(&self, full: bool) {
        let disk = self.home.path().join("disk");
        let room = rustix::fs::statvfs(&disk).expect("a file system");
        let bytes = if full { (room.f_blocks - room.f_bfree).max(1) * room.f_frsize } else { 1 << 30 };
        run("mount", &["-o", &format!("remount,size={bytes}"), &disk.display().to_string()]);
    }

    pub(crate) fn pid(&self, which: Daemon) -> Option<u32> {
        self.pids[which as usize]
    }

    pub(crate) fn signal(&mut self, which: Daemon, signal: Signal) {
        if let Some(pid) = self.pid(which).and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, signal);
            self.stopped[which as usize] = signal == Signal::STOP;
        }
    }

    /// Records that a child was waited for. Returns which daemon it was.
    pub(crate) fn ended(&mut self, pid: u32) -> Option<Daemon> {
        let which =
            [Daemon::Exporter, Daemon::Enforcer].into_iter().find(|which| self.pid(*which) == Some(pid))?;
        self.pids[which as usize] = None;
        Some(which)
    }

    /// Returns the enforcer's response, or `None` if it does not respond in time.
    pub(crate) fn query(&self, question: &Value, patience: Duration) -> Option<Value> {
        let mut socket = UnixStream::connect(self.home.control()).ok()?;
        socket.set_read_timeout(Some(patience)).ok()?;
        writeln!(socket, "{question}").ok()?;
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// Returns the threads of the running enforcer.
    pub(crate) fn threads(&self) -> Vec<u32> {
        let Some(pid) = self.pid(Daemon::Enforcer) else { return Vec::new() };
        let all = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.home.path().join("disk")).status();
    }
}

/// Returns the SHA-256 of a file, by which the audit log identifies policies.
pub(crate) fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum");
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
}
