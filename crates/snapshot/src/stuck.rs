//! Holders that can make no progress, or were left behind: what they are called, and what frees what they hold. The status
//! page, `bailiff info` and the metrics share these words.

use crate::{Process, State};

/// One sample may see any process in transition: in a short wait for a disk, exited and not yet reaped, or exited after the
/// driver has listed it. This many consecutive samples show that it is stuck.
const SAMPLES: u32 = 3;
/// An orphaned process has done nothing for this many consecutive windows, and neither has its workload.
const WINDOWS: u32 = 3;

crate::label_values! {
/// How a holder is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stuck {
    /// The thread-group leader exited, other threads run.
    ZombieLeader = "zombie_leader",
    /// It has ended, its parent has not waited for it, and the driver lists it.
    Zombie = "zombie",
    /// It waits in the kernel, where no signal reaches it.
    DiskSleep = "disk_sleep",
    /// Its session, job or container has ended, and it does nothing.
    LeftBehind = "left_behind",
    /// The driver lists it and it does not exist.
    Gone = "gone",
}
}

impl Stuck {
    /// Kind of a stuck holder; none if it is not stuck, or that is unknown.
    #[must_use]
    pub fn of(process: &Process) -> Option<Self> {
        if let Some(kind) = Self::in_state(process.state) {
            return Some(kind).filter(|_| process.samples >= SAMPLES);
        }
        let orphaned = process.facts.as_ref().and_then(|facts| facts.orphaned);
        (orphaned == Some(true) && process.still >= WINDOWS).then_some(Self::LeftBehind)
    }

    /// Whether the next sample may show that it is stuck.
    #[must_use]
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

    /// The kind of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What it is, in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::ZombieLeader => "the thread-group leader exited, other threads run",
            Self::Zombie => "it has ended, and its parent has not waited for it",
            Self::DiskSleep => "it waits in the kernel, where no signal reaches it",
            Self::LeftBehind => "its session, job or container has ended, and it does nothing",
            Self::Gone => "the driver lists it, and it does not exist",
        }
    }

    /// What frees what it holds.
    #[must_use]
    pub const fn freed_by(self) -> &'static str {
        match self {
            Self::ZombieLeader => "SIGKILL; its parent need not wait for it first",
            Self::Zombie => {
                "the end of the process that inherited its files (bailiff info --who, as root), or the driver, which may be late"
            }
            Self::DiskSleep => {
                "the end of what it waits for: a mount, a FUSE connection, the driver. SIGKILL waits, too"
            }
            Self::LeftBehind => "its end: SIGTERM, then SIGKILL",
            Self::Gone => {
                "the end of the process that inherited its files (bailiff info --who, as root); else only the driver: see dmesg"
            }
        }
    }
}

/// Unattributed memory above this is reported.
pub const REPORTED_UNATTRIBUTED: i64 = 256 << 20;
/// What frees memory that no listed process holds.
pub const UNATTRIBUTED_FREED_BY: &str = "the end of the unlisted process that has the device open (bailiff info --who, as root); driver services hold none";
/// What frees what did not come back.
pub const UNRELEASED_FREED_BY: &str = "the end of the process that inherited or imported it (bailiff info --who, as root); without one, only the driver";

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
        assert!(Stuck::ALL.into_iter().all(|kind| Stuck::of_name(kind.name()) == Some(kind)));
    }
}
