//! The cgroup of this process, and whether it or a visible ancestor has a GPU memory limit. In such a cgroup, the driver
//! reports the limit as the GPU's memory.

use std::ffi::CString;
use std::path::Path;

use bailiff_proc::{Directory, Proc, ReadError, unless_gone};
use bailiff_snapshot::dmem::{PciAddress, Regions, regions};

use crate::settings::SamplerSettings;

/// A total smaller than the capacity by more than this part of it is a limit, and not rounding or memory for ECC.
const ROUNDING: u64 = 8;
/// Maximum size of a file with a line for each memory region.
const MOST: usize = 1 << 16;

/// What the files of cgroup v2 show in one sample.
pub(crate) struct OwnCgroup {
    /// Full path of the cgroup; `None` if it is unknown.
    pub(crate) path: Option<CString>,
    /// Whether version 2 of cgroups, which limits need, is not mounted.
    pub(crate) is_version_1: bool,
    /// Hard limits of the cgroup, if the controller `dmem` is enabled in it.
    own: Option<Regions>,
    /// Hard limits of its ancestors.
    above: Regions,
    /// Sizes of the regions; only the root cgroup shows them.
    capacity: Regions,
}

impl OwnCgroup {
    pub(crate) fn read(settings: &SamplerSettings) -> Self {
        let text = Proc::open(&settings.procfs).and_then(|proc| proc.text("self/cgroup"));
        let place = text.as_deref().ok().map(version_2);
        let mut own = Self {
            path: None,
            is_version_1: matches!(place, Some(Place::Version1)),
            own: None,
            above: Regions::new(),
            capacity: Regions::new(),
        };
        if let Some(Place::At(path)) = &place {
            // Version 2 is mounted on its own, or as `unified` alongside version 1.
            let unified = settings.cgroupfs.join("unified");
            let root = if unified.is_dir() { unified } else { settings.cgroupfs.clone() };
            own.path = own
                .walk(&root, path)
                .ok()
                .and_then(|()| CString::new(root.join(path).into_os_string().into_encoded_bytes()).ok());
        }
        own
    }

    /// Reads the limits from the root to the cgroup. Symbolic links are not followed.
    fn walk(&mut self, root: &Path, path: &str) -> Result<(), ReadError> {
        let mut directory = Directory::open(root)?;
        self.capacity = values(&directory, "dmem.capacity")?.unwrap_or_default();
        self.own = values(&directory, "dmem.max")?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            self.above.extend(self.own.take().into_iter().flatten());
            directory = directory.directory(name)?;
            self.own = values(&directory, "dmem.max")?;
        }
        // Version 1 of cgroups does not have this file.
        if directory.exists("cgroup.controllers") { Ok(()) } else { Err(ReadError::Gone) }
    }

    /// Returns whether a GPU with this total memory has a limit here; `None` if the files do not show it.
    pub(crate) fn is_limited(&self, gpu: PciAddress, total: Option<u64>) -> Option<bool> {
        let of_gpu = |regions: &Regions| -> Vec<u64> {
            regions.iter().filter(|(address, _)| *address == gpu).map(|(_, bytes)| *bytes).collect()
        };
        let own = self.own.as_ref().map(of_gpu).unwrap_or_default();
        let limited = own.iter().chain(&of_gpu(&self.above)).any(|limit| *limit != u64::MAX);
        let capacity = of_gpu(&self.capacity).into_iter().max().unwrap_or_default();
        if limited || total.is_some_and(|total| total < capacity - capacity / ROUNDING) {
            return Some(true);
        }
        (self.path.is_some() && !own.is_empty()).then_some(false)
    }
}

/// The cgroup in the text of `/proc/PID/cgroup`.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    /// Path in the hierarchy of version 2.
    At(&'a str),
    /// Version 2 is not mounted.
    Version1,
    /// The cgroup is outside of this cgroup namespace.
    Outside,
}

fn version_2(text: &str) -> Place<'_> {
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return Place::Version1 };
    if path.split('/').any(|part| matches!(part, "." | "..")) { Place::Outside } else { Place::At(path) }
}

/// Reads a file of the controller `dmem`; `None` if it is not enabled in this cgroup.
pub(crate) fn values(cgroup: &Directory, name: &str) -> Result<Option<Regions>, ReadError> {
    let mut buffer = Vec::new();
    let Some(text) = unless_gone(cgroup.read_within(MOST, name, &mut buffer))? else { return Ok(None) };
    let text = str::from_utf8(text).map_err(|_| ReadError::Malformed)?;
    regions(text).map(Some).ok_or(ReadError::Malformed)
}
