//! Frozen cgroups of a target's processes, for example by `docker pause`. They are thawed after SIGTERM was
//! sent, so that the processes handle it within the grace period.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bailiff_snapshot::freezer;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::cgroup::{other_process, read};
use super::permit::Permit;
use crate::clock::Deadline;
use crate::process_table::Processes;

/// Time limit for reading the cgroups of a target.
const LONGEST: Duration = Duration::from_secs(1);

/// A frozen cgroup, with its control file open.
pub(super) struct Frozen {
    file: OwnedFd,
    thaw: &'static [u8],
    /// Path below the mount point of cgroups.
    path: String,
}

/// Returns whether the cgroup of a process is frozen; false if that cannot be read.
pub(super) fn is_frozen(root: &Path, proc_table: &Processes, pid: u32) -> bool {
    !frozen_paths(root, proc_table, pid).is_empty()
}

/// Returns the frozen cgroups of these processes, ready to be thawed.
///
/// # Errors
/// If a cgroup cannot be thawed, or contains other processes.
pub(super) fn find(root: &Path, proc_table: &Processes, pids: &[u32]) -> Result<Vec<Frozen>, String> {
    let ours: BTreeSet<u32> = pids.iter().copied().collect();
    let until = Deadline::after(LONGEST);
    let mut paths = BTreeSet::new();
    for pid in pids {
        in_time(until)?;
        paths.extend(frozen_paths(root, proc_table, *pid));
    }
    let mut found: Vec<Frozen> = Vec::new();
    for path in paths {
        in_time(until)?;
        let frozen = Frozen::above(root, &path)?;
        if found.iter().all(|other| other.path != frozen.path) {
            frozen.holds_only(root, &ours)?;
            found.push(frozen);
        }
    }
    Ok(found)
}

fn in_time(until: Deadline) -> Result<(), String> {
    if until.passed() { Err("its cgroups were not read in time".to_owned()) } else { Ok(()) }
}

/// Returns the frozen cgroups of a process.
fn frozen_paths(root: &Path, proc_table: &Processes, pid: u32) -> Vec<String> {
    let text = proc_table.cgroup(pid).unwrap_or_default();
    let says =
        |path: &str, line: &str| text_of(root, path).is_ok_and(|text| text.lines().any(|it| it == line));
    let files = freezer::files(&text).into_iter().filter(|(path, line)| says(path, line));
    files.filter_map(|(path, _)| Some(path.rsplit_once('/')?.0.to_owned())).collect()
}

impl Frozen {
    /// Opens the cgroup itself or its ancestor, whichever was frozen.
    fn above(root: &Path, path: &str) -> Result<Self, String> {
        let mut at = path;
        loop {
            let is_frozen =
                |file: &str| text_of(root, &format!("{at}/{file}")).is_ok_and(|text| text.trim() == "1");
            let thaw: Option<(&str, &'static [u8])> = if is_frozen("cgroup.freeze") {
                Some(("cgroup.freeze", b"0"))
            } else if is_frozen("freezer.self_freezing") {
                Some(("freezer.state", b"THAWED"))
            } else {
                None
            };
            if let Some((file, thaw)) = thaw {
                let why = |error: Errno| format!("its cgroup {at} is frozen and cannot be thawed: {error}");
                let file = open(root, &format!("{at}/{file}"), OFlags::WRONLY).map_err(why)?;
                return Ok(Self { file, thaw, path: at.to_owned() });
            }
            at = at
                .rsplit_once('/')
                .ok_or_else(|| format!("its cgroup {path} is frozen by an ancestor that cannot be found"))?
                .0;
        }
    }

    /// Fails if the cgroup contains other processes, because those must stay frozen.
    fn holds_only(&self, root: &Path, ours: &BTreeSet<u32>) -> Result<(), String> {
        let path = &self.path;
        let other = open(root, path, OFlags::DIRECTORY)
            .and_then(|directory| other_process(&directory, ours))
            .map_err(|error| format!("its cgroup {path} is frozen and cannot be read: {error}"))?;
        match other {
            None => Ok(()),
            Some(other) => {
                Err(format!("its cgroup {path} is frozen; process {other} in it is not part of the target"))
            }
        }
    }

    /// Thaws the cgroup; returns a note on the outcome.
    pub(super) fn thaw(&self, _: &Permit) -> String {
        let mut note = format!("its cgroup {} was thawed", self.path);
        if let Err(error) = rustix::io::write(&self.file, self.thaw) {
            let _ = write!(note, ", which failed: {error}");
        }
        note
    }
}

fn text_of(root: &Path, path: &str) -> Result<String, Errno> {
    let (directory, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
    read(&open(root, directory, OFlags::DIRECTORY)?, name)
}

fn open(root: &Path, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(CWD, root.join(path), flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}
