#![expect(clippy::disallowed_methods, reason = "the one file of this crate that runs programs")]
//! Queries to a control daemon through its own client: `nvidia-cuda-mps-control`, with one command on standard input.
//!
//! **One run per command.** The client accepts several commands per run, but separates the replies by nothing: some
//! are empty (no server), some have many lines (a list), and a command that a release does not know gives an undocumented
//! text. The boundary between two replies could only be guessed, and a wrong guess could assign one server's clients to
//! another. A run costs milliseconds and some 200 bytes of the daemon's log; a poller should use
//! [`Question::Processes`], which lists the clients of all servers at once, and poll seldom.
//!
//! **The exit status is 0 for refused commands too**, so the text decides ([`crate::reply`]).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bailiff_subprocess::{ChildError, Late, Talk};

use crate::place::{LOGS, PIPES};
use crate::reply;

/// Deadline of a daemon's response; a stopped daemon never responds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Name of the control program.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";
/// Search path for programs if there is no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command for a control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question<'a> {
    /// Pids of all servers.
    Servers,
    /// State of a server (550 and later).
    Status(u32),
    /// Pids of a server's clients.
    Clients(u32),
    /// All clients of all servers.
    Processes,
    /// Default share of the multiprocessors for clients of new servers.
    DefaultPercentage,
    /// The same for one server.
    Percentage(u32),
    /// Default limit of pinned memory on a device for clients of new servers.
    DefaultMemoryLimit(&'a str),
    /// The same for one server.
    MemoryLimit(u32, &'a str),
    /// Ends the GPU work of a client of this server; the process itself keeps running.
    TerminateClient(u32, u32),
    /// Shuts down a server.
    ShutDown(u32),
    /// Shuts down the daemon after its servers have exited; they are forced to exit after this time.
    Quit(Option<Duration>),
    /// Servers, in protocol 3.
    ServersV3,
    /// Clients, in protocol 3.
    ClientsV3,
}

impl fmt::Display for Question<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Servers => write!(to, "get_server_list"),
            Self::Status(server) => write!(to, "get_server_status {server}"),
            Self::Clients(server) => write!(to, "get_client_list {server}"),
            Self::Processes => write!(to, "ps"),
            Self::DefaultPercentage => write!(to, "get_default_active_thread_percentage"),
            Self::Percentage(server) => write!(to, "get_active_thread_percentage {server}"),
            Self::DefaultMemoryLimit(device) => write!(to, "get_default_device_pinned_mem_limit {device}"),
            Self::MemoryLimit(server, device) => write!(to, "get_device_pinned_mem_limit {server} {device}"),
            Self::TerminateClient(server, client) => write!(to, "terminate_client {server} {client}"),
            Self::ShutDown(server) => write!(to, "shutdown_server {server}"),
            Self::Quit(None) => write!(to, "quit"),
            Self::Quit(Some(after)) => write!(to, "quit -t {}", after.as_secs().max(1)),
            Self::ServersV3 => write!(to, "server list"),
            Self::ClientsV3 => write!(to, "client list --all"),
        }
    }
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The control program cannot be run.
    #[error("{program} cannot be run: {error}")]
    NoProgram {
        /// Path of the program.
        program: String,
        /// Error of the system.
        error: std::io::Error,
    },
    /// No process listens in the pipe directory.
    #[error("no control daemon answers there")]
    NoDaemon,
    /// A daemon exists and does not respond: every CUDA program that starts now hangs as well.
    #[error("it did not answer within {0:?}")]
    NoAnswer(Duration),
    /// Permission denied.
    #[error("refused: {0}")]
    Refused(String),
    /// The response is not understood.
    #[error("not understood: {0}")]
    Strange(String),
    /// The exit of the control program was not observed.
    #[error("its program cannot be waited for: {0}")]
    Wait(std::io::Error),
}

/// A control daemon, identified by its pipe directory.
#[derive(Debug, Clone)]
pub struct Control {
    program: PathBuf,
    pipes: Option<PathBuf>,
    patience: Duration,
}

/// How a daemon is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `-d`: it forks, and its parent exits when the daemon listens.
    Background,
    /// `-f`: it stays in the foreground.
    Foreground,
}

impl Form {
    /// Flag of the control program.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Background => "-d",
            Self::Foreground => "-f",
        }
    }
}

impl Control {
    /// Returns the daemon of the default pipe directory, queried with this program.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), pipes: None, patience: PATIENCE }
    }

    /// Returns the daemon of this pipe directory.
    #[must_use]
    pub fn at(mut self, pipes: impl Into<PathBuf>) -> Self {
        self.pipes = Some(pipes.into());
        self
    }

    /// Changes the deadline.
    #[must_use]
    pub const fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Path of the control program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Sends one command and returns the response.
    ///
    /// # Errors
    /// If there is no daemon, or it does not respond in time, or refuses.
    pub fn query(&self, question: Question<'_>) -> Result<String, ControlError> {
        let input = format!("{question}\n");
        // The environment contains only PATH, because a preloaded library or a protocol setting of this program
        // is not meant for the client.
        let path = std::env::var_os("PATH");
        let mut command = self.command();
        command
            .env_clear()
            .env("PATH", path.as_deref().unwrap_or_else(|| OsStr::new(PATH)))
            .envs(self.pipes());
        self.run(command, &Talk { input: input.as_bytes(), ..Talk::within(self.patience) })
    }

    /// Starts the daemon in the background, with this program's environment and these variables, and waits
    /// until its parent has exited. Whether it responds must be checked afterwards.
    ///
    /// # Errors
    /// If it does not start, for example because one already runs.
    pub fn start(&self, variables: &[(&str, &str)]) -> Result<String, ControlError> {
        let mut command = self.command();
        command.arg(Form::Background.flag()).envs(variables.iter().copied()).envs(self.pipes());
        self.run(command, &Talk { late: Late::Child, ..Talk::within(self.patience) })
    }

    fn pipes(&self) -> Option<(OsString, OsString)> {
        Some((PIPES.into(), self.pipes.as_ref()?.into()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir("/");
        command
    }

    fn run(&self, command: Command, talk: &Talk<'_>) -> Result<String, ControlError> {
        let output = match bailiff_subprocess::run(command, talk) {
            Ok(output) => output,
            Err(ChildError::Start(error)) => {
                return Err(ControlError::NoProgram { program: self.program.display().to_string(), error });
            }
            Err(ChildError::Wait(error)) => return Err(ControlError::Wait(error)),
            Err(ChildError::Late(deadline)) => return Err(ControlError::NoAnswer(deadline)),
        };
        if output.stdout.len() >= bailiff_subprocess::MOST {
            // A truncated reply may look complete.
            return Err(ControlError::Strange(format!(
                "an answer of {} bytes or more",
                bailiff_subprocess::MOST
            )));
        }
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if reply::is_no_daemon(&stderr) || reply::is_no_daemon(&stdout) {
            return Err(ControlError::NoDaemon);
        }
        if let Some(line) = reply::refusal(&stdout).or_else(|| reply::refusal(&stderr)) {
            return Err(ControlError::Refused(line.to_owned()));
        }
        if output.status.success() {
            return Ok(stdout);
        }
        let text = [stderr.trim(), stdout.trim()].into_iter().find(|text| !text.is_empty());
        Err(ControlError::Strange(text.map_or_else(|| output.status.to_string(), str::to_owned)))
    }
}

/// Returns the variable with a daemon's log directory.
#[must_use]
pub fn log_variable(directory: &str) -> (&'static str, &str) {
    (LOGS, directory)
}

#[cfg(test)]
#[path = "tests/control.rs"]
mod tests;
