//! GPU memory limits of the cgroups in which processes hold GPU memory: from the files of the controller `dmem`
//! (Linux 6.14), or from the driver (615), which has its own table without this controller.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::path::Path;

use bailiff_proc::{Directory, Proc, ReadError, unless_gone};
use bailiff_snapshot::cgroup_memory::{CgroupMemory, LimitBackend, NO_LIMIT, levels};
use bailiff_snapshot::dmem::{PciAddress, Regions};
use bailiff_snapshot::text_limit::fits;
use bailiff_snapshot::{Gap, Gaps};

use crate::own_cgroup::values;
use crate::settings::SamplerSettings;

/// Link of the initial cgroup namespace in `/proc/self/ns`.
const INITIAL_NAMESPACE: &str = "cgroup:[4026531835]";
/// Maximum number of cgroups whose files are read, and, on each GPU, whose limits the driver is asked for.
const MOST_READ: usize = 1024;
pub(crate) const MOST_ASKED: usize = 256;
/// Maximum number of cgroups within each other.
const MOST_LEVELS: usize = 24;
/// Maximum number of files and cgroups in cgroups whose guaranteed memory is summed.
const MOST_CHILDREN: usize = 4096;

/// Cgroup of each process, by pid.
pub(crate) type Cgroups = BTreeMap<u32, String>;

/// The driver's limits and memory of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DriverLimits {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
    pub(crate) used: u64,
}

/// The driver's answer for a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverAnswer {
    /// Limits, possibly those of an ancestor.
    Limits(DriverLimits),
    /// The cgroup has no limit.
    None,
    /// The limits are unknown.
    Unknown,
    /// This driver has no limits.
    NotOffered,
}

/// Files of the controller in one cgroup; `None` for a file that the cgroup does not have.
struct Files {
    max: Option<Regions>,
    min: Option<Regions>,
    current: Option<Regions>,
    peak: Option<Regions>,
    /// Guaranteed memory of all cgroups directly below; `None` if it was not read.
    children_min: Option<Regions>,
}

/// The cgroups of processes, and what their files show in one sample.
pub(crate) struct CgroupLimits<'a> {
    root: &'a Path,
    cgroups: &'a Cgroups,
    /// Whether the file system shows all ancestors of a cgroup.
    is_whole: bool,
    /// Sizes of the regions.
    capacity: Regions,
    /// Cgroups that could be read.
    read: BTreeMap<&'a str, Files>,
    /// Number of entries of cgroups that may still be read.
    children: usize,
}

impl<'a> CgroupLimits<'a> {
    /// Reads the files of these cgroups and their ancestors; `None` if the paths of cgroups cannot be resolved, or version
    /// 1 of cgroups is mounted.
    pub(crate) fn read(settings: &'a SamplerSettings, cgroups: &'a Cgroups, gaps: &mut Gaps) -> Option<Self> {
        let root =
            Directory::open(&settings.cgroupfs).ok().filter(|root| root.exists("cgroup.controllers"))?;
        // Only the root cgroup does not have this file.
        let is_whole = !root.exists("cgroup.events");
        let link = Proc::open(&settings.procfs).and_then(|proc| proc.link("self/ns/cgroup")).ok()?;
        if (link == INITIAL_NAMESPACE) != is_whole {
            return None;
        }
        let mut limits = Self {
            root: &settings.cgroupfs,
            cgroups,
            is_whole,
            capacity: values(&root, "dmem.capacity").ok().flatten().unwrap_or_default(),
            read: BTreeMap::new(),
            children: MOST_CHILDREN,
        };
        let has_controller = !limits.capacity.is_empty() || root.exists("dmem.max");
        if has_controller && limits.read_all(&root).is_err() {
            gaps.count(Gap::Unreadable);
        }
        Some(limits)
    }

    /// Reads all cgroups; fails if one that exists could not be read, or there are too many.
    fn read_all(&mut self, root: &Directory) -> Result<(), ReadError> {
        let mut outcome = Ok(());
        for cgroup in outer_first(self.cgroups.values().map(String::as_str).collect()) {
            let read = self.read_levels(root, cgroup);
            outcome = outcome.and(unless_gone(read).map(drop));
        }
        outcome
    }

    fn read_levels(&mut self, root: &Directory, cgroup: &'a str) -> Result<(), ReadError> {
        let mut inner: Option<Directory> = None;
        for level in levels(cgroup) {
            let parent = inner.as_ref().unwrap_or(root);
            let name = level.rsplit_once('/').map(|(_, name)| name).filter(|name| !name.is_empty());
            inner = name.map(|name| parent.directory(name)).transpose()?;
            if self.read.contains_key(level) {
                continue;
            }
            if self.read.len() >= MOST_READ {
                return Err(ReadError::Malformed);
            }
            let children = (level != cgroup).then_some(&mut self.children);
            let files = Files::read(inner.as_ref().unwrap_or(root), children)?;
            self.read.insert(level, files);
        }
        Ok(())
    }

