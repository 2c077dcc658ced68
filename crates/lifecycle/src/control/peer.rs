//! Identity of the process at the other end of a Unix socket.

use std::ffi::CString;
use std::io;
use std::time::Duration;

use nix::unistd::{Gid, Uid, User, getgrouplist};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Deadline for the name service, which may be remote. If it does not respond, only the primary group
/// counts.
const PATIENCE: Duration = Duration::from_secs(1);
/// Permits one query at a time, so that a hung name service does not occupy more and more threads.
static ASKING: Semaphore = Semaphore::const_new(1);

/// The peer of a connection, as recorded by the kernel at connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Pid for the log. It may have been reused since. `None` if the process has no pid in this
    /// namespace.
    pub pid: Option<i32>,
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Groups as reported by the name service. The process's own groups can only be read by its pid,
    /// which may be reused.
    pub groups: Vec<u32>,
}

impl Peer {
    pub(super) async fn of(stream: &UnixStream) -> io::Result<Self> {
        let of = stream.peer_cred()?;
        let (uid, gid) = (of.uid(), of.gid());
        // Root needs no group.
        let groups = if uid == 0 { Vec::new() } else { groups(uid, gid).await };
        Ok(Self { pid: of.pid().filter(|pid| *pid > 0), uid, gid, groups })
    }

    /// Returns whether the user is root or a member of this group.
    #[must_use]
    pub fn is_root_or_in(&self, group: u32) -> bool {
        self.uid == 0 || self.gid == group || self.groups.contains(&group)
    }
}

async fn groups(uid: u32, gid: u32) -> Vec<u32> {
    let Ok(permit) = ASKING.try_acquire() else { return Vec::new() };
    let asked = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        groups_of(uid, gid)
    });
    timeout(PATIENCE, asked).await.ok().and_then(Result::ok).flatten().unwrap_or_default()
}

fn groups_of(uid: u32, gid: u32) -> Option<Vec<u32>> {
    let name = User::from_uid(Uid::from_raw(uid)).ok()??.name;
    let groups = getgrouplist(&CString::new(name).ok()?, Gid::from_raw(gid)).ok()?;
    Some(groups.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_group_members_may() {
        let peer = |uid, gid, groups: &[u32]| Peer { pid: Some(1), uid, gid, groups: groups.to_vec() };
        let cases = [
            (peer(0, 0, &[]), true),
            (peer(1000, 990, &[]), true),
            (peer(1000, 1000, &[27, 990]), true),
            (peer(1000, 1000, &[27, 0]), false),
            (peer(1000, 0, &[]), false),
        ];
        for (peer, expected) in cases {
            assert_eq!(peer.is_root_or_in(990), expected, "{peer:?}");
        }
    }

    #[test]
    fn the_name_service_knows_roots_groups() {
        assert!(groups_of(0, 0).is_some_and(|groups| groups.contains(&0)));
        assert_eq!(groups_of(u32::MAX - 7, 0), None);
    }
}
