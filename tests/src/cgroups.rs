//! Real cgroups of version 2 below a slice of the test's own, removed with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wait::until;

/// A slice at the root, as those in which containers are made.
pub struct Slice {
    mount: PathBuf,
    name: String,
}

impl Slice {
    /// An empty one.
    ///
    /// # Panics
    /// Where none can be made: that takes root, and a `/sys/fs/cgroup` that can be written to.
    #[must_use]
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mounts = fs::read_to_string("/proc/mounts").expect("what is mounted");
        let version_2 =
            mounts.lines().find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 ")));
        let mount = PathBuf::from(version_2.expect("cgroups of version 2"));
        let name = format!("bailiff_test{}n{number}.slice", std::process::id());
        fs::create_dir(mount.join(&name)).expect("a cgroup can be made, as root");
        Self { mount, name }
    }

    /// The path of a cgroup below it, as `/proc/PID/cgroup` has it.
    #[must_use]
    pub fn path(&self, below: &str) -> String {
        format!("/{}/{below}", self.name)
    }

    /// Makes a cgroup below it, where it is not there yet, and puts a process into it.
    ///
    /// # Panics
    /// Where it cannot be put there.
    pub fn take(&self, below: &str, pid: u32) {
        assert!(self.try_take(below, pid), "a process can be moved");
    }

    /// The same, where the process may have ended; returns whether it was moved.
    #[must_use]
    pub fn try_take(&self, below: &str, pid: u32) -> bool {
        let directory = self.mount.join(&self.name).join(below);
        fs::create_dir_all(&directory).expect("a cgroup can be made");
        fs::write(directory.join("cgroup.procs"), pid.to_string()).is_ok()
    }
}

impl Default for Slice {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let directory = self.mount.join(&self.name);
        // It is busy until the last process in it was waited for.
        until("an empty cgroup", || remove(&directory).ok());
    }
}

/// Removes a cgroup and all below it. The files in it go with it.
fn remove(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}
