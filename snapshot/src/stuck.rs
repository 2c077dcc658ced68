//! Holders that can make no progress, or were left behind: what they are called, and what frees what they hold. The status
//! page, `bailiff info` and the metrics share these words.

use crate::{Holder, Process, State};

/// A look may see any process in a short wait for a disk; so many in a row see it stuck there.
const DISK_SLEEP_LOOKS: u32 = 3;

/// How a holder is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stuck {
    /// Its first thread has ended, others live on.
    ZombieLeader,
    /// It has ended, its parent has not waited for it, and the driver lists it.
    Zombie,
    /// It waits in the kernel, where no signal reaches it.
    DiskSleep,
    /// Its session, job or container has ended, and it does nothing.
    LeftBehind,
    /// The driver lists it and it does not exist.
    Gone,
}

impl Stuck {
    /// Every kind, in the order of a page.
    pub const ALL: [Self; 5] =
        [Self::ZombieLeader, Self::Zombie, Self::DiskSleep, Self::LeftBehind, Self::Gone];

    /// What a snapshot tells of a holder; none where he is not stuck, or that cannot be told.
    #[must_use]
    pub fn of(holder: &Holder, process: &Process) -> Option<Self> {
        match process.state {
            State::DiskSleep if process.looks < DISK_SLEEP_LOOKS => None,
            state => {
                let orphaned = process.facts.as_ref().and_then(|facts| facts.orphaned);
                Self::in_state(state, orphaned == Some(true) && holder.utilization.idle() == Some(true))
            }
        }
    }

    /// The same of a state alone, and of whether it was left behind and is idle.
    #[must_use]
    pub const fn in_state(state: State, left_behind: bool) -> Option<Self> {
        match state {
            State::ZombieLeader => Some(Self::ZombieLeader),
            State::Zombie | State::Dead => Some(Self::Zombie),
            State::DiskSleep => Some(Self::DiskSleep),
            State::Gone => Some(Self::Gone),
            _ if left_behind => Some(Self::LeftBehind),
            _ => None,
        }
    }

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZombieLeader => "zombie_leader",
            Self::Zombie => "zombie",
            Self::DiskSleep => "disk_sleep",
            Self::LeftBehind => "left_behind",
            Self::Gone => "gone",
        }
    }

    /// What it is, in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::ZombieLeader => "its first thread has ended, others live on",
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
            Self::Zombie => "it holds nothing any more: the driver is late, or another process has its files",
            Self::DiskSleep => {
                "the end of what it waits for: a mount, a FUSE connection, the driver. SIGKILL waits, too"
            }
            Self::LeftBehind => "its end: SIGTERM, then SIGKILL",
            Self::Gone => "the driver alone: see dmesg; at last a reset of the GPU, with nobody on it",
        }
    }
}

/// Memory of nobody beyond this deserves a look.
pub const MUCH_OF_NOBODY: i64 = 256 << 20;
/// What frees memory that no listed process holds.
pub const OF_NOBODY_FREED_BY: &str = "the end of whoever has the device open and is not listed (bailiff info --who, as root); services of the driver hold none";
/// What frees what did not come back.
pub const UNRETURNED_FREED_BY: &str = "the end of whoever has inherited or imported it (bailiff info --who, as root); where nobody has, the driver alone";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_words_that_fit_a_cell() {
        const CELL: usize = 128;
        for kind in Stuck::ALL {
            assert!(kind.words().len() <= CELL - 10 && kind.freed_by().len() <= CELL, "{kind:?}");
        }
        assert!(OF_NOBODY_FREED_BY.len() <= CELL && UNRETURNED_FREED_BY.len() <= CELL);
    }

    #[test]
    fn what_is_stuck_and_what_is_not() {
        let cases = [
            (State::ZombieLeader, false, Some("zombie_leader")),
            (State::Zombie, false, Some("zombie")),
            (State::Dead, true, Some("zombie")),
            (State::DiskSleep, true, Some("disk_sleep")),
            (State::Gone, false, Some("gone")),
            (State::Sleeping, true, Some("left_behind")),
            (State::Sleeping, false, None),
            (State::Running, false, None),
            (State::Stopped, false, None),
            (State::Hidden, false, None),
            (State::Unknown, false, None),
        ];
        for (state, left_behind, expected) in cases {
            assert_eq!(Stuck::in_state(state, left_behind).map(Stuck::name), expected, "{state:?}");
        }
    }
}