    /// Returns the limits and memory on one GPU of the cgroups of these processes, and of their ancestors with a limit.
    pub(crate) fn of_gpu(
        &self,
        gpu: PciAddress,
        pids: impl Iterator<Item = u32>,
        ask: impl FnMut(&str) -> DriverAnswer,
    ) -> Vec<CgroupMemory> {
        let cgroups: BTreeSet<&str> =
            pids.filter_map(|pid| self.cgroups.get(&pid)).map(String::as_str).collect();
        let max = || self.read.values().filter_map(|files| files.max.as_ref());
        if of(&self.capacity, gpu).is_some() || max().any(|max| of(max, gpu).is_some()) {
            self.dmem(gpu, &cgroups)
        } else {
            Asked::new(ask).rows(&cgroups)
        }
    }

    fn dmem(&self, gpu: PciAddress, cgroups: &BTreeSet<&str>) -> Vec<CgroupMemory> {
        let all: BTreeSet<&str> = cgroups.iter().flat_map(|cgroup| levels(cgroup)).collect();
        let row = |cgroup: &str| {
            let files = self.read.get(cgroup)?;
            let value = |file: &Option<Regions>| of(file.as_ref()?, gpu);
            let min = value(&files.min).filter(|min| *min > 0);
            let row = CgroupMemory {
                hard: value(&files.max).filter(|max| *max != NO_LIMIT),
                soft: min.filter(|min| *min != NO_LIMIT),
                effective: self.effective(cgroup, gpu),
                used: value(&files.current),
                peak: value(&files.peak),
                stale_reservation: min.and_then(|min| {
                    let children = files.children_min.as_ref()?;
                    let of_gpu =
                        children.iter().filter(|(address, _)| *address == gpu).map(|(_, bytes)| *bytes);
                    Some(min.saturating_sub(of_gpu.fold(0, u64::saturating_add)))
                }),
                ..CgroupMemory::unknown(cgroup.to_owned(), LimitBackend::Dmem)
            };
            (cgroups.contains(cgroup) || row.has_own_limit()).then_some(row)
        };
        all.into_iter().filter_map(row).collect()
    }

    /// Returns the smallest limit of a cgroup and its ancestors.
    fn effective(&self, cgroup: &str, gpu: PciAddress) -> Option<u64> {
        let limit = |level| match &self.read.get(level)?.max {
            Some(max) => of(max, gpu),
            // The controller is not enabled here: the limits of the ancestors apply.
            None => Some(NO_LIMIT),
        };
        levels(cgroup)
            .map(limit)
            .try_fold(NO_LIMIT, |least, limit| Some(least.min(limit?)))
            .filter(|_| self.is_whole)
    }

    /// Returns the path of a cgroup in the file system.
    pub(crate) fn path(&self, cgroup: &str) -> Option<CString> {
        let path = self.root.join(cgroup.trim_start_matches('/'));
        CString::new(path.into_os_string().into_encoded_bytes()).ok()
    }
}

/// Sorts cgroups by depth: users can create deep ones, which must not use up the limits.
fn outer_first(cgroups: BTreeSet<&str>) -> Vec<&str> {
    let mut sorted: Vec<&str> = cgroups.into_iter().collect();
    sorted.sort_by_key(|cgroup| levels(cgroup).count());
    sorted
}

/// Returns whether a path in `/proc/PID/cgroup` names a cgroup that can be found in the file system.
pub(crate) fn can_be_found(cgroup: &str) -> bool {
    if levels(cgroup).count() > MOST_LEVELS || !fits(cgroup) {
        return false;
    }
    let is_name =
        |name: &str| !matches!(name, "" | "." | "..") && !name.contains(char::REPLACEMENT_CHARACTER);
    cgroup.strip_prefix('/').is_some_and(|path| path.is_empty() || path.split('/').all(is_name))
}

impl Files {
    /// Reads the files of a cgroup. For an ancestor, `children` is the number of entries that may be read.
    fn read(cgroup: &Directory, children: Option<&mut usize>) -> Result<Self, ReadError> {
        let min = values(cgroup, "dmem.min")?;
        let reserves = min.iter().flatten().any(|(_, bytes)| *bytes > 0);
        Ok(Self {
            max: values(cgroup, "dmem.max")?,
            min,
            current: values(cgroup, "dmem.current")?,
            peak: values(cgroup, "dmem.peak")?,
            children_min: children.filter(|_| reserves).and_then(|most| children_min(cgroup, most).ok()),
        })
    }
}

/// Returns the guaranteed memory of all cgroups directly below one.
fn children_min(cgroup: &Directory, most: &mut usize) -> Result<Regions, ReadError> {
    let mut names = Vec::new();
    cgroup.each_name(|name| {
        // Files have a dot in their names, and directories may.
        names.push(name.to_owned());
        names.len() <= *most
    })?;
    if names.len() > *most {
        return Err(ReadError::Malformed);
    }
    *most -= names.len();
    let mut all = Regions::new();
    for name in names {
        let child = match cgroup.directory(&name) {
            Err(ReadError::Unreadable(error)) if error == rustix::io::Errno::NOTDIR => continue,
            child => unless_gone(child)?,
        };
        let min = child.map(|child| values(&child, "dmem.min")).transpose()?.flatten();
        all.extend(min.into_iter().flatten());
    }
    Ok(all)
}

