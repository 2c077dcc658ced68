//! GPU memory of cgroups: the limits that the driver enforces, and the memory charged to them.

use serde::{Deserialize, Serialize};

crate::label_values! {
/// What stores the limits of cgroups.
pub enum LimitBackend {
    /// The controller `dmem`: files of the cgroup. The limit of each ancestor applies, too.
    Dmem = "dmem",
    /// A table in the driver. Only the limit of the nearest ancestor applies.
    Misc = "misc",
}
}

/// Value of a limit that does not exist.
pub const NO_LIMIT: u64 = u64::MAX;

/// Limits and memory of one cgroup on one GPU, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// Path of the cgroup.
    pub cgroup: String,
    /// What stores the limits.
    pub backend: LimitBackend,
    /// The cgroup's own hard limit, above which allocations fail; `None` if there is none or it is unknown.
    pub hard: Option<u64>,
    /// Memory that is guaranteed to the cgroup (soft limit); `None` if there is none or it is unknown.
    pub soft: Option<u64>,
    /// The hard limit that applies, its own or an ancestor's, [`NO_LIMIT`] if there is none; `None` if it is unknown.
    pub effective: Option<u64>,
    /// Memory charged to the cgroup and the cgroups below it; `None` if only the figure of an ancestor is known.
    pub used: Option<u64>,
    /// Largest amount that was charged; `None` if it is not recorded.
    pub peak: Option<u64>,
    /// Guaranteed memory of a cgroup with others below it that none of these guarantees; `None` if it is unknown.
    pub stale_reservation: Option<u64>,
}

impl CgroupMemory {
    /// Returns nothing known of a cgroup.
    pub const fn unknown(cgroup: String, backend: LimitBackend) -> Self {
        Self {
            cgroup,
            backend,
            hard: None,
            soft: None,
            effective: None,
            used: None,
            peak: None,
            stale_reservation: None,
        }
    }

    /// Returns whether the cgroup itself has a limit.
    pub const fn has_own_limit(&self) -> bool {
        self.hard.is_some() || self.soft.is_some()
    }
}

/// Returns the cgroups that contain a cgroup, from the root to itself.
pub fn levels(cgroup: &str) -> impl DoubleEndedIterator<Item = &str> {
    let inner = cgroup.match_indices('/').map(|(end, _)| &cgroup[..end]).filter(|level| !level.is_empty());
    let itself = (cgroup.len() > 1).then_some(cgroup);
    std::iter::once("/").chain(inner).chain(itself)
}

/// Returns the limits that apply to a cgroup, from the outermost to its own.
fn applying<'a>(all: &'a [CgroupMemory], cgroup: &'a str) -> impl Iterator<Item = &'a CgroupMemory> {
    let limited = levels(cgroup).filter_map(|level| all.iter().find(|row| row.cgroup == level));
    let limited: Vec<_> = limited.filter(|row| row.hard.is_some()).collect();
    // In the driver's table, limits do not nest.
    let outer = limited.iter().rposition(|row| row.backend == LimitBackend::Misc).unwrap_or_default();
    limited.into_iter().skip(outer)
}

/// Returns the hard limit that applies to a cgroup, [`NO_LIMIT`] if there is none; `None` if it is unknown.
pub fn limit(all: &[CgroupMemory], cgroup: &str) -> Option<u64> {
    all.iter().find(|row| row.cgroup == cgroup)?.effective
}

/// Returns the used share of the limit that applies to a cgroup, or the largest one if several apply; `None` if there is
/// no limit or a value is unknown.
pub fn limit_ratio(all: &[CgroupMemory], cgroup: &str) -> Option<f64> {
    limit(all, cgroup).filter(|limit| *limit != NO_LIMIT)?;
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    let ratio = |row: &CgroupMemory| {
        let limit = row.hard.filter(|limit| *limit > 0)?;
        Some(row.used? as f64 / limit as f64)
    };
    applying(all, cgroup).map(ratio).reduce(|most, ratio| Some(most?.max(ratio?))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(
        cgroup: &str,
        backend: LimitBackend,
        (hard, effective): (Option<u64>, u64),
        used: u64,
    ) -> CgroupMemory {
        let effective = Some(effective);
        CgroupMemory {
            hard,
            effective,
            used: Some(used),
            ..CgroupMemory::unknown(cgroup.to_owned(), backend)
        }
    }

    #[test]
    fn levels_of_a_cgroup() {
        for (cgroup, expected) in
            [("/", vec!["/"]), ("/a", vec!["/", "/a"]), ("/a/b/c", vec!["/", "/a", "/a/b", "/a/b/c"])]
        {
            assert_eq!(levels(cgroup).collect::<Vec<_>>(), expected, "{cgroup}");
        }
    }

    #[test]
    fn ratio_is_that_of_the_tightest_limit_that_applies() {
        let of = |backend| {
            [
                row("/a", backend, (Some(100), 100), 90),
                row("/a/b", backend, (Some(40), 40), 20),
                row("/a/b/c", backend, (None, 40), 10),
                row("/d", backend, (None, NO_LIMIT), 10),
            ]
        };
        for (backend, expected) in [(LimitBackend::Dmem, 0.9), (LimitBackend::Misc, 0.5)] {
            let all = of(backend);
            assert_eq!(limit_ratio(&all, "/a/b/c"), Some(expected), "{backend:?}");
            assert_eq!(limit_ratio(&all, "/a"), Some(0.9), "{backend:?}");
            assert_eq!((limit(&all, "/d"), limit_ratio(&all, "/d")), (Some(NO_LIMIT), None));
            assert_eq!((limit(&all, "/e"), limit_ratio(&all, "/e")), (None, None), "not read");
        }
    }

    #[test]
    fn ratio_is_unknown_with_a_limit_that_was_not_read() {
        let mut all = vec![row("/a", LimitBackend::Dmem, (Some(100), 100), 90)];
        all.push(CgroupMemory { effective: None, ..row("/a/b", LimitBackend::Dmem, (Some(40), 40), 20) });
        assert_eq!(limit_ratio(&all, "/a/b"), None, "an ancestor could not be read");
        all[1].effective = Some(40);
        all[0].used = None;
        assert_eq!(limit_ratio(&all, "/a/b"), None, "the memory of an ancestor is unknown");
        assert_eq!(limit_ratio(&[row("/a", LimitBackend::Dmem, (Some(0), 0), 0)], "/a"), None);
    }
}
