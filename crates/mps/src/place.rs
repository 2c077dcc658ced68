//! Recognizes MPS processes and their directories by program, arguments and environment, as read from
//! `/proc`. `comm` is not used, because it is the same for daemon and server.

use std::path::PathBuf;

use bailiff_snapshot::Role;

/// Variable for the directory of a daemon's sockets, which identifies the daemon.
pub const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Variable for the directory of a daemon's logs.
pub const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Variable for the GPUs that a daemon manages.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Variable for the version of a daemon's protocol; it takes precedence over the flag.
const PROTOCOL: &str = "CUDA_MPS_PROTOCOL_VERSION";
/// Default directory of the sockets.
pub const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";
/// Default directory of the logs.
pub const DEFAULT_LOGS: &str = "/var/log/nvidia-mps";

/// Data of a process from `/proc`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessView<'a> {
    /// Target of the link `exe`; `None` without permission to read it.
    pub exe: Option<&'a str>,
    /// Content of `cmdline`.
    pub cmdline: &'a [u8],
    /// Content of `environ`; `None` without permission to read it.
    pub environ: Option<&'a [u8]>,
}

/// Role of a process in MPS, with details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A control daemon.
    Daemon(Daemon),
    /// A server, with its directories; `None` if its environment is not readable.
    Server(Option<Directories>),
    /// The control program, run as a client to send commands to a daemon.
    Asker,
}

/// A control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Directories of the daemon; `None` if its environment is not readable.
    pub directories: Option<Directories>,
    /// Value of `CUDA_VISIBLE_DEVICES`; `None` (all GPUs) if it is not set or not readable.
    pub visible: Option<String>,
    /// Start options of the daemon.
    pub flags: Flags,
}

/// Directories of a daemon or server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Directories {
    /// Directory of the sockets.
    pub pipes: PathBuf,
    /// Directory of the logs.
    pub logs: PathBuf,
}

/// Start options of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// `-f`: the daemon runs in the foreground.
    pub foreground: bool,
    /// `-S`: each client gets its own partition of a GPU.
    pub static_partitioning: bool,
    /// Whether clients of several users share a server.
    pub multiuser: bool,
    /// Version of the protocol: 2, or 3 (possible from driver 615 on).
    pub protocol: u8,
}

impl ProcessView<'_> {
    /// Returns the role of the process in MPS, determined by `exe` or, if that is not readable, by
    /// the first argument.
    pub fn part(&self) -> Option<Part> {
        let words: Vec<&[u8]> = self.cmdline.split(|byte| *byte == 0).collect();
        let words: Vec<String> =
            words.into_iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let role = match self.exe {
            Some(exe) => Role::of_program(exe),
            None => words.first().and_then(|word| Role::of_program(word)),
        };
        let directories = || self.environ.and_then(directories);
        match role? {
            Role::MpsServer => Some(Part::Server(directories())),
            Role::MpsControl => Some(match flags(&words, self.environ) {
                Some(flags) => {
                    Part::Daemon(Daemon { directories: directories(), visible: self.visible(), flags })
                }
                None => Part::Asker,
            }),
        }
    }

    fn visible(&self) -> Option<String> {
        variable(self.environ?, VISIBLE)
    }
}

/// Returns the start options of a daemon; `None` if the process is not a daemon.
fn flags(words: &[String], environ: Option<&[u8]>) -> Option<Flags> {
    let has = |names: &[&str]| words.iter().skip(1).any(|word| names.contains(&word.as_str()));
    let foreground = has(&["-f", "--foreground"]);
    if !foreground && !has(&["-d", "--daemon"]) {
        return None;
    }
    let flag = || {
        let place = words.iter().position(|word| matches!(word.as_str(), "-p" | "--protocol"))?;
        words.get(place + 1)?.parse().ok()
    };
    let from_environment = || variable(environ?, PROTOCOL)?.parse().ok();
    Some(Flags {
        foreground,
        static_partitioning: has(&["-S", "--static-partitioning"]),
        multiuser: has(&["-multiuser-server", "-m", "--multiuser"]),
        protocol: from_environment().or_else(flag).unwrap_or(2),
    })
}

/// Returns the directories in an environment. Returns `None` for a relative path, because its base is
/// unknown.
fn directories(environ: &[u8]) -> Option<Directories> {
    let directory = |name: &str, usual: &str| {
        let value = variable(environ, name).filter(|path| !path.is_empty());
        let path: PathBuf = value.unwrap_or_else(|| usual.to_owned()).into();
        // Removes trailing and doubled slashes.
        path.is_absolute().then(|| path.components().collect())
    };
    Some(Directories { pipes: directory(PIPES, DEFAULT_PIPES)?, logs: directory(LOGS, DEFAULT_LOGS)? })
}

/// Returns the value of a variable in an `environ` file.
fn variable(environ: &[u8], name: &str) -> Option<String> {
    let mut pairs = environ.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[cfg(test)]
#[path = "tests/place.rs"]
mod tests;
