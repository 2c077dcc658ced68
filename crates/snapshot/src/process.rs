//! Facts about one process, from `/proc`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Claim, Place, ProcessKey};

crate::label_values! {
/// State of a process in one sample.
pub enum State (default Unknown) {
    /// `R`: running or runnable.
    Running = "running",
    /// `S`: in an interruptible sleep.
    Sleeping = "sleeping",
    /// `D`: in an uninterruptible sleep, in which no signal reaches it.
    DiskSleep = "disk_sleep",
    /// `T`: stopped by a signal.
    Stopped = "stopped",
    /// `t`: stopped by a debugger.
    Traced = "traced",
    /// In a frozen cgroup, for example by `docker pause`.
    Frozen = "frozen",
    /// `I`: an idle kernel thread.
    Idle = "idle",
    /// `Z` without other threads: it holds no GPU memory, and its parent has not reaped it.
    Zombie = "zombie",
    /// `Z`, but other threads run and keep its GPU contexts. SIGKILL works.
    ZombieLeader = "zombie_leader",
    /// `X`: exiting at this moment.
    Dead = "dead",
    /// The driver lists the pid, but the process does not exist.
    Gone = "gone",
    /// The process exists, but `/proc` hides it from us (`hidepid`).
    Hidden = "hidden",
    /// A state letter that this program does not know, or a state that could not be read.
    Unknown = "unknown",
}
}

impl State {
    /// Parses field 3 of `/proc/PID/stat`. `Z` counts as a zombie until live threads are found.
    pub fn of_letter(letter: &str) -> Self {
        match letter {
            "R" => Self::Running,
            "S" => Self::Sleeping,
            "D" => Self::DiskSleep,
            "T" => Self::Stopped,
            "t" => Self::Traced,
            "I" => Self::Idle,
            "Z" => Self::Zombie,
            "X" | "x" => Self::Dead,
            _ => Self::Unknown,
        }
    }

    /// Returns whether the process has ended, so that it can hold no memory.
    pub const fn ended(self) -> bool {
        matches!(self, Self::Zombie | Self::Dead | Self::Gone)
    }

    /// Returns whether the process was paused on purpose: by a signal, a debugger or a frozen cgroup.
    pub const fn on_hold(self) -> bool {
        matches!(self, Self::Stopped | Self::Traced | Self::Frozen)
    }
}

/// Bytes read from and written to storage (`read_bytes` and `write_bytes` of `/proc/PID/io`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes written to storage.
    pub write_bytes: u64,
}

impl Io {
    /// Parses `/proc/PID/io`.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
        };
        Some(Self { read_bytes: value("read_bytes")?, write_bytes: value("write_bytes")? })
    }
}

/// Facts about one process that `/proc` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Pid and start time.
    pub key: ProcessKey,
    /// Process state.
    pub state: State,
    /// Parent's pid.
    pub ppid: u32,
    /// Name, at most 15 bytes. The process can set it to any bytes.
    pub comm: String,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Owner's name; `None` until the name service has answered.
    pub user: Option<String>,
    /// Container, pod, job and unit that it runs in.
    pub place: Place,
    /// Command line without secrets; `None` unless command lines are read.
    pub command: Option<String>,
    /// Start time, in seconds since the Unix epoch; `None` if the time of boot could not be read.
    pub started: Option<f64>,
    /// CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// Bytes read from and written to storage; `None` without permission.
    pub io: Option<Io>,
    /// Whether its session, job or container has ended; `None` if unknown.
    pub orphaned: Option<bool>,
    /// CPU time of its reaped children, in seconds.
    pub reaped_cpu_seconds: Option<f64>,
    /// Workload ([`crate::workload`]) as text; `None` if unknown.
    pub workload: Option<String>,
    /// Path of its program; `None` without permission.
    pub exe: Option<String>,
    /// Owner of the program's file; `None` without permission, `u32::MAX` if there is no program or its owner is hidden.
    pub exe_uid: Option<u32>,
    /// Role in MPS, if any.
    pub role: Option<Role>,
    /// Lease named in its environment; read only if leases are exported.
    pub claim: Claim,
    /// Notebook named in its environment; `None` unless notebooks are read.
    pub notebook: Option<String>,
    /// Ancestors, up to the first process; `None` if one is unreadable or leases are not exported.
    pub ancestors: Option<Vec<ProcessKey>>,
    /// Whether CRIU is or was its ancestor. If not, it is unknown whether it was restored.
    pub restored: bool,
    /// Whether the driver lists its pid on a GPU, but may mean a process that has exited.
    pub reused_pid: bool,
    /// Whether a process of its workload, or one that descends from it, could not be read in time, or has an unknown cgroup.
    pub unread_relatives: bool,
}

