#![expect(clippy::disallowed_methods, reason = "the one file of this crate that runs programs")]
//! Queries a control daemon with `nvidia-cuda-mps-control`, NVIDIA's client: one command on standard input.
//!
//! **One run per command.** The client accepts several commands per run, but does not print a separator
//! between the replies. A reply may be empty (no server), may have many lines (a list), or may be an
//! undocumented text (for a command that the release does not support). A wrongly guessed boundary could
//! assign one server's clients to another server. A run takes milliseconds and adds about 200 bytes to the
//! daemon's log, so a poller should poll rarely and use [`Question::Processes`], which lists the clients of
//! all servers at once.
//!
//! **The exit status is 0 even if a command is refused**, so the text of the reply decides
//! ([`crate::reply`]).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bailiff_subprocess::{ChildError, Late, Talk};

use crate::place::PIPES;
use crate::reply;

/// Default timeout of a query. A suspended daemon (SIGSTOP) never responds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Name of NVIDIA's client program.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";
/// Group without rights (`nogroup`, `nobody`).
const NO_GROUP: u32 = 65534;
/// Search path for the client program if `PATH` is not set.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command to a control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question<'a> {
    /// Lists the pids of all servers.
    Servers,
    /// Queries the state of a server (driver 550 and later).
    Status(u32),
    /// Lists the pids of a server's clients.
    Clients(u32),
    /// Lists the clients of all servers.
    Processes,
    /// Queries the share of the multiprocessors, in percent, for a client of a new server.
    DefaultPercentage,
    /// Queries the share of the multiprocessors, in percent, for each client of a server.
    Percentage(u32),
    /// Queries how much memory of a device a client of a new server may pin.
    DefaultMemoryLimit(&'a str),
    /// Ends the GPU work of a client (server, client); the client process keeps running.
    TerminateClient(u32, u32),
    /// Shuts down a server.
    ShutDown(u32),
    /// Ends the daemon once its servers have exited. After this time, servers are forced to exit.
    Quit(Option<Duration>),
    /// Lists the servers, in protocol 3.
    ServersV3,
    /// Lists all clients, in protocol 3.
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
            Self::TerminateClient(server, client) => write!(to, "terminate_client {server} {client}"),
            Self::ShutDown(server) => write!(to, "shutdown_server {server}"),
            Self::Quit(None) => write!(to, "quit"),
            Self::Quit(Some(after)) => write!(to, "quit -t {}", after.as_secs().max(1)),
            Self::ServersV3 => write!(to, "server list"),
            Self::ClientsV3 => write!(to, "client list --all"),
        }
    }
}

/// Error of a query or of a start of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The client program cannot be run.
    #[error("cannot run {program}: {error}")]
    NoProgram {
        /// Path of the program.
        program: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// No process is listening in the pipe directory.
    #[error("no control daemon listens in the pipe directory")]
    NoDaemon,
    /// The daemon is running but does not respond, so every CUDA program that starts now hangs as well.
    #[error("it did not respond within {0:?}")]
    NoAnswer(Duration),
    /// The daemon denied permission.
    #[error("refused: {0}")]
    Refused(String),
    /// The reply is not valid.
    #[error("invalid reply: {0}")]
    Strange(String),
    /// The exit status of the client program cannot be read.
    #[error("cannot wait for the client program: {0}")]
    Wait(std::io::Error),
}

/// Client of the control daemon in a pipe directory.
#[derive(Debug, Clone)]
pub struct Control {
    program: PathBuf,
    pipes: Option<PathBuf>,
    /// The user as whom the client program runs, if it is not that of this process.
    user: Option<u32>,
    patience: Duration,
}

/// Mode in which a daemon is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `-d`: the started process forks the daemon, and exits once the daemon listens.
    Background,
    /// `-f`: the daemon does not fork, and logs to the standard output of its caller.
    Foreground,
}

impl Form {
    /// Returns the command-line flag.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Background => "-d",
            Self::Foreground => "-f",
        }
    }
}

impl Control {
    /// Creates a client that runs this program and queries the daemon in the default pipe directory.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), pipes: None, user: None, patience: PATIENCE }
    }

    /// Selects the daemon by its pipe directory.
    pub fn at(mut self, pipes: impl Into<PathBuf>) -> Self {
        self.pipes = Some(pipes.into());
        self
    }

    /// Runs the client program as this user and without groups, so that a daemon permits no more than it permits this user.
    /// Requires `CAP_SETUID` and `CAP_SETGID`.
    pub const fn as_user(mut self, uid: u32) -> Self {
        self.user = Some(uid);
        self
    }

    /// Sets the timeout of each query.
    pub const fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the path of the client program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Sends one command to the daemon and returns its reply.
    ///
    /// # Errors
    /// If the daemon is not running, refuses the command or does not respond in time.
    pub fn query(&self, question: Question<'_>) -> Result<String, ControlError> {
        let input = format!("{question}\n");
        // Of the environment, only `PATH` is passed on, because variables such as `LD_PRELOAD` and
        // `CUDA_MPS_PROTOCOL_VERSION` must not affect the client.
        let path = std::env::var_os("PATH");
        let mut command = self.command();
        command
            .env_clear()
            .env("PATH", path.as_deref().unwrap_or_else(|| OsStr::new(PATH)))
            .envs(self.pipes());
        self.run(command, &Talk { input: input.as_bytes(), ..Talk::within(self.patience) })
    }

    /// Starts the daemon in the background, with the environment of this process and these variables. Waits
    /// until the launcher process has exited, but not until the daemon responds.
    ///
    /// # Errors
    /// If the daemon does not start, for example because another daemon is already running.
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
        if let Some(uid) = self.user {
            command.uid(uid).gid(NO_GROUP);
        }
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
                "a reply of {} bytes or more",
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

#[cfg(test)]
#[path = "tests/control.rs"]
mod tests;
