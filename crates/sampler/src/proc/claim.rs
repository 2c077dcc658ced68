//! The lease that a process was started under: one variable of its environment, of which nothing else is kept.

use bailiff_snapshot::Claim;

use super::files::{Directory, MOST_OF_ENVIRON};

/// Reads it off a held directory of `/proc`.
pub(crate) fn read(process: &Directory, buffer: &mut Vec<u8>) -> Claim {
    let claim = match process.read("environ", buffer) {
        Ok(environ) if environ.len() < MOST_OF_ENVIRON => Claim::of_environment(environ),
        _ => Claim::Unread,
    };
    // Others' secrets stay no longer than this.
    buffer.fill(0);
    claim
}
