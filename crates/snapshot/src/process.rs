//! What `/proc` says of one process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Claim, Place, ProcessKey};

/// State of a process in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// `R`.
    Running,
    /// `S`.
    Sleeping,
    /// `D`: in an uninterruptible wait, where no signal reaches it.
    DiskSleep,
    /// `T`.
    Stopped,
    /// `t`.
    Traced,
    /// Its cgroup is frozen, as by `docker pause`.
    Frozen,
    /// `I`: an idle kernel thread.
    Idle,
    /// `Z` with nothing left: it holds no VRAM, and its parent has not reaped it.
    Zombie,
    /// `Z`, but other threads run and keep its contexts. SIGKILL works.
    ZombieLeader,
    /// `X`: ending at this moment.
    Dead,
    /// The driver lists the pid and no such process exists.
    Gone,
    /// The process exists and `/proc` does not show it to us (`hidepid`).
    Hidden,
    /// A letter that this program does not know, or that could not be read.
    Unknown,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Running,
        Self::Sleeping,
        Self::DiskSleep,
        Self::Stopped,
        Self::Traced,
        Self::Frozen,
        Self::Idle,
        Self::Zombie,
        Self::ZombieLeader,
        Self::Dead,
        Self::Gone,
        Self::Hidden,
        Self::Unknown,
    ];

    /// The state of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Understands field 3 of `/proc/PID/stat`; `Z` is a true zombie until live threads are found.
    #[must_use]
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

    /// It has ended: nothing of it can hold memory.
    #[must_use]
    pub const fn ended(self) -> bool {
        matches!(self, Self::Zombie | Self::Dead | Self::Gone)
    }

    /// It was put on hold on purpose: by a signal, a debugger or a frozen cgroup.
    #[must_use]
    pub const fn on_hold(self) -> bool {
        matches!(self, Self::Stopped | Self::Traced | Self::Frozen)
    }

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::DiskSleep => "disk_sleep",
            Self::Stopped => "stopped",
            Self::Traced => "traced",
            Self::Frozen => "frozen",
            Self::Idle => "idle",
            Self::Zombie => "zombie",
            Self::ZombieLeader => "zombie_leader",
            Self::Dead => "dead",
            Self::Gone => "gone",
            Self::Hidden => "hidden",
            Self::Unknown => "unknown",
        }
    }
}

/// Bytes to and from storage (`/proc/PID/io`, `read_bytes` and `write_bytes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Read from storage.
    pub read_bytes: u64,
    /// Written to storage.
    pub write_bytes: u64,
}

impl Io {
    /// Understands `/proc/PID/io`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
        };
        Some(Self { read_bytes: value("read_bytes")?, write_bytes: value("write_bytes")? })
    }
}

/// One process that `/proc` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Its identity.
    pub key: ProcessKey,
    /// What it is doing.
    pub state: State,
    /// Its parent's pid.
    pub ppid: u32,
    /// Its name, at most 15 bytes of anything the process likes.
    pub comm: String,
    /// Its owner.
    pub uid: Option<u32>,
    /// Its owner's name; `None` until the name service has answered.
    pub user: Option<String>,
    /// Where it runs.
    pub place: Place,
    /// Its command line, redacted, where asked for.
    pub command: Option<String>,
    /// When it started, seconds since the Unix epoch; `None` where the time of boot could not be read.
    pub started: Option<f64>,
    /// CPU time used, all threads, seconds.
    pub cpu_seconds: f64,
    /// Bytes to and from storage; `None` without the right to read it.
    pub io: Option<Io>,
    /// Whether its session, job or container has ended; `None` if unknown.
    pub orphaned: Option<bool>,
    /// CPU time of its children that have ended and were waited for, seconds.
    pub reaped_cpu_seconds: Option<f64>,
    /// Its workload ([`crate::workload`]), as text; `None` if unknown.
    pub workload: Option<String>,
    /// Path of its program; `None` without the right to read it.
    pub exe: Option<String>,
    /// What it is to MPS.
    pub role: Option<Role>,
    /// The lease named in its environment; read only if leases are exported.
    pub claim: Claim,
    /// Its parent, and so on up to the first process; `None` if one could not be read, or leases are not exported.
    pub ancestors: Option<Vec<ProcessKey>>,
}

/// A part of MPS: both bear the same `comm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The server, which acts for its clients.
    MpsServer,
    /// The control daemon.
    MpsControl,
}

impl Role {
    /// The `comm` of both, as the kernel cuts it.
    pub const COMM: &'static str = "nvidia-cuda-mps";

    /// Parses the path of a program, or the first argument of a command line.
    #[must_use]
    pub fn of_program(path: &str) -> Option<Self> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        match path.rsplit('/').next()? {
            "nvidia-cuda-mps-server" => Some(Self::MpsServer),
            "nvidia-cuda-mps-control" => Some(Self::MpsControl),
            _ => None,
        }
    }

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MpsServer => "mps_server",
            Self::MpsControl => "mps_control",
        }
    }
}

/// A process that holds nothing itself and belongs to the workload of one that does, or descends from one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Relative {
    /// Its identity.
    pub key: ProcessKey,
    /// What it is doing.
    pub state: State,
    /// Its parent's pid.
    pub ppid: u32,
    /// Its name.
    pub comm: String,
    /// Its owner.
    pub uid: Option<u32>,
    /// Its owner's name, once the name service has answered.
    pub user: Option<String>,
    /// Container, pod, job and unit that it runs in; processes of one cgroup share it.
    pub place: Arc<Place>,
    /// Path of its program; `None` without the right to read it, or where it is too long.
    pub exe: Option<String>,
    /// Its command line, redacted; `None` unless command lines are read.
    pub command: Option<String>,
    /// Its workload, in words.
    pub workload: String,
    /// CPU time used, all threads, seconds.
    pub cpu_seconds: f64,
    /// CPU time of its children that have ended and were waited for, seconds.
    pub reaped_cpu_seconds: f64,
}

/// Result of reading one listed pid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// It is there.
    Found(Box<Facts>),
    /// There is no such process.
    Gone,
    /// There is one, and we may not see it.
    Hidden,
}

impl Seen {
    /// What `/proc` says, where it is there.
    #[must_use]
    pub fn found(&self) -> Option<&Facts> {
        if let Self::Found(facts) = self { Some(facts) } else { None }
    }

    /// The same, to be added to.
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
