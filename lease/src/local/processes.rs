//! Who has a lock of the kernel's: `/proc/locks` tells who took it, `/proc/PID/fdinfo` who still has it.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{fstat, major, minor};

use crate::process::{directory, unless_gone};

/// A file, by what the kernel calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    pub(super) fn of(file: &File) -> Option<Self> {
        let found = fstat(file).ok()?;
        Some(Self { device: found.st_dev, number: found.st_ino })
    }
}

/// Who has which lock, by `/proc/locks`: the pid that took it, which may have ended since. Of another PID namespace it
/// tells nothing.
#[derive(Debug)]
pub(super) struct Locks(String);

impl Locks {
    pub(super) fn read() -> Self {
        Self(fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    pub(super) fn taker(&self, inode: Inode) -> Option<u32> {
        taker(&self.0, inode)
    }
}

fn taker(locks: &str, inode: Inode) -> Option<u32> {
    let (major, minor) = (major(inode.device), minor(inode.device));
    let wanted = format!("{major:02x}:{minor:02x}:{}", inode.number);
    // `1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`; one that waits has `->` after its number.
    locks.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, "WRITE", pid, file, ..] if file == wanted => pid.parse().ok(),
        _ => None,
    })
}

/// Whether a process has the lock of a file; `None` where we may not look.
pub(super) fn has(pid: u32, inode: Inode) -> Option<bool> {
    let process = directory(pid);
    let Some(descriptors) = unless_gone(fs::read_dir(process.join("fdinfo"))).ok()? else {
        return Some(false);
    };
    let lock = format!(":{} ", inode.number);
    let has = |descriptor: &fs::DirEntry| {
        let told = fs::read_to_string(descriptor.path()).unwrap_or_default();
        // Only what the kernel says to be locked is looked at: other files may hang.
        told.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK") && line.contains(&lock))
            && fs::metadata(process.join("fd").join(descriptor.file_name()))
                .is_ok_and(|found| (found.dev(), found.ino()) == (inode.device, inode.number))
    };
    Some(descriptors.filter_map(Result::ok).any(|descriptor| has(&descriptor)))
}

/// The processes that have the lock of a file, as far as we may look.
pub(super) fn having(inode: Inode) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| has(*pid, inode) == Some(true)).collect()
}

/// Whose it is.
pub(super) fn owner(pid: u32) -> Option<u32> {
    fs::metadata(directory(pid)).ok().map(|found| found.uid())
}

/// Its command line, or its name where it has none.
pub(super) fn command(pid: u32) -> Option<Vec<String>> {
    let process = directory(pid);
    let line = fs::read(process.join("cmdline")).ok()?;
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if !words.is_empty() {
        return Some(words);
    }
    Some(vec![fs::read_to_string(process.join("comm")).ok()?.trim().to_owned()])
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock, makedev};

    use super::*;

    #[test]
    fn locks_are_read_as_the_kernel_writes_them() {
        let inode = Inode { device: makedev(0, 25), number: 1234 };
        for (line, pid) in [
            ("1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", Some(4711)),
            ("1: POSIX  ADVISORY  WRITE 4711 00:19:1234 0 EOF", None),
            ("1: FLOCK  ADVISORY  READ  4711 00:19:1234 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 4711 00:19:12345 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF", None),
            ("1: -> FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(taker(line, inode), pid, "{line}");
        }
    }

    #[test]
    fn to_have_a_file_open_is_not_to_have_its_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (opened, inode) = (file.reopen().unwrap(), Inode::of(file.as_file()).unwrap());
        let us = std::process::id();
        assert_eq!((has(us, inode), Locks::read().taker(inode)), (Some(false), None));
        flock(&opened, FlockOperation::LockExclusive).unwrap();
        assert_eq!((has(us, inode), Locks::read().taker(inode)), (Some(true), Some(us)));
        assert_eq!(having(inode), [us]);
        drop(opened);
        assert_eq!(having(inode), [0_u32; 0]);
        assert_eq!(has(u32::MAX, inode), Some(false), "nobody has this pid");
    }
}
