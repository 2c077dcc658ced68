//! State that the agent keeps between readings: how long a GPU was unused or lost (recorded neither as idle nor as
//! taken), and since when it is quarantined. Unobserved time does not count.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bailiff_lease::audit::{Audit, Gpu};
use bailiff_lease::legacy::Use;

use super::evidence::On;

/// If the pool could not be read for longer than this, earlier readings no longer count.
const LONGEST_GAP: Duration = Duration::from_secs(5);
/// Maximum number of intervals between two snapshots, because one may be late.
const LONGEST_INTERVALS: u32 = 3;

/// State between readings. Times are since boot.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Snapshot since which each GPU is unused.
    quiet: HashMap<String, Duration>,
    /// Time of the last snapshot.
    seen: Option<Duration>,
    /// Reading of the pool since which each GPU is lost.
    nowhere: HashMap<String, Duration>,
    /// Time of the last reading of the pool.
    last_read: Option<Duration>,
    /// For each GPU: the process that took it, the reading since which that process has exited, and the last
    /// reading.
    ended: HashMap<String, (String, Duration, Duration)>,
    /// For each GPU: why it is quarantined, and when that was first seen.
    withheld: HashMap<String, (String, Duration)>,
}

impl Memory {
    /// Applies a snapshot: the use of each GPU of the pool.
    pub(super) fn see(
        &mut self,
        (at, interval): (Duration, Duration),
        gpus: impl Iterator<Item = (String, On)>,
    ) {
        if self.seen.is_some_and(|seen| at <= seen) {
            return;
        }
        if self.seen.is_none_or(|seen| at.saturating_sub(seen) > interval * LONGEST_INTERVALS) {
            self.quiet.clear();
        }
        self.seen = Some(at);
        let before = std::mem::take(&mut self.quiet);
        for (id, on) in gpus {
            if on == On::Unused {
                let since = before.get(&id).copied().unwrap_or(at);
                self.quiet.insert(id, since);
            }
        }
    }

    /// Applies a reading of the pool.
    pub(super) fn read_pool(&mut self, at: Duration, audit: &Audit) {
        if self.last_read.is_none_or(|last_read| at.saturating_sub(last_read) > LONGEST_GAP) {
            self.nowhere.clear();
        }
        self.last_read = Some(at);
        let (nowhere, withheld) = (std::mem::take(&mut self.nowhere), std::mem::take(&mut self.withheld));
        for gpu in &audit.gpus {
            if is_nowhere(gpu) {
                self.nowhere.insert(gpu.id.clone(), nowhere.get(&gpu.id).copied().unwrap_or(at));
            }
            if let Some(why) = &gpu.quarantine {
                let known = withheld.get(&gpu.id).filter(|(known, _)| known == why);
                let since = known.map_or(at, |(_, since)| *since);
                self.withheld.insert(gpu.id.clone(), (why.clone(), since));
            }
        }
    }

    /// Returns the use of a GPU, and how long it was unused.
    pub(super) fn usage(&self, gpu: &str, on: On) -> Use {
        match (on, self.quiet.get(gpu), self.seen) {
            (On::Used, _, _) => Use::Busy,
            (On::Unused, Some(since), Some(seen)) => Use::Quiet(seen.saturating_sub(*since)),
            (On::Unused | On::Unknown, _, _) => Use::Unknown,
        }
    }

    /// Returns how long a GPU has been lost.
    pub(super) fn nowhere(&self, gpu: &str) -> Option<Duration> {
        Some(self.last_read?.saturating_sub(*self.nowhere.get(gpu)?))
    }

    /// Forgets processes that took GPUs other than these.
    pub(super) fn forget_others(&mut self, ids: &BTreeSet<&str>) {
        self.ended.retain(|id, _| ids.contains(id.as_str()));
    }

    /// Returns how long the process that took a GPU is known to have exited.
    pub(super) fn ended(&mut self, gpu: &str, process: &str) -> Duration {
        let now = self.last_read.unwrap_or_default();
        let known = self
            .ended
            .get(gpu)
            .filter(|(known, _, last)| known == process && now.saturating_sub(*last) <= LONGEST_GAP);
        let since = known.map_or(now, |(_, since, _)| *since);
        self.ended.insert(gpu.to_owned(), (process.to_owned(), since, now));
        now.saturating_sub(since)
    }

    /// Returns whether a snapshot was taken after the quarantine of the GPU was known.
    pub(super) fn seen_since_withheld(&self, gpu: &str) -> bool {
        let since = self.withheld.get(gpu).map(|(_, since)| *since);
        since.zip(self.seen).is_some_and(|(since, seen)| seen > since)
    }
}

