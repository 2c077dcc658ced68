//! Identifies MPS processes and their directories by program, arguments and environment. The process name is
//! not used, because daemon and server have the same.

use std::path::PathBuf;

use bailiff_snapshot::Role;

/// Variable with the directory of a daemon's sockets; the directory identifies the daemon.
pub const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Variable with the directory of its logs.
pub const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Variable with the GPUs of a daemon.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Variable with the protocol of a daemon; it takes precedence over the flag.
const PROTOCOL: &str = "CUDA_MPS_PROTOCOL_VERSION";
/// Default directory of the sockets.
pub const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";
/// Default directory of the logs.
pub const DEFAULT_LOGS: &str = "/var/log/nvidia-mps";

/// Content of `/proc` files of a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessView<'a> {
    /// Target of `exe`; `None` without permission.
    pub exe: Option<&'a str>,
    /// Content of `cmdline`.
    pub cmdline: &'a [u8],
    /// Content of `environ`; `None` without permission.
    pub environ: Option<&'a [u8]>,
}

/// Role of an MPS process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A control daemon.
    Daemon(Daemon),
    /// A server; `None` if its environment is not readable.
    Server(Option<Directories>),
    /// The control program as a client of a daemon.
    Asker,
}

/// A control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Directories; `None` if its environment is not readable.
    pub directories: Option<Directories>,
    /// Value of `CUDA_VISIBLE_DEVICES`; `None` if it is not set, so that the daemon has all GPUs.
    pub visible: Option<String>,
    /// Flags.
    pub flags: Flags,
}

/// Directories of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Directories {
    /// Directory of the sockets.
    pub pipes: PathBuf,
    /// Directory of the logs.
    pub logs: PathBuf,
}

/// Flags of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// `-f`, without `-d`.
    pub foreground: bool,
    /// `-S`: each client gets its own part of a GPU.
    pub static_partitioning: bool,
    /// Whether clients of several users share a server.
    pub multiuser: bool,
    /// Protocol: 2, or 3 from release 615 on.
    pub protocol: u8,
}

impl ProcessView<'_> {
    /// Returns the MPS role of a process: by `exe`, or by the first argument if `exe` is not readable.
    #[must_use]
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

/// Returns the flags of a daemon; `None` for other processes.
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

/// Returns the directories by this environment. A relative path depends on the working directory, and is
/// unknown.
fn directories(environ: &[u8]) -> Option<Directories> {
    let directory = |name: &str, usual: &str| {
        let value = variable(environ, name).filter(|path| !path.is_empty());
        let path: PathBuf = value.unwrap_or_else(|| usual.to_owned()).into();
        // Without trailing and doubled slashes.
        path.is_absolute().then(|| path.components().collect())
    };
    Some(Directories { pipes: directory(PIPES, DEFAULT_PIPES)?, logs: directory(LOGS, DEFAULT_LOGS)? })
}

/// Returns the value of a variable.
fn variable(environ: &[u8], name: &str) -> Option<String> {
    let mut pairs = environ.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[cfg(test)]
#[path = "tests/place.rs"]
mod tests;
