//! One `start` or `stop` at a time: compute modes are the machine's, and whoever fails sets them back under him who did not.

#![expect(clippy::disallowed_methods, reason = "opens the file of the lock")]

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::output::print_message;

const DIRECTORY: &str = "/run/bailiff";
const LOCK: &str = "/run/bailiff/mps.lock";

/// The lock, which is held as long as this file is open. Waits for whoever has it; only root sets compute modes, so nobody else
/// takes it.
pub(super) fn lock() -> Option<File> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let taken = take();
    if let Err(error) = &taken {
        print_message(format_args!("{LOCK}: {error}; another start or stop at this time would go unnoticed"));
    }
    taken.ok()
}

fn take() -> io::Result<File> {
    // It is there where the services are installed.
    let _ = DirBuilder::new().mode(0o755).create(DIRECTORY);
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    let lock = OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(flags).open(LOCK)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        print_message("another start or stop is under way, and comes first");
        flock(&lock, FlockOperation::LockExclusive)?;
    }
    Ok(lock)
}
