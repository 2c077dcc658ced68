//! Changes the user of this program. Like capabilities, a user is per thread, so it is changed before other threads are
//! started.

use std::str::FromStr;

use anyhow::{Context, Result};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::capabilities::{self, Capability};

/// A user and its only group, written `UID[:GID]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    uid: Uid,
    gid: Gid,
}

impl FromStr for User {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = |text: &str| text.parse().ok().filter(|id| (1..u32::MAX).contains(id));
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let ids = id(uid).zip(id(gid)).ok_or("not UID or UID:GID, such as 65532; root is not accepted")?;
        Ok(Self { uid: Uid::from_raw(ids.0), gid: Gid::from_raw(ids.1) })
    }
}

impl User {
    /// Capabilities for changing the user.
    pub const CAPABILITIES: [Capability; 2] = [Capability::CAP_SETUID, Capability::CAP_SETGID];

    /// Changes to this user and group, leaves all other groups, and drops all capabilities.
    ///
    /// # Errors
    /// If the kernel refuses. The program then still has rights that it should not have.
    pub fn assume(self) -> Result<()> {
        self.change().context("CAP_SETUID and CAP_SETGID are needed")?;
        capabilities::drop_all().context("cannot drop capabilities")
    }

    fn change(self) -> rustix::io::Result<()> {
        set_thread_groups(&[])?;
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        set_thread_res_uid(self.uid, self.uid, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_a_number_with_or_without_a_group() {
        let of = |uid, gid| Ok(User { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) });
        assert_eq!("65532".parse(), of(65532, 65532));
        assert_eq!("1:4294967294".parse(), of(1, u32::MAX - 1));
        for invalid in ["", "0", "0:1", "1:0", "1:", ":1", "-1", "4294967295", "nobody", "1:2:3"] {
            assert!(invalid.parse::<User>().is_err(), "{invalid}");
        }
    }
}
