//! Which processes are parts of MPS, and where their files are: from program, arguments and environment, all as `/proc` has
//! them. Never from `comm`, which is the same of daemon and server.

use std::path::PathBuf;

use bailiff_snapshot::Role;

/// Directory of a daemon's sockets; it identifies the daemon.
pub const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Names the directory of its logs.
pub const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Names the GPUs that a daemon has.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Names the protocol that a daemon speaks; stronger than its flag.
const PROTOCOL: &str = "CUDA_MPS_PROTOCOL_VERSION";
/// Where the sockets are unless the environment says so.
pub const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";
/// Where the logs are unless the environment says so.
pub const DEFAULT_LOGS: &str = "/var/log/nvidia-mps";

/// What `/proc` says of a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessView<'a> {
    /// Where `exe` points; none without the right to read it.
    pub exe: Option<&'a str>,
    /// The text of `cmdline`.
    pub cmdline: &'a [u8],
    /// The text of `environ`; none without the right to read it.
    pub environ: Option<&'a [u8]>,
}

/// A part of MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A control daemon.
    Daemon(Daemon),
    /// A server; none if its environment is not ours to read.
    Server(Option<Directories>),
    /// The same program as a client of a daemon.
    Asker,
}

/// A control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Where its files are; none if its environment is not ours to read.
    pub directories: Option<Directories>,
    /// Value of `CUDA_VISIBLE_DEVICES`; none if it is not set, and the daemon has all GPUs.
    pub visible: Option<String>,
    /// How it was started.
    pub flags: Flags,
}

/// Where a daemon's files are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Directories {
    /// Its sockets.
    pub pipes: PathBuf,
    /// Its logs.
    pub logs: PathBuf,
}

/// How a daemon was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// `-f`, and not `-d`.
    pub foreground: bool,
    /// `-S`: clients get parts of a GPU of their own.
    pub static_partitioning: bool,
    /// Clients of several users share a server.
    pub multiuser: bool,
    /// 2, or 3 from release 615 on.
    pub protocol: u8,
}

impl ProcessView<'_> {
    /// The role of the process in MPS: by `exe` or, if that cannot be read, by the first argument of the command line.
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

/// How a daemon was started; none if it is no daemon.
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

/// Where the files are by this environment. A path that is not absolute hangs on a working directory, and is unknown.
fn directories(environ: &[u8]) -> Option<Directories> {
    let directory = |name: &str, usual: &str| {
        let value = variable(environ, name).filter(|path| !path.is_empty());
        let path: PathBuf = value.unwrap_or_else(|| usual.to_owned()).into();
        // Without the slashes at its end, and without doubled ones.
        path.is_absolute().then(|| path.components().collect())
    };
    Some(Directories { pipes: directory(PIPES, DEFAULT_PIPES)?, logs: directory(LOGS, DEFAULT_LOGS)? })
}

/// A variable's value.
fn variable(environ: &[u8], name: &str) -> Option<String> {
    let mut pairs = environ.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[cfg(test)]
#[path = "tests/place.rs"]
mod tests;
