//! Holders that make no progress or are orphaned: kinds, descriptions, and what frees their memory. The
//! status page, `bailiff info` and the metrics share these texts.

use crate::{Process, State};

/// A process counts as stuck after this many consecutive samples. A single sample may catch it in transition:
/// in a short wait for a disk, exited but not yet reaped, or exited after the driver listed it.
const SAMPLES: u32 = 3;
/// An orphaned process counts as stuck after this many consecutive windows without activity in its workload.
const WINDOWS: u32 = 3;

crate::label_values! {
/// How a holder is stuck.
pub enum Stuck {
    /// The thread-group leader exited, but other threads are running.
    ZombieLeader = "zombie_leader",
    /// The process has exited, but its parent has not reaped it, and the driver still lists it.
    Zombie = "zombie",
    /// The process is in an uninterruptible wait in the kernel, in which signals have no effect.
    DiskSleep = "disk_sleep",
    /// The session, job or container of the process has ended, and the process is idle.
    LeftBehind = "left_behind",
    /// The driver lists the pid, but there is no such process.
    Gone = "gone",
}
}

impl Stuck {
    /// Returns how a process is stuck; `None` if it is not stuck or that is unknown.
    pub fn of(process: &Process) -> Option<Self> {
        if let Some(kind) = Self::in_state(process.state) {
            return Some(kind).filter(|_| process.samples >= SAMPLES);
        }
        let orphaned = process.facts.as_ref().and_then(|facts| facts.orphaned);
        (orphaned == Some(true) && process.still >= WINDOWS).then_some(Self::LeftBehind)
    }

    /// Returns whether the process is in a state that counts as stuck after more samples.
    pub const fn may_be(process: &Process) -> bool {
        Self::in_state(process.state).is_some() && process.samples < SAMPLES
    }

    const fn in_state(state: State) -> Option<Self> {
        match state {
            State::ZombieLeader => Some(Self::ZombieLeader),
            State::Zombie | State::Dead => Some(Self::Zombie),
            State::DiskSleep => Some(Self::DiskSleep),
            State::Gone => Some(Self::Gone),
            _ => None,
        }
    }

    /// Returns a description in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ZombieLeader => "the thread-group leader exited, other threads are running",
            Self::Zombie => "it has exited, but its parent has not reaped it",
            Self::DiskSleep => "it waits in the kernel and does not receive signals",
            Self::LeftBehind => "its session, job or container has ended, and it is idle",
            Self::Gone => "the driver lists it, but there is no such process",
        }
    }

    /// Returns what frees the memory that it holds.
    pub const fn freed_by(self) -> &'static str {
        match self {
            Self::ZombieLeader => "SIGKILL; its parent does not have to reap it first",
            Self::Zombie => {
                "the exit of the process that inherited its files (bailiff info --who, as root), or the driver after a delay"
            }
            Self::DiskSleep => {
                "the end of its wait (a mount, a FUSE connection, the driver); until then, SIGKILL has no effect"
            }
            Self::LeftBehind => "terminating it (SIGTERM, then SIGKILL)",
            Self::Gone => {
                "the exit of the process that inherited its files (bailiff info --who, as root); otherwise only the driver (see dmesg)"
            }
        }
    }
}

/// Unattributed memory of at least this many bytes is reported.
pub const REPORTED_UNATTRIBUTED: i64 = 256 << 20;
/// How to free memory that no listed process holds.
pub const UNATTRIBUTED_FREED_BY: &str = "the exit of the unlisted process that has the device open and is not a driver service (bailiff info --who, as root)";
/// How to free memory that was not released after its holders exited.
pub const UNRELEASED_FREED_BY: &str = "the exit of the process that inherited or imported it (bailiff info --who, as root); otherwise only the driver";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_words_that_fit_a_cell() {
        const CELL: usize = 128;
        for kind in Stuck::ALL {
            assert!(kind.words().len() <= CELL - 10 && kind.freed_by().len() <= CELL, "{kind:?}");
        }
        assert!(UNATTRIBUTED_FREED_BY.len() <= CELL && UNRELEASED_FREED_BY.len() <= CELL);
    }

    #[test]
    fn what_is_stuck_and_what_is_not() {
        let process = |state, samples| Process { state, samples, still: 0, facts: None };
        let cases = [
            (State::ZombieLeader, Some("zombie_leader")),
            (State::Zombie, Some("zombie")),
            (State::Dead, Some("zombie")),
            (State::DiskSleep, Some("disk_sleep")),
            (State::Gone, Some("gone")),
            (State::Sleeping, None),
            (State::Running, None),
            (State::Stopped, None),
            (State::Hidden, None),
            (State::Unknown, None),
        ];
        for (state, expected) in cases {
            assert_eq!(Stuck::of(&process(state, 3)).map(Stuck::name), expected, "{state:?}");
            assert_eq!(Stuck::of(&process(state, 2)), None, "{state:?} in two samples");
            assert_eq!(Stuck::may_be(&process(state, 2)), expected.is_some(), "{state:?}");
        }
    }
}
