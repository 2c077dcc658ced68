//! Real processes to hold GPUs. Each process is killed with its test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::programs;
use crate::wait::until;

/// A process in this test.
pub struct Holder(Child);

impl Holder {
    /// Starts a sleeping process.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn sleeping() -> Self {
        Self(Command::new("sleep").arg("infinity").process_group(0).spawn().expect("sleep starts"))
    }

    /// Starts a sleeping process as another user.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn sleeping_as(uid: u32) -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("infinity").process_group(0).uid(uid).spawn().expect("sleep starts"))
    }

    /// Starts a sleeping program of this name as a user, in a directory that the user can enter.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn named(home: &Path, name: &str, uid: u32) -> Self {
        let path = home.join(name);
        if !path.exists() {
            fs::copy("/bin/sleep", &path).expect("a copy of sleep");
        }
        Self(Command::new(path).arg("infinity").process_group(0).uid(uid).spawn().expect("the copy starts"))
    }

    /// Starts a Python program, and waits until it has printed a line.
    ///
    /// # Panics
    /// If the program does not start or does not print a line.
    pub fn python(program: &str) -> Self {
        let mut command = Command::new(programs::python());
        let mut child = command
            .args(["-u", "-c", program])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("python starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("stdout is piped");
        BufReader::new(out).read_line(&mut line).expect("the process prints a line");
        assert!(!line.is_empty(), "the program exited before it printed a line");
        Self(child)
    }

    /// Returns the pid.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process and waits until it has exited.
    ///
    /// # Panics
    /// If the process cannot be killed.
    pub fn end(&mut self) {
        self.0.kill().expect("our own child can be ended");
        self.0.wait().expect("our own child can be waited for");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session. Its process group and the leader's children are killed with the test.
pub struct Session(Child);

impl Session {
    /// Starts a session that is led by this program.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn of(program: &[&str]) -> Self {
        // setsid executes the program without a fork, because a child of ours does not lead a
        // process group.
        let started = Command::new("setsid").args(program).stdout(Stdio::null()).spawn();
        Self(started.expect("setsid starts"))
    }

    /// Returns the pid of the leader.
    pub fn leader(&self) -> u32 {
        self.0.id()
    }

    /// Waits for a child of the leader with this name, and returns its pid.
    pub fn child(&self, name: &str) -> u32 {
        child(self.leader(), name)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Children with their own sessions are killed first, because they cannot be found without
        // their parent.
        for child in children(self.leader()) {
            let _ = pid(child).map(|child| kill_process(child, Signal::KILL));
        }
        // The pid cannot be reused before the leader has been waited for.
        let _ = pid(self.leader()).map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.0.wait();
    }
}

fn pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Waits for a child of this process with this name, and returns its pid.
pub fn child(parent: u32, name: &str) -> u32 {
    let comm = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    until(name, || children(parent).into_iter().find(|pid| comm(pid).trim_end() == name))
}

/// Returns the children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
