//! Opens files in directories that other users can write to. With `fusermount3`, a user can mount a file system over an
//! entry of such a directory, which may not respond, and may report any owner.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Opens an entry of a directory, unless it is a symbolic link or a mount point.
///
/// # Errors
/// `LOOP` for a symbolic link and `XDEV` for a mount point; otherwise those of `open`.
pub fn open_below(directory: impl AsFd, name: impl AsRef<OsStr>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let name = name.as_ref();
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(&directory, name, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, or with a seccomp filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => openat(&directory, name, flags, Mode::empty()),
        opened => opened,
    }
}

/// Returns whether a path leads through a mount point in a sticky directory, such as `/tmp`: another user may have mounted
/// it. Links in the path are followed.
pub fn is_in_foreign_mount(path: &Path) -> bool {
    let is_mounted = |entry: &Path| {
        let (Some(parent), Some(name)) = (entry.parent(), entry.file_name()) else { return false };
        let directory =
            openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        directory.is_ok_and(|directory| is_sticky(&directory) && is_mount_point(&directory, name))
    };
    // From the root, so that no part of the path beyond a mount is used.
    let mut entries: Vec<&Path> = path.ancestors().filter(|entry| !entry.as_os_str().is_empty()).collect();
    entries.reverse();
    entries.into_iter().any(is_mounted)
}

/// Returns whether only the owners of a directory's entries can replace them.
pub fn is_sticky(directory: impl AsFd) -> bool {
    fstat(directory).is_ok_and(|found| Mode::from_raw_mode(found.st_mode).contains(Mode::SVTX))
}

fn is_mount_point(directory: impl AsFd, name: &OsStr) -> bool {
    open_below(directory, name, OFlags::PATH).is_err_and(|error| error == Errno::XDEV)
}