/// Returns whether a managed GPU is lost: neither in a list of the pool nor taken nor quarantined. A quarantine
/// because of a record that no longer exists does not count.
pub(super) fn is_nowhere(gpu: &Gpu) -> bool {
    let over = |why: &str| why.starts_with("legacy_record:") || why.starts_with("wrong_type:");
    gpu.is_unlisted()
        && gpu.owner.is_none()
        && gpu.record.is_none()
        && gpu.quarantine.as_deref().is_none_or(over)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn see(memory: &mut Memory, seconds: u64, on: On) -> Use {
        memory.see((at(seconds), INTERVAL), std::iter::once(("0".to_owned(), on)));
        memory.usage("0", on)
    }

    fn pool(gpu: &Value) -> Audit {
        let all = json!({"now": 0, "barrier": null, "gpus": [gpu], "leases": [], "queue": []});
        serde_json::from_value(all).expect("an audit")
    }

    #[test]
    fn only_what_was_observed_is_quiet() {
        let mut memory = Memory::default();
        assert_eq!(memory.usage("0", On::Unused), Use::Unknown, "nothing was seen yet");
        assert_eq!(see(&mut memory, 5, On::Unused), Use::Quiet(at(0)));
        assert_eq!(see(&mut memory, 10, On::Unused), Use::Quiet(at(5)));
        assert_eq!(see(&mut memory, 10, On::Unused), Use::Quiet(at(5)), "the same snapshot again");
        assert_eq!(see(&mut memory, 24, On::Unused), Use::Quiet(at(19)), "one that is late");
        assert_eq!(see(&mut memory, 40, On::Unused), Use::Quiet(at(0)), "a gap in the snapshots");
        assert_eq!(see(&mut memory, 45, On::Unknown), Use::Unknown);
        assert_eq!(see(&mut memory, 50, On::Unused), Use::Quiet(at(0)), "unknown in between");
        assert_eq!(see(&mut memory, 55, On::Used), Use::Busy);
        assert_eq!(see(&mut memory, 60, On::Unused), Use::Quiet(at(0)));
        assert_eq!(memory.usage("1", On::Unused), Use::Unknown, "another GPU is unknown");
    }

    #[test]
    fn a_place_ends_being_nowhere_and_so_does_a_silence() {
        let nowhere = pool(&json!({"id": "0", "idle": 0, "pot": 0, "bar": 0}));
        let places = [
            json!({"id": "0", "idle": 1, "pot": 0, "bar": 0}),
            json!({"id": "0", "idle": 0, "pot": 1, "bar": 0}),
            json!({"id": "0", "idle": 0, "pot": 0, "bar": 1}),
            json!({"id": "0", "idle": 0, "pot": 0, "bar": 0, "owner": "a"}),
            json!({"id": "0", "idle": 0, "pot": 0, "bar": 0, "quarantine": "busy:1"}),
            json!({"id": "0", "idle": 0, "pot": 0, "bar": 0, "record": {"pid": "1", "time": ""}}),
        ];
        for place in places {
            let mut memory = Memory::default();
            memory.read_pool(at(1), &nowhere);
            memory.read_pool(at(4), &nowhere);
            assert_eq!(memory.nowhere("0"), Some(at(3)));
            memory.read_pool(at(5), &pool(&place));
            assert_eq!(memory.nowhere("0"), None, "{place}");
            memory.read_pool(
                at(5),
                &pool(&json!({"id": "0", "idle": 0, "pot": 0, "bar": 0, "quarantine": "legacy_record:1"})),
            );
            assert_eq!(memory.nowhere("0"), Some(at(0)), "its record is there no more");
            memory.read_pool(at(6), &nowhere);
            assert_eq!(memory.nowhere("0"), Some(at(1)));
        }
        let mut memory = Memory::default();
        memory.read_pool(at(1), &nowhere);
        memory.read_pool(at(7), &nowhere);
        assert_eq!(memory.nowhere("0"), Some(at(0)), "no reading for six seconds");
    }

    #[test]
    fn huge_counts_of_a_hostile_server_do_not_overflow() {
        let listed = pool(&json!({"id": "0", "idle": u32::MAX, "pot": u32::MAX, "bar": u32::MAX}));
        assert!(!is_nowhere(&listed.gpus[0]));
    }

    #[test]
    fn grace_counts_from_when_the_process_was_seen_to_have_ended() {
        let mut memory = Memory::default();
        let none = pool(&json!({"id": "0", "idle": 0, "pot": 0, "bar": 0}));
        for (seconds, process, expected) in
            [(1, "7", 0), (4, "7", 3), (6, "8", 0), (8, "8", 2), (14, "8", 0), (16, "8", 2)]
        {
            memory.read_pool(at(seconds), &none);
            assert_eq!(memory.ended("0", process), at(expected), "{process} at {seconds}");
        }
        memory.forget_others(&BTreeSet::from(["0"]));
        assert_eq!(memory.ended("0", "8"), at(2));
        memory.forget_others(&BTreeSet::from(["1"]));
        assert_eq!(memory.ended("0", "8"), at(0), "a GPU that is not in the pool is forgotten");
    }

    #[test]
    fn what_was_seen_before_it_was_withheld_clears_nothing() {
        let withheld =
            |why: &str| pool(&json!({"id": "0", "idle": 0, "pot": 0, "bar": 0, "quarantine": why}));
        let mut memory = Memory::default();
        memory.read_pool(at(7), &withheld("busy:1"));
        see(&mut memory, 5, On::Unused);
        assert!(!memory.seen_since_withheld("0"));
        see(&mut memory, 10, On::Unused);
        assert!(memory.seen_since_withheld("0"));
        memory.read_pool(at(11), &withheld("busy:2"));
        assert!(!memory.seen_since_withheld("0"), "it was withheld again");
    }
}
