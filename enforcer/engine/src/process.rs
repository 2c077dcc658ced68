//! Processes of the node at one moment, as the enforcer read them from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{Place, ProcessKey, State};

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// What its `stat` says.
    pub stat: Stat,
    /// Its effective owner.
    pub uid: u32,
    /// Its cgroup and container; shared by the processes of one place.
    pub place: Arc<Place>,
    /// Its cgroup of version 2.
    pub unified: Option<Arc<str>>,
}

/// Whether a process has a device file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// One is.
    Open,
    /// All descriptors were looked at, and none is.
    None,
    /// Permission denied.
    Denied,
}

/// Everybody.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// By pid.
    pub people: BTreeMap<u32, ProcessInfo>,
    children: BTreeMap<u32, Vec<u32>>,
}

impl Table {
    /// Sorts them.
    #[must_use]
    pub fn of(people: impl IntoIterator<Item = ProcessInfo>) -> Self {
        Self::sorted(people.into_iter().map(|person| (person.stat.key.pid, person)).collect())
    }

    /// Builds the table from processes by pid.
    #[must_use]
    pub fn sorted(people: BTreeMap<u32, ProcessInfo>) -> Self {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, person) in &people {
            children.entry(person.stat.ppid).or_default().push(*pid);
        }
        Self { people, children }
    }

    /// With these as they are now.
    #[must_use]
    pub fn with(mut self, people: impl IntoIterator<Item = ProcessInfo>) -> Self {
        self.people.extend(people.into_iter().map(|person| (person.stat.key.pid, person)));
        Self::sorted(self.people)
    }

    /// The process with this key, if it still runs.
    #[must_use]
    pub fn get(&self, key: ProcessKey) -> Option<&ProcessInfo> {
        self.people.get(&key.pid).filter(|person| person.stat.key == key)
    }

    /// Those that it started and that still have it for a parent.
    #[must_use]
    pub fn children(&self, pid: u32) -> &[u32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Its parent, the parent's parent and so on.
    #[must_use]
    pub fn ancestors(&self, pid: u32) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut next = pid;
        while let Some(parent) = self.people.get(&next).map(|person| person.stat.ppid) {
            if parent == 0 || !found.insert(parent) {
                break;
            }
            next = parent;
        }
        found
    }
}

/// A true zombie, or one that is ending at this moment: nothing can be done to it.
#[must_use]
pub fn is_over(state: State) -> bool {
    matches!(state, State::Zombie | State::Dead)
}

/// What a process runs, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// The path of its program.
    pub exe: Option<String>,
    /// Its command line, redacted as the exporter does.
    pub command: Option<String>,
}

/// Whether a command line is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandLine {
    /// It is.
    Needed,
    /// It is not, and is not read.
    Ignored,
}
