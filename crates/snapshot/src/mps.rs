//! MPS on a node: control daemons and servers from `/proc`, the daemons' responses, and counts from their logs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ProcessKey, State, Truth};

/// State of MPS on a node; empty if no part of it is running.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mps {
    /// Running control daemons: root's first, then the oldest.
    pub daemons: Vec<MpsDaemon>,
    /// Running servers.
    pub servers: Vec<MpsServer>,
}

/// An MPS control daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MpsDaemon {
    /// Pid and start time.
    pub process: ProcessKey,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Process state.
    pub state: State,
    /// Start time, in seconds since the Unix epoch.
    pub started: Option<f64>,
    /// Directory of its control pipe; `None` if its environment is not readable.
    pub pipe_directory: Option<String>,
    /// Whether its user owns this directory, in the exporter's mount namespace.
    #[serde(default)]
    pub owns_directory: bool,
    /// Directory of its logs; `None` if its environment is not readable.
    pub log_directory: Option<String>,
    /// Whether the pids that it reports belong to this node's PID namespace.
    pub own_pids: Truth,
    /// Its latest response; `None` before the first query.
    pub answer: Option<MpsAnswer>,
    /// Counts from its logs since they were first read; `None` if no log could be read.
    pub log: Option<MpsLog>,
    /// Result of reading each log file, by file name.
    #[serde(default)]
    pub files: BTreeMap<String, MpsFile>,
}

/// Response from a control daemon, or why there is no response.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MpsAnswer {
    /// Time of the query, in milliseconds since boot.
    pub boot_ms: u64,
    /// Time until the response, in microseconds; `None` without a response.
    pub took_us: Option<u64>,
    /// Why there is no response.
    pub fault: Option<MpsFault>,
    /// Percent of a GPU's threads that a new client may use.
    pub thread_percentage: Option<f64>,
    /// Memory limits of a new client in bytes, by the daemon's device number. Unlimited devices are absent.
    #[serde(default)]
    pub pinned_limits: BTreeMap<u32, u64>,
}

crate::label_values! {
/// Why there is no response from a control daemon.
pub enum MpsFault {
    /// The daemon did not respond within two seconds. New CUDA programs wait for it as well.
    Timeout = "timeout",
    /// The daemon is stopped (SIGSTOP, a debugger), so it was not queried.
    Stopped = "stopped",
    /// The client program for queries is not installed.
    NoProgram = "no_program",
    /// No permission to query the daemon.
    NotPermitted = "not_permitted",
    /// No process is listening on the socket in the daemon's directory.
    Unreachable = "unreachable",
    /// The daemon's directory is unknown, because its environment is not readable.
    NoDirectory = "no_directory",
    /// Another process is listening in the daemon's directory, or at its path. Its responses are not reported.
    Foreign = "foreign",
    /// Any other error; the log has the details.
    Error = "error",
}
}

impl MpsFault {
    /// Returns whether the daemon does not respond to any client; `None` if unknown, for example because its
    /// directory is in another mount namespace.
    pub const fn is_silence(self) -> Option<bool> {
        match self {
            Self::Timeout | Self::Stopped => Some(true),
            _ => None,
        }
    }
}

/// An MPS server, which acts for its clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MpsServer {
    /// Pid and start time.
    pub process: ProcessKey,
    /// Pid in its own PID namespace, by which its daemon names it.
    pub inside: Option<u32>,
    /// Uid of the owner. The server accepts only this user's clients.
    pub uid: Option<u32>,
    /// Directory of its daemon's control pipe; `None` if its environment is not readable.
    pub pipe_directory: Option<String>,
    /// Daemon that started it, if still running.
    pub daemon: Option<ProcessKey>,
    /// Whether its daemon has exited; `None` if not all processes could be examined.
    pub orphaned: Option<bool>,
    /// State reported by its daemon; `None` if the daemon does not report it, as before version 550.
    pub status: Option<MpsStatus>,
    /// Pids of its clients as reported by its daemon; `None` if the daemon does not report them.
    pub clients: Option<Vec<u32>>,
    /// Percent of a GPU's threads that its clients may use.
    pub thread_percentage: Option<f64>,
}

