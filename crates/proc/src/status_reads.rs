//! Reads of `status`, which a process cannot make hang, but its user can make slow.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bailiff_snapshot::FIRST_USER;
use bailiff_snapshot::stat::Stat;

use crate::clock::cpu_time;
use crate::directory::ReadError;
use crate::patient::limited_user;
use crate::process::Process;

/// Time that reads of `status` of a user's processes may take in one walk. A process with 65,536 groups, which a user with
/// subordinate gids can have, costs 20 ms.
const MOST: Duration = Duration::from_millis(100);

/// Reads `status` of processes whose other reads hang, with a limit for each user other than root.
#[derive(Default)]
pub struct StatusReads {
    /// CPU time so far, by the key of the user.
    spent: BTreeMap<u32, Duration>,
    /// Whether the limit applies to root, too.
    limits_root: bool,
}

impl StatusReads {
    /// Returns reads that are limited for root, too: users who are root in a container have processes of root.
    pub fn limited_for_root() -> Self {
        Self { limits_root: true, ..Self::default() }
    }

    /// Returns the owner of a process, as [`Process::owner`], and what `status` shows of its `stat`. If its user's processes have
    /// used up the limit, it is the effective uid and `None`.
    ///
    /// # Errors
    /// If the process has exited, or `status` cannot be read.
    pub fn read(&mut self, process: &Process) -> Result<(u32, Option<Stat>), ReadError> {
        let effective = process.effective_uid()?;
        if self.used_up(effective) {
            return Ok((effective, None));
        }
        let began = cpu_time();
        let read = process.status();
        let took = cpu_time().saturating_sub(began);
        let (real, stat) = read?;
        // A setuid program of a user counts for the user, and for root.
        let real = real.filter(|real| effective < FIRST_USER && *real >= FIRST_USER);
        let owner = real.unwrap_or(effective);
        let users = BTreeSet::from([owner, effective].map(limited_user));
        for user in users {
            *self.spent.entry(user).or_default() += took;
        }
        Ok((owner, Some(stat)))
    }

    /// Returns whether the processes of a uid's user have used up the limit.
    pub fn used_up(&self, uid: u32) -> bool {
        let user = limited_user(uid);
        let has_limit = user != 0 || self.limits_root;
        has_limit && self.spent.get(&user).is_some_and(|spent| *spent >= MOST)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "runs a program with many groups")]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::Proc;

    #[test]
    fn reads_of_status_are_limited_for_each_user() {
        // Who is root in a container can have processes of any system user, and of root.
        for (uid, mut reads, same, other) in [
            (4002, StatusReads::default(), 4002, 4005),
            (33, StatusReads::default(), 34, 4005),
            (0, StatusReads::limited_for_root(), 0, 33),
        ] {
            let with_groups = format!(
                "import os, time\nos.setgroups(range(65536))\nos.setuid({uid})\nprint(flush=True)\ntime.sleep(600)"
            );
            let mut child =
                Command::new("python3").args(["-c", &with_groups]).stdout(Stdio::piped()).spawn().unwrap();
            let mut ready = [0];
            child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
            let proc = Proc::own().unwrap();
            let process = proc.process(child.id()).unwrap();
            let began = cpu_time();
            let of_time = (0..1000).take_while(|_| reads.read(&process).unwrap().1.is_some()).count();
            let took = cpu_time().saturating_sub(began);
            let (owner, _) = reads.read(&process).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!((1..1000).contains(&of_time) && owner == uid, "{of_time} reads of {uid}");
            assert!(took < MOST * 4, "{took:?}: also the owner is read only once");
            assert!(reads.used_up(same) && !reads.used_up(other), "{uid}");
        }
        let (proc, mut reads) = (Proc::own().unwrap(), StatusReads::default());
        let ours = proc.process(std::process::id()).unwrap();
        let all = (0..10_000).all(|_| reads.read(&ours).unwrap().1.is_some());
        assert!(all && !reads.used_up(0), "without a limit, processes of root are read");
    }
}
