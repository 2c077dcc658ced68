//! The real enforcer, started in its own directory.

use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::home::Home;
use crate::programs;
use crate::wait::until;

/// A running enforcer, terminated with its test.
pub struct Enforcer {
    daemon: Daemon,
    control: PathBuf,
}

impl Deref for Enforcer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl DerefMut for Enforcer {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

impl Enforcer {
    /// Starts an enforcer in a directory, with these additional arguments.
    ///
    /// # Panics
    /// If the enforcer does not listen.
    pub fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut command = command(home);
        command.args(arguments);
        Self::spawn(home, command)
    }

    /// Starts any command line of the enforcer, and waits until the enforcer responds to queries.
    ///
    /// # Panics
    /// If the enforcer does not listen.
    pub fn spawn(home: &Home, command: Command) -> Self {
        Self { daemon: Daemon::spawn("enforcer", command), control: home.control() }
    }

    /// Sends a request over the control socket, and returns the response.
    ///
    /// # Panics
    /// If the enforcer does not respond.
    pub fn query(&self, question: &Value) -> Value {
        let mut socket = UnixStream::connect(&self.control).expect("the control socket");
        writeln!(socket, "{question}").expect("a request can be sent");
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer).expect("the enforcer responds");
        serde_json::from_str(&answer).expect("the response is JSON")
    }

    /// Returns the enforcer's status.
    pub fn status(&self) -> Value {
        self.query(&json!({"command": "status"}))["status"].take()
    }

    /// Reads the status until the closure returns a value.
    pub fn until_status<T>(&self, what: &str, mut query: impl FnMut(&Value) -> Option<T>) -> T {
        until(what, || query(&self.status()))
    }

    /// Returns the streak of a process under the only rule, or 0 if the process has no streak.
    pub fn streak(&self, pid: u32) -> u64 {
        streak(&self.status(), pid)
    }

    /// Waits until a process has this streak.
    pub fn until_streak(&self, pid: u32, samples: u64) {
        until("the streak", || (self.streak(pid) >= samples).then_some(()));
    }

    /// Returns the number of the last snapshot that was evaluated.
    pub fn seq(&self) -> u64 {
        self.status()["stream"]["seq"].as_u64().unwrap_or_default()
    }

    /// Waits until this many more snapshots have been evaluated.
    pub fn ticks(&self, ticks: u64) {
        let judged = |status: &Value| status["counters"]["snapshots"].as_u64();
        let before = judged(&self.status()).unwrap_or_default();
        self.until_status("ticks", |status| (judged(status)? >= before + ticks).then_some(()));
    }

    /// Returns whether destructive actions are held for this reason.
    pub fn is_held(&self, hold: &str) -> bool {
        self.page().value("bailiff_hold_active", &[("hold", hold)]) == Some(1.0)
    }

    /// Waits until a step against a process is waiting for this hold.
    pub fn until_waits(&self, pid: u32, hold: &str) {
        self.until_status(hold, |status| (pending(status, pid)?["hold"] == hold).then_some(()));
    }

    /// Runs a command that queries the enforcer.
    ///
    /// # Panics
    /// If the command cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(programs::enforcer());
        command.args(arguments).arg("--control").arg(&self.control);
        command.output().expect("the command starts")
    }
}

/// Returns the pending action against a process.
pub fn pending(status: &Value, pid: u32) -> Option<&Value> {
    let name = format!("process:{pid}@");
    let all = status["pending"].as_array()?;
    all.iter().find(|pending| pending["target"].as_str().is_some_and(|target| target.starts_with(&name)))
}

/// Returns the streak of a process in a status, or 0 if the process has no streak.
pub fn streak(status: &Value, pid: u32) -> u64 {
    pending(status, pid).and_then(|pending| pending["streak"].as_u64()).unwrap_or_default()
}

/// Returns the enforcer's command in a directory, not started.
pub fn command(home: &Home) -> Command {
    let mut command = Command::new(programs::enforcer());
    command.args(arguments(home));
    command
}

/// Returns the enforcer's command line in a directory.
pub fn arguments(home: &Home) -> Vec<String> {
    let path = |path: PathBuf| path.display().to_string();
    let devices = path(home.path().join("nvidia"));
    let mut arguments = vec!["run".to_owned(), path(home.rules())];
    for (flag, value) in [
        ("--stream", path(home.stream())),
        ("--control", path(home.control())),
        ("--state", path(home.state())),
        ("--audit", path(home.audit())),
        ("--devices", devices),
        ("--web.listen-address", "127.0.0.1:0".to_owned()),
        ("--verify", "3s".to_owned()),
    ] {
        arguments.extend([flag.to_owned(), value]);
    }
    arguments.push("--trust-pid-namespace".to_owned());
    arguments
}

/// Runs a command line of the enforcer until it exits.
///
/// # Panics
/// If the command cannot be started.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(programs::enforcer()).args(arguments).output().expect("the enforcer starts")
}
