//! Waits for files.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock::Deadline;

/// Waits until a file is readable or the deadline passes. Returns whether each file is readable.
///
/// # Errors
/// If the kernel is out of memory.
pub fn readable(files: &[BorrowedFd<'_>], until: Option<Deadline>) -> Result<Vec<bool>, Errno> {
    let mut polled: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    wait(&mut polled, until)?;
    Ok(polled.iter().map(|file| !file.revents().is_empty()).collect())
}

/// Waits until a file is ready or the deadline passes.
///
/// # Errors
/// If the kernel is out of memory.
pub fn wait(files: &mut [PollFd<'_>], until: Option<Deadline>) -> Result<(), Errno> {
    loop {
        let left = until.and_then(|until| Timespec::try_from(until.left()).ok());
        match poll(files, left.as_ref()) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}
