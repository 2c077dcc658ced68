//! How much room standard output has.

#![expect(clippy::disallowed_methods, reason = "COLUMNS says what the user wants")]

use std::{env, io};

use rustix::termios::tcgetwinsize;

/// What everything fits into, unless the terminal is wider.
const NARROW: usize = 80;
/// Wider than this nobody reads.
const WIDE: usize = 400;

/// Columns of standard output.
pub(crate) fn width() -> usize {
    let terminal =
        tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let told = || env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(told).unwrap_or(NARROW).clamp(NARROW, WIDE)
}

/// Rows of standard output, where it is a terminal.
pub(crate) fn rows() -> Option<usize> {
    tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0)
}
