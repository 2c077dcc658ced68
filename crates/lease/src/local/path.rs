//! Opens and creates the pool's directory without following symbolic links, so that no other user can make root use a
//! directory of that user's choice.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bailiff_proc::{is_sticky, open_below};
use rustix::fs::{CWD, Mode, OFlags, Stat, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::LeaseError;

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Opens a directory, and creates it and its parents if they are missing, with mode 0755. For root, all of them must
/// belong to root, and other users must not be able to replace entries in them.
pub(super) fn create(path: &Path) -> Result<OwnedFd, LeaseError> {
    let absolute = std::path::absolute(path).map_err(|error| LeaseError::file(path, &error))?;
    let mut reached = PathBuf::from("/");
    let mut opened = step(&CWD, reached.as_os_str()).map_err(|error| LeaseError::file(&reached, &error))?;
    for component in absolute.components().filter(|component| *component != Component::RootDir) {
        reached.push(component);
        opened = step(&opened, component.as_os_str()).map_err(|error| LeaseError::file(&reached, &error))?;
    }
    let found = fstat(&opened).map_err(|error| LeaseError::file(path, &error.into()))?;
    check(&found, WRITABLE_BY_OTHERS).map_err(|error| LeaseError::file(path, &error))?;
    Ok(opened)
}

/// Opens an entry of a directory, or creates it.
fn step(parent: &impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    // In a sticky directory, a user can mount a file system that reports any owner.
    let open = || {
        if is_sticky(parent) {
            open_below(parent, name, DIRECTORY)
        } else {
            openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
        }
    };
    let opened = match open() {
        Err(Errno::NOENT) => make(parent, name, open),
        opened => opened,
    };
    let opened = opened.map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => {
            io::Error::other("a symbolic link or not a directory; use a path without symbolic links")
        }
        Errno::XDEV => io::Error::other("a mount point in a directory that all users can write to"),
        error => error.into(),
    })?;
    let found = fstat(&opened)?;
    let sticky = found.st_mode & STICKY != 0;
    check(&found, if sticky { 0 } else { WRITABLE_BY_OTHERS })?;
    Ok(opened)
}

/// Creates a directory. Its mode does not depend on the umask.
fn make(
    parent: &impl AsFd,
    name: &OsStr,
    open: impl Fn() -> rustix::io::Result<OwnedFd>,
) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o755);
    match mkdirat(parent, name, mode) {
        // Another process created the directory, so the mode is not changed.
        Err(Errno::EXIST) => open(),
        made => {
            made?;
            let opened = open()?;
            fchmod(&opened, mode)?;
            Ok(opened)
        }
    }
}

fn check(found: &Stat, forbidden: u32) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    if found.st_uid != 0 {
        let text = format!("owned by user {}; root creates pools only in its own directories", found.st_uid);
        return Err(io::Error::other(text));
    }
    if found.st_mode & forbidden != 0 {
        let mode = found.st_mode & 0o7777;
        let text = format!("writable by other users (mode {mode:04o}); correct it with chmod go-w");
        return Err(io::Error::other(text));
    }
    Ok(())
}
