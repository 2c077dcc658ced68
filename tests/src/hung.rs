//! A file system that never responds, like a hung network file system: FUSE without a reader of its requests. Programs
//! that use it block in the kernel while it is mounted.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system. It is removed with its test, and blocked calls then fail.
pub struct Hung {
    device: File,
    root: PathBuf,
}

impl Hung {
    /// Creates a file system on a new directory.
    ///
    /// # Panics
    /// If the file system cannot be created, or if there is no `/dev/fuse`.
    pub fn at(root: PathBuf) -> Self {
        fs::create_dir(&root).expect("a directory");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        Self { device, root }
    }

    /// Returns a path in the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the same command line, to be run in its own mount namespace with the file system.
    ///
    /// # Panics
    /// If no descriptors are left.
    pub fn in_namespace(&self, command: &Command) -> Command {
        let mount = "mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 hung \"$0\" && exec \"$@\" </dev/null";
        let mut beside = Command::new("unshare");
        beside.args(["--mount", "sh", "-c", mount]).arg(&self.root);
        beside.arg(command.get_program()).args(command.get_args());
        beside.stdin(self.device.try_clone().expect("a descriptor"));
        beside
    }
}

/// Makes `path` a symbolic link to `target` atomically.
///
/// # Panics
/// If the link cannot be created.
pub fn link(target: &Path, path: &Path) {
    let next = path.with_extension("next");
    symlink(target, &next).expect("a symbolic link");
    fs::rename(next, path).expect("a name can be replaced");
}
