//! Processes held by pidfd. A pidfd refers to the same process even if the pid is reused, and is readable once the
//! process has exited.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bailiff_snapshot::ProcessKey;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::clock::Deadline;
use crate::directory::ReadError;
use crate::poll::readable;
use crate::process::{Proc, lives};

/// Pidfd of a process.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens the process that has this pid now; `None` if there is none.
    ///
    /// # Errors
    /// If the process may exist and cannot be opened.
    pub fn open(pid: u32) -> Result<Option<Self>, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Some(Self(pidfd))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a process; `None` if it has exited, even if another process now has its pid.
    ///
    /// # Errors
    /// If that cannot be determined.
    pub fn of(process: ProcessKey) -> Result<Option<Self>, ReadError> {
        // If the process is still running after the pidfd was opened, the pidfd refers to it.
        let opened = Self::open(process.pid)?;
        Ok(if lives(process)? { opened } else { None })
    }

    /// Returns whether the process is known to be running; false if that cannot be determined.
    pub fn lives(&self) -> bool {
        self.exited_by(Some(Deadline::after(Duration::ZERO))) == Ok(false)
    }

    /// Returns whether the process is known to have exited; false if that cannot be determined.
    pub fn ended(&self) -> bool {
        self.exited_by(Some(Deadline::after(Duration::ZERO))) == Ok(true)
    }

    /// Waits until the process has exited or the deadline passes. Returns whether it has exited.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub fn exited_by(&self, until: Option<Deadline>) -> Result<bool, Errno> {
        readable(&[self.as_fd()], until).map(|ready| ready.contains(&true))
    }

    /// Returns the pid of the process in this program's `/proc`; `None` if it has exited.
    pub fn pid(&self) -> Option<u32> {
        let info = Proc::own().ok()?.text(&format!("self/fdinfo/{}", self.0.as_raw_fd())).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    }

    /// Sends a signal; returns false if the process had exited.
    ///
    /// # Errors
    /// If the kernel refuses the signal.
    pub fn send(&self, signal: Signal) -> Result<bool, Errno> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Pidfd {
    fn from(pidfd: OwnedFd) -> Self {
        Self(pidfd)
    }
}