crate::label_values! {
/// State of an MPS server.
pub enum MpsStatus {
    /// Starting.
    Initializing = "initializing",
    /// Serving clients.
    Active = "active",
    /// A client had a fatal fault. New clients are refused until all affected clients have exited.
    Fault = "fault",
}
}

crate::label_values! {
/// Why an MPS server rejected a client, according to its log.
pub enum MpsRejection {
    /// The server has its maximum number of clients.
    Clients = "clients",
    /// The GPU has its maximum number of connections.
    DeviceConnections = "device_connections",
    /// The server is shutting down.
    Teardown = "teardown",
    /// Any other reason.
    Other = "other",
}
}

crate::label_values! {
/// Result of reading a log file.
pub enum MpsFile {
    /// The file was read.
    Read = "read",
    /// The file does not exist.
    Absent = "absent",
    /// The file could not be read.
    Unreadable = "unreadable",
    /// Not a regular file: a FIFO, a link, a device.
    NoFile = "no_file",
    /// The file belongs to a user other than the daemon's, so the daemon did not write it.
    Foreign = "foreign",
}
}

/// Counts from log files since they were first read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpsLog {
    /// Number of servers started.
    pub server_starts: u64,
    /// Number of servers that exited, by exit status.
    #[serde(default)]
    pub server_exits: BTreeMap<i64, u64>,
    /// Number of fatal client faults.
    pub client_faults: u64,
    /// Number of clients rejected, by reason.
    #[serde(default)]
    pub rejected: BTreeMap<String, u64>,
    /// Number of clients that wait for a server, by uid.
    #[serde(default)]
    pub pending: BTreeMap<u32, u64>,
    /// Number of lines that could not be parsed.
    pub unparsed: u64,
    /// Number of bytes skipped because too many arrived at once.
    pub skipped_bytes: u64,
}

impl Mps {
    /// Returns whether no part of MPS runs.
    pub const fn is_empty(&self) -> bool {
        self.daemons.is_empty() && self.servers.is_empty()
    }

    /// Returns the server with this identity.
    pub fn server(&self, process: ProcessKey) -> Option<&MpsServer> {
        self.servers.iter().find(|server| server.process == process)
    }

    /// Returns the daemon of a server, if still running.
    pub fn daemon_of(&self, server: &MpsServer) -> Option<&MpsDaemon> {
        self.daemons.iter().find(|daemon| Some(daemon.process) == server.daemon)
    }
}

impl MpsDaemon {
    /// Returns whether it is the daemon of the directory that it names. Any user can name any directory, so the user must
    /// own it, or the daemon was shown to listen there. Root is believed, also in a container with other paths.
    pub fn is_of_its_directory(&self) -> bool {
        let fault = self.answer.as_ref().map(|answer| answer.fault);
        let listens = matches!(fault, Some(None | Some(MpsFault::Timeout)));
        self.pipe_directory.is_none() || self.owns_directory || self.uid == Some(0) || listens
    }

    /// Returns whether the daemon responds; `None` if unknown.
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
            owns_directory: false,
            log_directory: None,
            own_pids: Truth::True,
            answer: None,
            log: None,
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn only_root_is_believed_to_be_the_daemon_of_a_directory() {
        let named = |uid| daemon(1, uid, Some("/run/mps"));
        let answered =
            |fault| MpsDaemon { answer: Some(MpsAnswer { fault, ..MpsAnswer::default() }), ..named(1000) };
        let cases = [
            (named(0), true),
            (named(1000), false),
            (MpsDaemon { uid: None, ..named(1000) }, false),
            (MpsDaemon { owns_directory: true, ..named(1000) }, true),
            (daemon(1, 1000, None), true),
            (answered(None), true),
            (answered(Some(MpsFault::Timeout)), true),
            (answered(Some(MpsFault::Stopped)), false),
            (answered(Some(MpsFault::Unreachable)), false),
            (answered(Some(MpsFault::Foreign)), false),
            (answered(Some(MpsFault::NotPermitted)), false),
        ];
        for (daemon, expected) in cases {
            assert_eq!(daemon.is_of_its_directory(), expected, "{daemon:?}");
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