/// Returns the value of a GPU's region; `None` if it has none or several.
fn of(regions: &Regions, gpu: PciAddress) -> Option<u64> {
    let mut of_gpu = regions.iter().filter(|(address, _)| *address == gpu).map(|(_, bytes)| *bytes);
    of_gpu.next().filter(|_| of_gpu.next().is_none())
}

/// The driver's answers for one GPU.
struct Asked<'a, A> {
    ask: A,
    answers: BTreeMap<&'a str, DriverAnswer>,
}

impl<'a, A: FnMut(&str) -> DriverAnswer> Asked<'a, A> {
    const fn new(ask: A) -> Self {
        Self { ask, answers: BTreeMap::new() }
    }

    fn rows(mut self, cgroups: &BTreeSet<&'a str>) -> Vec<CgroupMemory> {
        let mut rows = BTreeMap::new();
        for cgroup in outer_first(cgroups.clone()) {
            for level in levels(cgroup) {
                if self.answer(level) == DriverAnswer::NotOffered {
                    return Vec::new();
                }
            }
            let own = |level| self.row(level).filter(CgroupMemory::has_own_limit);
            rows.extend(levels(cgroup).filter_map(own).map(|row| (row.cgroup.clone(), row)));
            rows.extend(self.row(cgroup).map(|row| (row.cgroup.clone(), row)));
        }
        rows.into_values().collect()
    }

    fn answer(&mut self, cgroup: &'a str) -> DriverAnswer {
        *self.answers.entry(cgroup).or_insert_with(|| (self.ask)(cgroup))
    }

    /// Returns the limits of a cgroup; `None` if they are unknown. The driver also returns those of an ancestor, so
    /// limits that equal those of the parent count as inherited.
    fn row(&self, cgroup: &'a str) -> Option<CgroupMemory> {
        let found = |level: &str| match self.answers.get(level)? {
            DriverAnswer::Limits(limits) => Some(Some(*limits)),
            DriverAnswer::None => Some(None),
            DriverAnswer::Unknown | DriverAnswer::NotOffered => None,
        };
        let mut outwards = levels(cgroup).rev().map(found);
        let own = outwards.next()??;
        let parent = outwards.next().unwrap_or(Some(None))?;
        let is_inherited = |own: &DriverLimits| {
            parent.is_some_and(|parent| (parent.soft, parent.hard) == (own.soft, own.hard))
        };
        let mut nearest = own.or(parent);
        while let (None, Some(level)) = (nearest, outwards.next()) {
            nearest = level?;
        }
        let own = own.filter(|own| !is_inherited(own));
        Some(CgroupMemory {
            hard: own.map(|own| own.hard).filter(|hard| *hard != NO_LIMIT),
            soft: own.map(|own| own.soft).filter(|soft| !matches!(*soft, 0 | NO_LIMIT)),
            effective: Some(nearest.map_or(NO_LIMIT, |limits| limits.hard)),
            used: own.map(|own| own.used),
            ..CgroupMemory::unknown(cgroup.to_owned(), LimitBackend::Misc)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limits(hard: u64) -> DriverAnswer {
        DriverAnswer::Limits(DriverLimits { soft: 0, hard, used: 7 })
    }

    /// The driver also answers with the limits of an ancestor, so an answer is a cgroup's own only if that of its parent is
    /// known.
    #[test]
    fn answer_below_an_unknown_one_is_not_published() {
        use DriverAnswer::{None as Nothing, Unknown};
        // Answers for `/`, `/a` and `/a/b`, in which the process runs.
        let cases = [
            ([Nothing, Nothing, limits(5)], vec![("/a/b", Some(5), Some(5), Some(7))]),
            ([Nothing, Unknown, limits(5)], vec![]),
            ([Nothing, limits(5), Unknown], vec![("/a", Some(5), Some(5), Some(7))]),
            ([Nothing, Unknown, Nothing], vec![]),
            ([Unknown, Nothing, Nothing], vec![]),
            ([Unknown, Nothing, limits(5)], vec![("/a/b", Some(5), Some(5), Some(7))]),
            ([Unknown, limits(5), limits(5)], vec![("/a/b", None, Some(5), None)]),
            ([Unknown, limits(5), Nothing], vec![("/a/b", None, Some(5), None)]),
            ([Unknown, Unknown, Unknown], vec![]),
        ];
        for (answers, expected) in cases {
            let ask = |cgroup: &str| answers[levels(cgroup).count() - 1];
            let rows = Asked::new(ask).rows(&BTreeSet::from(["/a/b"]));
            let found: Vec<_> =
                rows.iter().map(|row| (row.cgroup.as_str(), row.hard, row.effective, row.used)).collect();
            assert_eq!(found, expected, "{answers:?}");
        }
    }
}
