//! Processes on the node at one time, as the enforcer read them from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::workload::starts_of_ancestors;
use bailiff_snapshot::{Place, ProcessKey, State};

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Content of `stat`.
    pub stat: Stat,
    /// Effective owner.
    pub uid: u32,
    /// Cgroup and container, shared by the processes of one cgroup.
    pub place: Arc<Place>,
    /// Path in the cgroup v2 hierarchy.
    pub unified: Option<Arc<str>>,
    /// Path of its program, if it is readable and the process's name may protect it.
    pub exe: Option<String>,
    /// Owner of the program's file, likewise.
    pub exe_uid: Option<u32>,
}

/// Whether a process has a device file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// The process has a device file open.
    Open,
    /// It does not; all descriptors were read.
    None,
    /// Permission denied.
    Denied,
}

/// All processes, by pid and by parent.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Processes by pid.
    pub people: BTreeMap<u32, ProcessInfo>,
    /// Processes whose `stat` could not be read in time. Their start time is that of an ancestor, and never verified.
    pub unread: BTreeSet<u32>,
    children: BTreeMap<u32, Vec<u32>>,
}

impl Table {
    /// Builds the table.
    pub fn of(people: impl IntoIterator<Item = ProcessInfo>) -> Self {
        Self::sorted(people.into_iter().map(|person| (person.stat.key.pid, person)).collect())
    }

    /// Builds the table from processes by pid.
    pub fn sorted(people: BTreeMap<u32, ProcessInfo>) -> Self {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, person) in &people {
            children.entry(person.stat.ppid).or_default().push(*pid);
        }
        Self { people, unread: BTreeSet::new(), children }
    }

    /// Returns the table with these processes updated.
    pub fn with(mut self, people: impl IntoIterator<Item = ProcessInfo>) -> Self {
        for person in people {
            self.unread.remove(&person.stat.key.pid);
            self.people.insert(person.stat.key.pid, person);
        }
        Self { unread: self.unread, ..Self::sorted(self.people) }
    }

    /// Returns the table with processes whose `stat` could not be read in time.
    pub fn with_unread(mut self, mut unread: BTreeMap<u32, ProcessInfo>) -> Self {
        if unread.is_empty() {
            return self;
        }
        let pids: BTreeSet<u32> = unread.keys().copied().collect();
        let parent = |pid: u32| unread.get(&pid).map(|person| person.stat.ppid);
        let start = |pid: u32| self.people.get(&pid).map(|person| person.stat.key.start_ticks);
        let starts = starts_of_ancestors(pids.iter().copied(), parent, start);
        for (pid, person) in &mut unread {
            person.stat.key.start_ticks = starts.get(pid).copied().unwrap_or_default();
        }
        self.people.append(&mut unread);
        Self { unread: pids, ..Self::sorted(self.people) }
    }

    /// Returns the process with this key, if it still runs.
    pub fn get(&self, key: ProcessKey) -> Option<&ProcessInfo> {
        self.people.get(&key.pid).filter(|person| person.stat.key == key)
    }

    /// Returns whether the process with this key may run.
    pub fn has(&self, key: ProcessKey) -> bool {
        self.get(key).is_some() || self.unread.contains(&key.pid)
    }

    /// Returns the children of a process.
    pub fn children(&self, pid: u32) -> &[u32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns the ancestors of a process.
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

/// Returns whether a process has exited or is exiting.
pub fn is_over(state: State) -> bool {
    matches!(state, State::Zombie | State::Dead)
}

/// The program that a process runs, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// Path of the program.
    pub exe: Option<String>,
    /// Command line, redacted as by the exporter.
    pub command: Option<String>,
}

/// Whether a command line must be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandLine {
    /// It must.
    Needed,
    /// It is not read.
    Ignored,
}
