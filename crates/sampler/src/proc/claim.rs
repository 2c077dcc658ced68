//! Reads the lease under which a process was started, from one variable of its environment.

use bailiff_snapshot::Claim;

use super::files::{Directory, MOST_OF_ENVIRON};

/// Reads the lease from an open `/proc/PID`.
pub(crate) fn read(process: &Directory, buffer: &mut Vec<u8>) -> Claim {
    let claim = match process.read("environ", buffer) {
        Ok(environ) if environ.len() < MOST_OF_ENVIRON => Claim::of_environment(environ),
        _ => Claim::Unread,
    };
    // The environment may contain secrets, so erase it.
    buffer.fill(0);
    claim
}
