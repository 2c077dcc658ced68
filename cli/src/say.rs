//! What is said on standard error, and printed on standard output.

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

/// Prints what was asked for; false where nobody reads it any more, who has all that he wanted.
pub(crate) fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}
