//! Atomic replacement of files: after a failure the file has either its old or its new content.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fsync, open, openat, renameat};
use rustix::io::Errno;

/// Replaces the content of a file, readable by its owner only. A crash leaves the old or the new content.
///
/// # Errors
/// If a step fails. The old content is kept unless only the last sync of the directory failed.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let directory = directory_of(path)?;
    let mut beside = name.to_owned();
    beside.push(".new");
    // O_NONBLOCK, so that opening a FIFO does not block.
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::TRUNC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = openat(&directory, beside.as_os_str(), flags, Mode::RUSR | Mode::WUSR)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = rest.get(written..).unwrap_or_default();
    }
    fsync(&file)?;
    renameat(&directory, beside.as_os_str(), &directory, name)?;
    fsync(&directory)?;
    Ok(())
}

/// Opens the parent directory of a file.
pub(crate) fn directory_of(path: &Path) -> Result<OwnedFd, Errno> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test of files")]
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_new_content_is_there_whole_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        replace(&path, b"one").unwrap();
        replace(&path, b"two and more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two and more");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_fails_leaves_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        replace(&path, b"old").unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join("state.json.new")).unwrap();
        replace(&path, b"new").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
