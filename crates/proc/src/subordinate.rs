//! Reads the subordinate uids of users.

#![expect(clippy::disallowed_methods, reason = "reads /etc/subuid and /etc/passwd")]

use std::fs;

use bailiff_snapshot::{SUBORDINATE_UIDS, SubordinateUids};

/// Returns the subordinate uids; none if there is no file. Only `/etc/passwd` is searched for the uids of users, because a
/// directory service may not answer.
pub fn subordinate_uids() -> SubordinateUids {
    let [ranges, users] = [SUBORDINATE_UIDS, "/etc/passwd"].map(|file| fs::read(file).unwrap_or_default());
    parse_subordinate_uids(&ranges, &users)
}

/// Users can change fields of their line in `/etc/passwd` (`chfn`), also to bytes that are not UTF-8.
fn parse_subordinate_uids(ranges: &[u8], users: &[u8]) -> SubordinateUids {
    let [ranges, users] = [ranges, users].map(String::from_utf8_lossy);
    let uid_of = |name: &str| {
        let fields = users.lines().map(|line| line.split(':'));
        let mut user = fields.filter_map(|mut fields| Some((fields.next()?, fields.nth(1)?)));
        user.find(|user| user.0 == name)?.1.parse().ok()
    };
    SubordinateUids::parse(&ranges, uid_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_users_are_known_whatever_users_wrote_into_their_lines() {
        let users = b"root:x:0:0::/root:/bin/sh\neve:x:4002:4002:\xff,,,:/:/bin/sh\nbob:x:1000:1000:B\xf6b:/:/bin/sh\n";
        let uids = parse_subordinate_uids(b"eve:165536:65536\nbob:231072:65536\n\xff:1:2\n", users);
        assert_eq!([165_536, 4002, 231_072, 1000].map(|uid| uids.user(uid)), [4002, 4002, 1000, 1000]);
    }
}
