//! Memory of a GPU, and its breakdown, whose parts sum to the total.

use serde::{Deserialize, Serialize};

/// Memory of a GPU as reported by the driver, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All memory.
    pub total: u64,
    /// Free to allocate.
    pub free: u64,
    /// Allocated. `nvmlDeviceGetMemoryInfo` (v1) includes the reserved part.
    pub used: u64,
    /// Reserved by driver and firmware; `None` from drivers before 510, which do not report it separately.
    pub reserved: Option<u64>,
}

crate::label_values! {
/// Why the driver's memory figures of a GPU are not used.
pub enum MemoryUnknown {
    /// The cgroup of the sampling program has a GPU memory limit, which the driver reports as the GPU's memory.
    OwnCgroupLimited = "own_cgroup_limited",
    /// The driver can limit GPU memory by cgroup, and the limit of the sampling program's cgroup cannot be read.
    OwnCgroupUnknown = "own_cgroup_unknown",
}
}

impl MemoryUnknown {
    /// Returns the reason as text.
    pub const fn words(self) -> &'static str {
        match self {
            Self::OwnCgroupLimited => {
                "the sampling program's cgroup has a GPU memory limit, which the driver reports as the GPU's memory"
            }
            Self::OwnCgroupUnknown => {
                "the sampling program's cgroup may have a GPU memory limit, which cannot be read"
            }
        }
    }

    /// Returns how to fix it.
    pub const fn fix(self) -> &'static str {
        match self {
            Self::OwnCgroupLimited => {
                "run the program in a cgroup without a limit: find the limit with nvidia-smi memory-limits --get -n \
                /sys/fs/cgroup/PATH -i GPU, where PATH is from /proc/PID/cgroup"
            }
            Self::OwnCgroupUnknown => {
                "make /proc/self/cgroup and /sys/fs/cgroup readable; in a container, mount /sys/fs/cgroup read-only"
            }
        }
    }
}

/// Breakdown: `total = free + reserved + holders + dead_pids + other_namespaces + unaccounted`, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Free to allocate.
    pub free: u64,
    /// Reserved by driver and firmware.
    pub reserved: u64,
    /// Held by processes that exist.
    pub holders: u64,
    /// Held by pids that the driver lists but that do not exist in `/proc`.
    pub dead_pids: u64,
    /// Held by processes in PID namespaces that are not visible from here.
    pub other_namespaces: u64,
    /// The rest. It may be slightly negative, because the reads are not atomic.
    pub unaccounted: i64,
}

/// Memory of the listed processes, summed by kind of holder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Held by processes that exist.
    pub holders: u64,
    /// Held by pids that no longer exist.
    pub dead_pids: u64,
    /// Held by processes in other PID namespaces.
    pub other_namespaces: u64,
}

impl Parts {
    /// Returns the breakdown; `None` if a part is unknown. `held` is `None` if a holder's memory is unknown.
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
