//! Holders that can make no progress, or were left behind: what they are called, and what frees what they hold. The status
//! page, `bailiff info` and the metrics share these words.

use crate::{Process, State};

/// One look may see any process on its way: in a short wait for a disk, ended and not yet waited for, or ended after the
/// driver has listed it. So many in a row see it stuck there.
const LOOKS: u32 = 3;
/// Whoever was left behind has done nothing for so many windows in a row, he and all of his workload.
const WINDOWS: u32 = 3;

crate::label_values! {
/// How a holder is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stuck {
    /// Its first thread has ended, others live on.
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
    /// What is known of a process that holds memory; none where it is not stuck, or that cannot be told.
    #[must_use]
    pub fn of(process: &Process) -> Option<Self> {
        if let Some(kind) = Self::in_state(process.state) {
            return Some(kind).filter(|_| process.looks >= LOOKS);
        }
        let orphaned = process.facts.as_ref().and_then(|facts| facts.orphaned);
        (orphaned == Some(true) && process.still >= WINDOWS).then_some(Self::LeftBehind)
    }

    /// Whether another look may show that it is stuck.
    #[must_use]
    pub const fn may_be(process: &Process) -> bool {
        Self::in_state(process.state).is_some() && process.looks < LOOKS
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
            Self::Zombie => {
                "whoever has inherited its files (bailiff info --who, as root): it has none any more; or the driver is late"
            }
            Self::DiskSleep => {
                "the end of what it waits for: a mount, a FUSE connection, the driver. SIGKILL waits, too"
            }
            Self::LeftBehind => "its end: SIGTERM, then SIGKILL",
            Self::Gone => {
                "the end of whoever has inherited its files (bailiff info --who, as root); else the driver alone: see dmesg"
            }
        }
    }
}

/// Memory of nobody beyond this deserves a look.
pub const REPORTED_UNATTRIBUTED: i64 = 256 << 20;
/// What frees memory that no listed process holds.
pub const UNATTRIBUTED_FREED_BY: &str = "the end of whoever has the device open and is not listed (bailiff info --who, as root); services of the driver hold none";
/// What frees what did not come back.
pub const UNRELEASED_FREED_BY: &str = "the end of whoever has inherited or imported it (bailiff info --who, as root); where nobody has, the driver alone";

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
        let process = |state, looks| Process { state, looks, still: 0, facts: None };
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
            assert_eq!(Stuck::of(&process(state, 2)), None, "{state:?} at two looks");
            assert_eq!(Stuck::may_be(&process(state, 2)), expected.is_some(), "{state:?}");
        }
        assert!(Stuck::ALL.into_iter().all(|kind| Stuck::of_name(kind.name()) == Some(kind)));
    }
}
