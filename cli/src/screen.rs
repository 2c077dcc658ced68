//! The size of the terminal.

#![expect(clippy::disallowed_methods, reason = "reads COLUMNS")]

use std::{env, io};

use rustix::termios::tcgetwinsize;

/// The width used if the terminal is narrower or unknown.
const MIN_WIDTH: usize = 80;
/// The maximum width.
const MAX_WIDTH: usize = 400;

/// Returns the columns of standard output.
pub(crate) fn width() -> usize {
    let terminal =
        tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let from_environment = || env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(from_environment).unwrap_or(MIN_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH)
}

/// Returns the rows of standard output if it is a terminal.
pub(crate) fn rows() -> Option<usize> {
    tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0)
}
