//! Reads what the kernel denies to this program, through a helper process that has the capabilities. A request contains
//! an open `/proc/PID`, so the answer is about that process even if its pid is reused.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, StatxFlags, major, makedev, minor, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::clock::Deadline;

/// Time limit of a read. A process can have a million open files, and can make the kernel block while they are opened.
const PATIENCE: Duration = Duration::from_secs(10);

/// The helper that reads for this program, if there is one.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// Connections to a helper.
#[derive(Debug)]
struct Helper {
    reads: Channel,
    /// For searches of open files, which can take seconds, so that they delay no other reads.
    searches: Channel,
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Device that contains the file.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Uid of the owner.
    pub owner: u32,
    /// Major and minor number, if the file is a character device.
    pub character: Option<(u32, u32)>,
    /// Whether it is a program that runs as the owner of its file.
    pub is_setuid: bool,
}

impl Attributes {
    pub(crate) fn new((device, inode, owner): (u64, u64, u32), mode: u32, special: u64) -> Self {
        let is_character = FileType::from_raw_mode(mode) == FileType::CharacterDevice;
        let character = is_character.then(|| (major(special), minor(special)));
        let is_setuid = Mode::from_raw_mode(mode).contains(Mode::SUID);
        Self { device, inode, owner, character, is_setuid }
    }

    /// Returns the attributes that the kernel has cached: a query may hang on a user's file system or an unreachable
    /// server.
    pub(crate) fn cached(directory: impl AsFd, name: &str) -> Result<Self, Errno> {
        let mask = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::INO | StatxFlags::UID;
        let found = statx(directory, name, AtFlags::STATX_DONT_SYNC, mask)?;
        let device = makedev(found.stx_dev_major, found.stx_dev_minor);
        let special = makedev(found.stx_rdev_major, found.stx_rdev_minor);
        Ok(Self::new((device, found.stx_ino, found.stx_uid), found.stx_mode.into(), special))
    }
}

/// Files to look for among the open files of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Files {
    /// Start of the path; `None` if the path does not count, because a user can give a file any path.
    pub prefix: Option<String>,
    /// Whether the path is longer than its start.
    pub longer: bool,
    /// Major number of a character device, which is found under any path: another mount namespace may have another.
    pub major: Option<u32>,
}

/// What is read in a `/proc/PID` or `/proc/PID/task/TID`.
#[derive(Debug, Serialize, Deserialize)]
pub enum Read {
    /// Opens a file.
    Open(String),
    /// Reads the target of a link.
    Link(String),
    /// Reads the attributes of a file.
    Attributes(String),
    /// Looks for open files, until a deadline.
    HasOpen(Files, Deadline),
    /// Serves the attached socket too.
    Serve,
}

/// Answer to a [`Read`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The attached file.
    File,
    /// Target of the link.
    Link(String),
    /// Attributes of the file.
    Attributes(Attributes),
    /// Whether one of the files is open.
    HasOpen(bool),
    /// The attached socket is served.
    Serving,
    /// Number of the error.
    Error(i32),
}

/// Sets the channel to the helper that reads what the kernel denies to this program.
///
/// # Errors
/// If the helper does not answer.
pub fn read_through(reads: Channel) -> io::Result<()> {
    let (searches, theirs) = Channel::pair()?;
    match reads.call(&Read::Serve, Some(theirs.as_fd()), PATIENCE)?.0 {
        Answer::Serving => {
            // There is one helper, which is started once.
            let _ = HELPER.set(Helper { reads, searches });
            Ok(())
        }
        _ => Err(Errno::BADMSG.into()),
    }
}

/// Reads through the helper; fails with `denied` if there is none.
fn ask(directory: impl AsFd, read: &Read, denied: Errno) -> Result<(Answer, Option<OwnedFd>), Errno> {
    let helper = HELPER.get().ok_or(denied)?;
    let channel = if matches!(read, Read::HasOpen(..)) { &helper.searches } else { &helper.reads };
    match channel.call(read, Some(directory.as_fd()), PATIENCE)? {
        (Answer::Error(number), _) => Err(Errno::from_raw_os_error(number)),
        answer => Ok(answer),
    }
}

pub(crate) fn open(directory: impl AsFd, name: &str, denied: Errno) -> Result<OwnedFd, Errno> {
    ask(directory, &Read::Open(name.to_owned()), denied)?.1.ok_or(Errno::BADMSG)
}

pub(crate) fn link(directory: impl AsFd, name: &str, denied: Errno) -> Result<String, Errno> {
    match ask(directory, &Read::Link(name.to_owned()), denied)? {
        (Answer::Link(target), _) => Ok(target),
        _ => Err(Errno::BADMSG),
    }
}

pub(crate) fn attributes(directory: impl AsFd, name: &str, denied: Errno) -> Result<Attributes, Errno> {
    match ask(directory, &Read::Attributes(name.to_owned()), denied)? {
        (Answer::Attributes(attributes), _) => Ok(attributes),
        _ => Err(Errno::BADMSG),
    }
}

pub(crate) fn has_open(
    directory: impl AsFd,
    (files, until): (&Files, Deadline),
    denied: Errno,
) -> Result<bool, Errno> {
    match ask(directory, &Read::HasOpen(files.clone(), until), denied)? {
        (Answer::HasOpen(open), _) => Ok(open),
        _ => Err(Errno::BADMSG),
    }
}
