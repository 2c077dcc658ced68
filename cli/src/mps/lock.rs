//! Lock between runs of `mps start` and `mps stop`. Compute modes are global: without the lock, a failed run
//! would reset those that a concurrent run has set.

#![expect(clippy::disallowed_methods, reason = "opens the lock file")]

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::output::print_message;

const DIRECTORY: &str = "/run/bailiff";
const LOCK: &str = "/run/bailiff/mps.lock";

/// Waits for the lock, which is held while the returned file is open. Users other than root skip the lock,
/// because they cannot set compute modes.
pub(super) fn acquire() -> Option<File> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let lock = open_and_lock();
    if let Err(error) = &lock {
        print_message(format_args!(
            "cannot lock {LOCK}: {error}; do not run another start or stop at the same time"
        ));
    }
    lock.ok()
}

fn open_and_lock() -> io::Result<File> {
    // An error is ignored, because the directory already exists if the services are installed.
    let _ = DirBuilder::new().mode(0o755).create(DIRECTORY);
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    let lock = OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(flags).open(LOCK)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        print_message("waiting for another start or stop to finish");
        flock(&lock, FlockOperation::LockExclusive)?;
    }
    Ok(lock)
}
