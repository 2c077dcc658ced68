//! Processes held by pidfd: the only way a signal leaves this program. A pidfd stays its process's, also when
//! the pid is used again, and is readable once the process has ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::permit::Permit;
use crate::clock::Deadline;

/// A process, even after its pid was reused.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

impl Handle {
    /// Opens the process that has the pid now; none if there is none.
    pub(crate) fn open(pid: u32) -> Result<Option<Self>, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Some(Self(handle))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// It is seen to live; not so where that could not be asked.
    pub(crate) fn lives(&self) -> bool {
        readable(&[self.0.as_fd()], Some(Deadline::after(std::time::Duration::ZERO)))
            .is_ok_and(|ready| !ready.contains(&true))
    }

    /// It is seen to have ended; not so where that could not be asked.
    pub(crate) fn ended(&self) -> bool {
        readable(&[self.0.as_fd()], Some(Deadline::after(std::time::Duration::ZERO)))
            .is_ok_and(|ready| ready.contains(&true))
    }

    /// Sends a signal; false if it had ended.
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

/// Waits until one of them is readable or the deadline passes, and returns which are.
pub(crate) fn readable(files: &[BorrowedFd<'_>], until: Option<Deadline>) -> Result<Vec<bool>, Errno> {
    let mut asked: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    wait(&mut asked, until)?;
    Ok(asked.iter().map(|file| !file.revents().is_empty()).collect())
}

/// Waits until one of them is ready or the time is up.
pub(crate) fn wait(files: &mut [PollFd<'_>], until: Option<Deadline>) -> Result<(), Errno> {
    loop {
        let left = until.and_then(|until| Timespec::try_from(until.left()).ok());
        match poll(files, left.as_ref()) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}
