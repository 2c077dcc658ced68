//! Memory of a GPU, and the sum that must come out even.

use serde::{Deserialize, Serialize};

/// What the driver says of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// Free to allocate.
    pub free: u64,
    /// Allocated; by `nvmlDeviceGetMemoryInfo` (v1) the reserved part is in it.
    pub used: u64,
    /// Reserved by driver and firmware; `None` from drivers before 510, which do not report it separately.
    pub reserved: Option<u64>,
}

/// `total = free + reserved + holders + dead_pids + other_namespaces + unaccounted`, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Free to allocate.
    pub free: u64,
    /// Kept by driver and firmware.
    pub reserved: u64,
    /// Held by processes that exist.
    pub holders: u64,
    /// Held by pids that the driver lists and `/proc` does not have.
    pub dead_pids: u64,
    /// Held by processes of PID namespaces that cannot be seen from here.
    pub other_namespaces: u64,
    /// The rest. The reads are not atomic, so it may be slightly negative, and is reported as it is.
    pub unaccounted: i64,
}

/// The memory of listed entries, summed by kind of holder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Held by processes that exist.
    pub holders: u64,
    /// Held by pids that are gone.
    pub dead_pids: u64,
    /// Held by processes of other PID namespaces.
    pub other_namespaces: u64,
}

impl Parts {
    /// The sum; `None` where a part was not observed. `held` is `None` when any holder's memory is.
    #[must_use]
    pub fn of(memory: Option<Memory>, held: Option<Held>) -> Option<Self> {
        let (memory, held) = (memory?, held?);
        let reserved = memory.reserved?;
        let known = [memory.free, reserved, held.holders, held.dead_pids, held.other_namespaces];
        let known = known.iter().map(|part| i128::from(*part)).sum::<i128>();
        let unaccounted = i64::try_from(i128::from(memory.total) - known).ok()?;
        Some(Self {
            free: memory.free,
            reserved,
            holders: held.holders,
            dead_pids: held.dead_pids,
            other_namespaces: held.other_namespaces,
            unaccounted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory { total: 1000, free: 500, used: 400, reserved: Some(100) };

    #[test]
    fn the_parts_sum_to_the_total_also_when_reads_disagree() {
        for holders in [0, 300, 400, 450] {
            let held = Held { holders, dead_pids: 10, other_namespaces: 5 };
            let parts = Parts::of(Some(MEMORY), Some(held)).unwrap();
            let sum = parts.free + parts.reserved + parts.holders + parts.dead_pids + parts.other_namespaces;
            assert_eq!(i64::try_from(sum).unwrap() + parts.unaccounted, 1000, "{parts:?}");
        }
        let over = Held { holders: 450, ..Held::default() };
        assert_eq!(Parts::of(Some(MEMORY), Some(over)).unwrap().unaccounted, -50);
    }

    #[test]
    fn what_was_not_observed_leaves_no_sum() {
        assert_eq!(Parts::of(None, Some(Held::default())), None);
        assert_eq!(Parts::of(Some(MEMORY), None), None);
        assert_eq!(Parts::of(Some(Memory { reserved: None, ..MEMORY }), Some(Held::default())), None);
        let absurd = Memory { total: u64::MAX, free: 0, used: 0, reserved: Some(0) };
        assert_eq!(Parts::of(Some(absurd), Some(Held::default())), None);
    }
}
