//! Which process the driver means with each pid that it lists on a GPU. It goes on listing a process that has exited while another
//! process has its device files open (docs/hardware.md, row `forked`), so another process can get the pid meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::{Place, ProcessKey};

/// Start times have a resolution of 10 ms.
const SLACK: Duration = Duration::from_millis(20);

/// A process that has a pid now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    key: ProcessKey,
    author: Option<Author>,
}

/// Owner of a process, and the cgroup that it cannot leave: users of containers can have the same uid.
type Author = (u32, Arc<str>);

impl Candidate {
    /// Returns a process with this owner.
    pub fn new(key: ProcessKey, uid: Option<u32>, place: &Place) -> Self {
        let confinement = Some(place.confinement()).filter(|path| !path.is_empty());
        Self { key, author: uid.zip(confinement.map(Arc::from)) }
    }
}

/// A pid in the driver's list of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListedPid {
    /// When the first of the consecutive lists with the pid was read, since boot.
    since: Duration,
    process: Listed,
}

/// The process that is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Listed {
    /// None was seen yet.
    Unseen,
    Process(Candidate),
    /// One that exited before any was seen.
    Exited,
}

/// The pids in the driver's list of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedPids {
    /// UUID of the GPU that contains the MIG instance.
    parent: Option<String>,
    pids: BTreeMap<u32, ListedPid>,
}

impl ListedPids {
    /// Returns the pids of the next list, which was read at this time. `process` returns the process that has a pid now.
    #[must_use]
    pub fn next(
        &self,
        (parent, pids): (Option<&str>, impl Iterator<Item = u32>),
        at: Duration,
        process: impl Fn(u32) -> Option<Candidate>,
    ) -> Self {
        let next = |pid| {
            let unseen = ListedPid { since: at, process: Listed::Unseen };
            let mut listed = self.pids.get(&pid).cloned().unwrap_or(unseen);
            if let Some(mut process) = process(pid).filter(|process| !listed.may_be_another(process)) {
                if let (None, Listed::Process(before)) = (&process.author, listed.process) {
                    process.author = before.author;
                }
                listed.process = Listed::Process(process);
            }
            (pid, listed)
        };
        Self { parent: parent.map(str::to_owned), pids: pids.map(next).collect() }
    }

    /// Returns whether no pid is listed.
    pub fn is_empty(&self) -> bool {
        self.pids.is_empty()
    }

    /// Returns whether no process with this pid was seen yet.
    pub fn is_unseen(&self, pid: u32) -> bool {
        self.pids.get(&pid).is_none_or(|listed| listed.process == Listed::Unseen)
    }

    /// Records that the process with this pid had exited before any was seen.
    pub fn set_exited(&mut self, pid: u32) {
        if let Some(listed) = self.pids.get_mut(&pid) {
            listed.process = Listed::Exited;
        }
    }

    /// Returns whether a process may be another one than that which the driver lists with its pid.
    pub fn may_be_another(&self, process: &Candidate) -> bool {
        self.pids.get(&process.key.pid).is_some_and(|listed| listed.may_be_another(process))
    }

    /// Forgets MIG instances that were removed, which is possible only without processes. `is_removed` is given the UUID of the
    /// instance's GPU, and the instance's name.
    pub fn forget_removed(all: &mut BTreeMap<String, Self>, is_removed: impl Fn(&str, &str) -> bool) {
        all.retain(|name, listed| !listed.parent.as_ref().is_some_and(|parent| is_removed(parent, name)));
    }
}

impl ListedPid {
    /// An author's later process may be the one that is listed: otherwise, a user could hide a process behind an earlier one.
    fn may_be_another(&self, process: &Candidate) -> bool {
        match &self.process {
            Listed::Unseen => process.key.started() > self.since + SLACK,
            Listed::Process(before) => {
                before.key != process.key && (before.author.is_none() || before.author != process.author)
            }
            Listed::Exited => true,
        }
    }
}
