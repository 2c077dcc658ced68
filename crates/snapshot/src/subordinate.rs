//! Further uids of users, which they can use in user namespaces (subuid(5)).

use std::collections::HashMap;
use std::ops::Range;

/// File with the ranges.
pub const SUBORDINATE_UIDS: &str = "/etc/subuid";

/// The lowest uid of people, as in Debian's and Red Hat's `login.defs`. Uids below it are those of the system.
pub const FIRST_USER: u32 = 1000;

/// The ranges of subordinate uids on this machine, each with the key of its user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubordinateUids(Vec<(Range<u32>, u32)>);

impl SubordinateUids {
    /// Parses lines of the form `NAME:FIRST:COUNT` or `UID:FIRST:COUNT`. Other lines are ignored. `uid_of` returns the uid
    /// of a name. Root itself is in no range.
    pub fn parse<'a>(text: &'a str, uid_of: impl Fn(&str) -> Option<u32>) -> Self {
        let range = |line: &'a str| {
            let (name, numbers) = line.split_once(':')?;
            let mut numbers = numbers.split(':').map(str::parse::<u32>);
            let (first, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some((name, first.max(1)..first.saturating_add(count)))
        };
        let mut keys: HashMap<&str, u32> = HashMap::new();
        // Root has no limits, but what runs as its subordinate uids has.
        let uid = |name: &str| name.parse().ok().or_else(|| uid_of(name)).filter(|uid| *uid != 0);
        let key = |(name, range): (&'a str, Range<u32>)| {
            let key = *keys.entry(name).or_insert_with(|| uid(name).unwrap_or(range.start));
            (range, key)
        };
        Self(text.lines().filter_map(range).map(key).collect())
    }

    /// Returns a key for the user of a uid: for a subordinate uid that of the user whom it was given to or, if this is root
    /// or not known, the first uid of the first range; other uids unchanged.
    pub fn user(&self, uid: u32) -> u32 {
        self.0.iter().find(|(range, _)| range.contains(&uid)).map_or(uid, |(_, key)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_a_range_have_one_key() {
        let uids =
            SubordinateUids::parse("alice:100000:65536\nbob:x:1\n\nbob:165536\nbob:165536:65536:x\n", |_| {
                None
            });
        let keys = [0, 1000, 99_999, 100_000, 165_535, 165_536, 231_071, 231_072].map(|uid| uids.user(uid));
        assert_eq!(keys, [0, 1000, 99_999, 100_000, 100_000, 165_536, 165_536, 231_072]);
        assert_eq!(SubordinateUids::parse("a:4294967290:100", |_| None).user(4_294_967_294), 4_294_967_290);
        let uids =
            SubordinateUids::parse("alice:100000:10\nroot:0:50\nalice:200000:10\nroot:1000000:10\n", |_| {
                None
            });
        assert_eq!(
            [200_009, 0, 7, 1_000_005].map(|uid| uids.user(uid)),
            [100_000, 0, 1, 1],
            "root's are not root"
        );
    }

    #[test]
    fn subordinate_uids_have_the_key_of_their_user() {
        let text = "alice:100000:10\n1002:200000:10\nalice:300000:10\nroot:400000:10\nbob:500000:10\n";
        let uid_of =
            |name: &str| [("alice", 1001), ("root", 0)].into_iter().find(|of| of.0 == name).map(|of| of.1);
        let uids = SubordinateUids::parse(text, uid_of);
        let keys = [1001, 100_005, 300_005, 200_005, 400_005, 500_005].map(|uid| uids.user(uid));
        assert_eq!(keys, [1001, 1001, 1001, 1002, 400_000, 500_000]);
    }
}