/// Returns whether a process with this name and owner is CRIU, which restores its children. The program, if it is known,
/// must have this name too, and belong to root.
pub fn is_criu(comm: &str, uid: Option<u32>, (exe, exe_uid): (Option<&str>, Option<u32>)) -> bool {
    let is_named = |path: &str| path.strip_suffix(" (deleted)").unwrap_or(path).ends_with("/criu");
    comm == "criu" && uid == Some(0) && exe.is_none_or(is_named) && exe_uid.is_none_or(|uid| uid == 0)
}

crate::label_values! {
/// Role of a process in MPS. Both programs have the same `comm`.
pub enum Role {
    /// Server, which acts for its clients.
    MpsServer = "mps_server",
    /// Control daemon.
    MpsControl = "mps_control",
}
}

impl Role {
    /// The `comm` of both programs, as truncated by the kernel.
    pub const COMM: &'static str = "nvidia-cuda-mps";

    /// Parses the path of a program, or the first argument of a command line.
    pub fn of_program(path: &str) -> Option<Self> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        match path.rsplit('/').next()? {
            "nvidia-cuda-mps-server" => Some(Self::MpsServer),
            "nvidia-cuda-mps-control" => Some(Self::MpsControl),
            _ => None,
        }
    }
}

/// A process without GPU memory that belongs to the workload of a holder, or descends from a holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Relative {
    /// Pid and start time.
    pub key: ProcessKey,
    /// Process state.
    pub state: State,
    /// Parent's pid.
    pub ppid: u32,
    /// Name (`comm`).
    pub comm: String,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Owner's name; `None` until the name service has answered.
    pub user: Option<String>,
    /// Container, pod, job and unit that it runs in; shared by all processes of a cgroup.
    pub place: Arc<Place>,
    /// Path of its program; `None` without permission, or if too long.
    pub exe: Option<String>,
    /// Owner of the program's file; `None` without permission, `u32::MAX` if there is no program or its owner is hidden.
    pub exe_uid: Option<u32>,
    /// Command line without secrets; `None` unless command lines are read.
    pub command: Option<String>,
    /// Workload, as text.
    pub workload: String,
    /// CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of its reaped children, in seconds.
    pub reaped_cpu_seconds: f64,
}

/// Result of reading one listed pid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// The process exists.
    Found(Box<Facts>),
    /// The process does not exist.
    Gone,
    /// The process exists, but we may not see it.
    Hidden,
}

impl Seen {
    /// Returns the facts, if the process was found.
    pub fn found(&self) -> Option<&Facts> {
        if let Self::Found(facts) = self { Some(facts) } else { None }
    }

    /// Returns the facts, to be changed, if the process was found.
    pub fn found_mut(&mut self) -> Option<&mut Facts> {
        if let Self::Found(facts) = self { Some(facts) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_is_found_by_the_full_program_name() {
        let cases = [
            ("/usr/bin/nvidia-cuda-mps-server", Some("mps_server")),
            ("nvidia-cuda-mps-control", Some("mps_control")),
            ("/usr/bin/nvidia-cuda-mps-control (deleted)", Some("mps_control")),
            ("/usr/bin/nvidia-cuda-mps", None),
            ("/usr/bin/nvidia-cuda-mps-server/python3", None),
            ("", None),
        ];
        for (path, role) in cases {
            assert_eq!(Role::of_program(path).map(Role::name), role, "{path}");
        }
        assert_eq!(Role::COMM.len(), 15, "what the kernel leaves of a name");
    }

    #[test]
    fn io_needs_both_figures() {
        let text = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";
        assert_eq!(Io::parse(text), Some(Io { read_bytes: 4096, write_bytes: 8192 }));
        assert_eq!(Io::parse("read_bytes: 4096\nwrite_by"), None);
        assert_eq!(Io::parse(""), None);
    }
}
