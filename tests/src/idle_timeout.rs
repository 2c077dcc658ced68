//! A command under `bailiff idle-timeout`, with the fake driver.
#![expect(clippy::unwrap_used, reason = "runs programs and fails loudly")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::fake::Scenario;
use crate::programs;
use crate::tenant::start;
use crate::wait::until;

/// A long deadline, so that a busy machine is not mistaken for a hung driver.
const PATIENT: [&str; 2] = ["--deadline", "10"];

/// A running command. The command and the processes whose pids it printed are killed with the test.
pub struct IdleTimeout {
    child: Child,
    directory: TempDir,
}

/// Returns `gpu_idle_timeout.py` with these arguments.
///
/// # Panics
/// If the program does not exist.
pub fn command(scenario: &Scenario, args: &[&str]) -> Command {
    let name = scenario.directory().join("gpu_idle_timeout.py");
    if !name.exists() {
        std::os::unix::fs::symlink(programs::bailiff(), &name).unwrap();
    }
    let mut command = Command::new(name);
    command.args(PATIENT).arg("--nvml-library").arg(programs::fake_nvml()).args(args);
    command.env("FAKE_NVML_SCENARIO", scenario.path());
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_DEVICE_ORDER");
    command
}

impl IdleTimeout {
    /// Starts the command with an open and empty standard input.
    pub fn start(scenario: &Scenario, args: &[&str]) -> Self {
        Self::spawn(command(scenario, args))
    }

    /// Starts any command line.
    ///
    /// # Panics
    /// If the program does not start.
    pub fn spawn(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt;
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        command.stdin(Stdio::piped()).stdout(file("stdout")).stderr(file("log")).process_group(0);
        Self { child: command.spawn().unwrap(), directory }
    }

    /// Returns the pid.
    ///
    /// # Panics
    /// Never: a child always has a pid.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the command's output, in lines.
    pub fn output_lines(&self) -> Vec<String> {
        self.lines("stdout")
    }

    /// Returns the pids that the command printed, once there are this many.
    ///
    /// # Panics
    /// If the pids are not printed.
    pub fn pids(&self, count: usize) -> Vec<u32> {
        until("pids", || {
            let pids: Vec<u32> = self.output_lines().iter().filter_map(|line| line.parse().ok()).collect();
            (pids.len() == count).then_some(pids)
        })
    }

    /// Returns the log without times.
    pub fn log(&self) -> Vec<String> {
        let time = "2026-11-21 23:22:16,266: ".len();
        self.lines("log").iter().map(|line| line.get(time..).unwrap_or(line).to_owned()).collect()
    }

    /// Waits until the log contains this many lines with this text.
    ///
    /// # Panics
    /// If the lines are not logged.
    pub fn until_logged(&self, times: usize, text: &str) {
        until(text, || {
            let found = self.log().iter().filter(|line| line.contains(text)).count();
            (found >= times).then_some(()).or_else(|| {
                let over = self.log().iter().any(|line| line.contains("ERROR"));
                assert!(!over || text.contains("ERROR"), "the command has exited: {:#?}", self.log());
                None
            })
        });
    }

    /// Sends the command a signal.
    ///
    /// # Panics
    /// If the command has exited.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Closes the standard input.
    pub fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Waits until the command has exited.
    ///
    /// # Panics
    /// If the command does not exit.
    pub fn end(&mut self) -> ExitStatus {
        until("its end", || self.child.try_wait().unwrap())
    }

    /// Returns whether the command is running.
    ///
    /// # Panics
    /// If that cannot be determined.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let path: PathBuf = self.directory.path().join(name);
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

impl Drop for IdleTimeout {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.wait();
        }
        for pid in self.output_lines().iter().filter_map(|line| line.parse::<u32>().ok()) {
            // Only processes that were started here print a pid, and they belong to this test's session or
            // its child's session.
            if start(pid).is_some()
                && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
