//! Real version 2 cgroups below the test's own slice, removed with the slice.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wait::until;

/// A slice at the root, as created by container runtimes.
pub struct Slice {
    mount: PathBuf,
    name: String,
}

impl Slice {
    /// Creates an empty slice.
    ///
    /// # Panics
    /// If the slice cannot be created, which needs root and a writable `/sys/fs/cgroup`.
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mounts = fs::read_to_string("/proc/mounts").expect("/proc/mounts is readable");
        let version_2 =
            mounts.lines().find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 ")));
        let mount = PathBuf::from(version_2.expect("cgroups of version 2"));
        let name = format!("bailiff_test{}n{number}.slice", std::process::id());
        fs::create_dir(mount.join(&name)).expect("a cgroup can be created (needs root)");
        Self { mount, name }
    }

    /// Returns the path of a cgroup below the slice, as in `/proc/PID/cgroup`.
    pub fn path(&self, below: &str) -> String {
        format!("/{}/{below}", self.name)
    }

    /// Creates a cgroup in which a user can create others, as systemd does for a user's own manager. Returns its directory.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn delegate(&self, below: &str, uid: u32) -> PathBuf {
        let directory = self.mount.join(&self.name).join(below);
        fs::create_dir_all(&directory).expect("a cgroup can be created");
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(directory.join(file), Some(uid), Some(uid)).expect("its owner can be changed");
        }
        directory
    }

    /// Creates a cgroup below the slice, unless it exists, and moves a process into it.
    ///
    /// # Panics
    /// If the process cannot be moved.
    pub fn take(&self, below: &str, pid: u32) {
        assert!(self.try_take(below, pid), "a process can be moved");
    }

    /// Like [`Self::take`], for a process that may have exited. Returns whether the process was moved.
    pub fn try_take(&self, below: &str, pid: u32) -> bool {
        let directory = self.mount.join(&self.name).join(below);
        fs::create_dir_all(&directory).expect("a cgroup can be created");
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
        // The cgroup is busy until its last process has been waited for.
        until("an empty cgroup", || remove(&directory).ok());
    }
}

/// Removes a cgroup and all cgroups below it. The kernel removes their files.
fn remove(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}
