//! Further uids of users, which they can use in user namespaces (subuid(5)).

use std::ops::Range;

/// File with the ranges.
pub const SUBORDINATE_UIDS: &str = "/etc/subuid";

/// The ranges of subordinate uids on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubordinateUids(Vec<Range<u32>>);

impl SubordinateUids {
    /// Parses lines of the form `NAME:FIRST:COUNT`. Other lines are ignored.
    pub fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split(':').skip(1).map(str::parse::<u32>);
            let (first, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some(first..first.saturating_add(count))
        };
        Self(text.lines().filter_map(range).collect())
    }

    /// Returns the first uid of the range of a subordinate uid, and other uids unchanged: a key for the user.
    pub fn user(&self, uid: u32) -> u32 {
        self.0.iter().find(|range| range.contains(&uid)).map_or(uid, |range| range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_a_range_have_one_key() {
        let uids = SubordinateUids::parse("alice:100000:65536\nbob:x:1\n\nbob:165536\nbob:165536:65536:x\n");
        let keys = [0, 1000, 99_999, 100_000, 165_535, 165_536, 231_071, 231_072].map(|uid| uids.user(uid));
        assert_eq!(keys, [0, 1000, 99_999, 100_000, 100_000, 165_536, 165_536, 231_072]);
        assert_eq!(SubordinateUids::parse("a:4294967290:100").user(4_294_967_294), 4_294_967_290);
    }
}
