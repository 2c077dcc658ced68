//! Processes held by pidfd, through which all signals are sent. A pidfd refers to the same process even if
//! the pid is reused, and is readable once the process has exited.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::permit::Permit;
use crate::clock::Deadline;

/// Pidfd of a process, which stays valid if the pid is reused.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

impl Handle {
    /// Opens the process that has this pid now; `None` if there is none.
    pub(crate) fn open(pid: u32) -> Result<Option<Self>, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Some(Self(handle))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the process is known to be running; false if that cannot be determined.
    pub(crate) fn lives(&self) -> bool {
        readable(&[self.0.as_fd()], Some(Deadline::after(std::time::Duration::ZERO)))
            .is_ok_and(|ready| !ready.contains(&true))
    }

    /// Returns whether the process is known to have exited; false if that cannot be determined.
    pub(crate) fn ended(&self) -> bool {
        readable(&[self.0.as_fd()], Some(Deadline::after(std::time::Duration::ZERO)))
            .is_ok_and(|ready| ready.contains(&true))
    }

    /// Sends a signal; returns false if the process had exited.
    pub(crate) fn send(&self, signal: Signal, _: &Permit) -> Result<bool, Errno> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a file is readable or the deadline passes. Returns whether each file is readable.
pub(crate) fn readable(files: &[BorrowedFd<'_>], until: Option<Deadline>) -> Result<Vec<bool>, Errno> {
    let mut asked: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    wait(&mut asked, until)?;
    Ok(asked.iter().map(|file| !file.revents().is_empty()).collect())
}

/// Waits until a file is ready or the deadline passes.
pub(crate) fn wait(files: &mut [PollFd<'_>], until: Option<Deadline>) -> Result<(), Errno> {
    loop {
        let left = until.and_then(|until| Timespec::try_from(until.left()).ok());
        match poll(files, left.as_ref()) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}
