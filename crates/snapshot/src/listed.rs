//! Since when the driver has listed each pid on a GPU. It goes on listing a process that has exited while another process has its
//! device files open (docs/hardware.md, row `forked`), so another process can get the pid meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Facts;

/// Start times have a resolution of 10 ms.
const SLACK: Duration = Duration::from_millis(20);

/// A pid in the driver's list of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedPid {
    /// End of the first of the consecutive samples in which the pid was listed, since boot.
    since: Duration,
    /// Whose process had the pid; `None` if it was never seen.
    author: Option<Author>,
}

/// Owner of a process, and its container, pod or job: users of containers can have the same uid.
type Author = (u32, Option<String>);

/// The pids in the driver's list of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedPids(BTreeMap<u32, ListedPid>);

impl ListedPids {
    /// Returns the pids of the next sample, which ended at this time. `facts` are those of the process that has a pid now.
    pub(crate) fn next<'a>(
        &self,
        pids: impl Iterator<Item = u32>,
        end: Duration,
        facts: impl Fn(u32) -> Option<&'a Facts>,
    ) -> Self {
        let next = |pid| {
            let mut listed = self.0.get(&pid).cloned().unwrap_or(ListedPid { since: end, author: None });
            let certain = facts(pid).filter(|facts| !listed.may_be_another(facts));
            listed.author = certain.and_then(author).or(listed.author);
            (pid, listed)
        };
        Self(pids.map(next).collect())
    }

    /// Returns whether a process may be another one than that which the driver lists with its pid.
    pub(crate) fn may_be_another(&self, facts: &Facts) -> bool {
        self.0.get(&facts.key.pid).is_some_and(|listed| listed.may_be_another(facts))
    }
}

impl ListedPid {
    /// An author's later process may be the one that is listed: otherwise, a user could hide a process behind an earlier one.
    fn may_be_another(&self, facts: &Facts) -> bool {
        let author = author(facts);
        facts.key.started() > self.since + SLACK && (author.is_none() || self.author != author)
    }
}

fn author(facts: &Facts) -> Option<Author> {
    Some((facts.uid?, facts.place.boundary.clone()))
}
