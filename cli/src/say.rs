//! What is said on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Says something in a line of its own. A reader that has gone, or a disk that is full, is no reason to leave a command
/// unwatched.
pub(crate) fn say(text: impl Display) {
    // In one piece, so that lines of others do not get in between.
    put(&format!("bailiff: {text}\n"));
}

/// Writes this as it is, if it can be written.
pub(crate) fn put(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
