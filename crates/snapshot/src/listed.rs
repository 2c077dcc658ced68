//! Which process the driver means with each pid that it lists on a GPU. It goes on listing a process that has exited while another
//! process has its device files open (docs/hardware.md, row `forked`), so another process can get the pid meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Facts, ProcessKey};

/// Start times have a resolution of 10 ms.
const SLACK: Duration = Duration::from_millis(20);

/// A pid in the driver's list of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedPid {
    /// When the first of the consecutive lists with the pid was read, since boot.
    since: Duration,
    /// The process that is listed, and its author if known; `None` if it was never seen.
    process: Option<(ProcessKey, Option<Author>)>,
}

/// Owner of a process, and the cgroup that it cannot leave: users of containers can have the same uid.
type Author = (u32, String);

/// The pids in the driver's list of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedPids {
    /// Index of the GPU or MIG instance.
    pub(crate) index: String,
    pids: BTreeMap<u32, ListedPid>,
}

impl ListedPids {
    /// Returns the pids of the next list, which was read at this time. `facts` are those of the process that has a pid now.
    pub(crate) fn next<'a>(
        &self,
        (index, pids): (&str, impl Iterator<Item = u32>),
        at: Duration,
        facts: impl Fn(u32) -> Option<&'a Facts>,
    ) -> Self {
        let next = |pid| {
            let mut listed = self.pids.get(&pid).cloned().unwrap_or(ListedPid { since: at, process: None });
            if let Some(facts) = facts(pid).filter(|facts| !listed.may_be_another(facts)) {
                let before = listed.process.and_then(|(_, author)| author);
                listed.process = Some((facts.key, author(facts).or(before)));
            }
            (pid, listed)
        };
        Self { index: index.to_owned(), pids: pids.map(next).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pids.is_empty()
    }

    /// Returns whether a process may be another one than that which the driver lists with its pid.
    pub(crate) fn may_be_another(&self, facts: &Facts) -> bool {
        self.pids.get(&facts.key.pid).is_some_and(|listed| listed.may_be_another(facts))
    }
}

impl ListedPid {
    /// An author's later process may be the one that is listed: otherwise, a user could hide a process behind an earlier one.
    fn may_be_another(&self, facts: &Facts) -> bool {
        match &self.process {
            Some((key, before)) => *key != facts.key && (before.is_none() || *before != author(facts)),
            None => facts.key.started() > self.since + SLACK,
        }
    }
}

fn author(facts: &Facts) -> Option<Author> {
    let confinement = Some(facts.place.confinement()).filter(|path| !path.is_empty())?;
    Some((facts.uid?, confinement.to_owned()))
}
