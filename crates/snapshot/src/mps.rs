//! MPS on a node: control daemons and servers from `/proc`, the daemons' answers, and their logs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ProcessKey, State, Truth};

/// All of MPS; empty if nothing of it runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mps {
    /// Control daemons that live: root's first, then the oldest.
    pub daemons: Vec<MpsDaemon>,
    /// Servers that live.
    pub servers: Vec<MpsServer>,
}

/// A control daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MpsDaemon {
    /// Its identity.
    pub process: ProcessKey,
    /// Its owner.
    pub uid: Option<u32>,
    /// What it is doing.
    pub state: State,
    /// When it started, seconds since the Unix epoch.
    pub started: Option<f64>,
    /// Where it is reached; `None` where its environment may not be read.
    pub pipe_directory: Option<String>,
    /// Where it writes its logs; likewise.
    pub log_directory: Option<String>,
    /// Whether the pids that it reports are those of this node.
    pub own_pids: Truth,
    /// What it last answered; `None` where it was not asked yet.
    pub answer: Option<MpsAnswer>,
    /// Counts from its logs since they were first read; `None` if none could be read.
    pub log: Option<MpsLog>,
    /// How each log file is read, by name.
    #[serde(default)]
    pub files: BTreeMap<String, MpsFile>,
}

/// What a daemon answered, or why it did not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MpsAnswer {
    /// When it was asked, milliseconds since boot.
    pub boot_ms: u64,
    /// How long the answer took, microseconds; `None` where there was none.
    pub took_us: Option<u64>,
    /// Why there was none.
    pub fault: Option<MpsFault>,
    /// Percent of a GPU's threads that a new client may use.
    pub thread_percentage: Option<f64>,
    /// Bytes that a new client may have of a device, by the daemon's number of it; without those that have no limit.
    #[serde(default)]
    pub pinned_limits: BTreeMap<u32, u64>,
}

/// Why a daemon did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsFault {
    /// Not within two seconds: every new CUDA program waits as well.
    Timeout,
    /// It stands still (SIGSTOP, a debugger), so it was not asked.
    Stopped,
    /// The client program that asks is not installed.
    NoProgram,
    /// We may not ask it.
    NotPermitted,
    /// No process answers in its directory.
    Unreachable,
    /// Its directory is not known, since its environment may not be read.
    NoDirectory,
    /// Another process listens in its directory, or in what is visible at its path: its answers are not reported.
    Foreign,
    /// Any other error; the log has it.
    Error,
}

impl MpsFault {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Stopped => "stopped",
            Self::NoProgram => "no_program",
            Self::NotPermitted => "not_permitted",
            Self::Unreachable => "unreachable",
            Self::NoDirectory => "no_directory",
            Self::Foreign => "foreign",
            Self::Error => "error",
        }
    }

    /// Whether it answers no client; `None` if unknown, as when its directory is in another mount namespace.
    #[must_use]
    pub const fn is_silence(self) -> Option<bool> {
        match self {
            Self::Timeout | Self::Stopped => Some(true),
            _ => None,
        }
    }
}

/// A server, which acts for its clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MpsServer {
    /// Its identity.
    pub process: ProcessKey,
    /// Its pid in its own namespace, which is how its daemon calls it.
    pub inside: Option<u32>,
    /// Its user, the only one whose clients it serves.
    pub uid: Option<u32>,
    /// The directory of its daemon; `None` where its environment may not be read.
    pub pipe_directory: Option<String>,
    /// The daemon that started it, if that lives.
    pub daemon: Option<ProcessKey>,
    /// Its daemon is gone; `None` where not all processes could be looked at.
    pub orphaned: Option<bool>,
    /// As its daemon says; `None` where it does not, as those before 550 do not.
    pub status: Option<MpsStatus>,
    /// Pids of its clients as reported by its daemon; `None` if it does not report them.
    pub clients: Option<Vec<u32>>,
    /// Percent of a GPU's threads that its clients may use.
    pub thread_percentage: Option<f64>,
}

/// What a server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsStatus {
    /// It starts.
    Initializing,
    /// It serves.
    Active,
    /// A client had a fatal fault: new ones are refused until all that are affected have ended.
    Fault,
}

impl MpsStatus {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Active => "active",
            Self::Fault => "fault",
        }
    }
}

/// How a log file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsFile {
    /// All of it.
    Read,
    /// There is none.
    Absent,
    /// It may not be read.
    Unreadable,
    /// It is a FIFO, a link, a device.
    NoFile,
    /// It is not of the daemon's own user, so it is not the daemon's.
    Foreign,
}

impl MpsFile {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Absent => "absent",
            Self::Unreadable => "unreadable",
            Self::NoFile => "no_file",
            Self::Foreign => "foreign",
        }
    }
}

/// Counts from log files since they were first read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpsLog {
    /// Servers that were started.
    pub server_starts: u64,
    /// Servers that ended, by exit status.
    #[serde(default)]
    pub server_exits: BTreeMap<i64, u64>,
    /// Fatal faults of clients.
    pub client_faults: u64,
    /// Clients that were turned away, by reason.
    #[serde(default)]
    pub rejected: BTreeMap<String, u64>,
    /// Clients that wait for a server, by uid.
    #[serde(default)]
    pub pending: BTreeMap<u32, u64>,
    /// Lines that were not understood.
    pub unparsed: u64,
    /// Bytes that were passed over, since there were too many at once.
    pub skipped_bytes: u64,
}

impl Mps {
    /// Whether there is anything of it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.daemons.is_empty() && self.servers.is_empty()
    }

    /// The server of this process.
    #[must_use]
    pub fn server(&self, process: ProcessKey) -> Option<&MpsServer> {
        self.servers.iter().find(|server| server.process == process)
    }

    /// The daemon that a server has, if it lives.
    #[must_use]
    pub fn daemon_of(&self, server: &MpsServer) -> Option<&MpsDaemon> {
        self.daemons.iter().find(|daemon| Some(daemon.process) == server.daemon)
    }
}

impl MpsDaemon {
    /// Whether it answers; `None` if unknown.
    #[must_use]
    pub fn responsive(&self) -> Option<bool> {
        let answer = self.answer.as_ref()?;
        match answer.fault {
            None => Some(true),
            Some(fault) => fault.is_silence().map(|silent| !silent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(pid: u32, uid: u32, directory: Option<&str>) -> MpsDaemon {
        MpsDaemon {
            process: ProcessKey { pid, start_ticks: 1 },
            uid: Some(uid),
            state: State::Sleeping,
            started: None,
            pipe_directory: directory.map(str::to_owned),
            log_directory: None,
            own_pids: Truth::True,
            answer: None,
            log: None,
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn unresponsive_daemon_is_distinguished_from_unreachable() {
        let responsive = |fault| {
            let answer = MpsAnswer { fault, ..MpsAnswer::default() };
            MpsDaemon { answer: Some(answer), ..daemon(1, 0, None) }.responsive()
        };
        assert_eq!(responsive(None), Some(true));
        for fault in [MpsFault::Timeout, MpsFault::Stopped] {
            assert_eq!(responsive(Some(fault)), Some(false), "{fault:?}");
        }
        for fault in [MpsFault::NoProgram, MpsFault::NotPermitted, MpsFault::Unreachable, MpsFault::Foreign] {
            assert_eq!(responsive(Some(fault)), None, "{fault:?}");
        }
        assert_eq!(daemon(1, 0, None).responsive(), None, "it was not asked");
    }
}
