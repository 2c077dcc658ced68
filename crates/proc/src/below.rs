//! Opens files in directories that other users can write to.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Opens an entry of a directory, unless it is a symbolic link or a mount point. Users can mount a file system that does
/// not respond over a file that they can write to (`fusermount3`).
///
/// # Errors
/// `LOOP` for a symbolic link and `XDEV` for a mount point; otherwise those of `open`.
pub fn open_below(directory: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(&directory, name, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, or with a seccomp filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => openat(&directory, name, flags, Mode::empty()),
        opened => opened,
    }
}
