//! A file system that never answers, as a network file system may: FUSE without a reader of its requests. Programs that
//! use it block in the kernel as long as it is mounted.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system, removed with its test: blocked calls fail then.
pub struct Hung {
    device: File,
    root: PathBuf,
}

impl Hung {
    /// A file system on a new directory.
    ///
    /// # Panics
    /// If it cannot be made, or there is no `/dev/fuse`.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        fs::create_dir(&root).expect("a directory");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        Self { device, root }
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The same command line, in its own mount namespace with the file system.
    ///
    /// # Panics
    /// If there are no descriptors left.
    #[must_use]
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
/// If that cannot be done.
pub fn link(target: &Path, path: &Path) {
    let next = path.with_extension("next");
    symlink(target, &next).expect("a symbolic link");
    fs::rename(next, path).expect("a name can be replaced");
}
