//! `bailiff lease`: what its commands have in common.

pub(crate) mod acquire;
mod ask;
pub(crate) mod init;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod release;
pub(crate) mod run;
mod shell;
mod told;
mod tree;
pub(crate) mod unclean;

use std::time::Duration;

use bailiff_lease::Pool;

use crate::exit::Failure;
use crate::flags;

/// No answer of Redis takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// A ticket is forgotten after so long without a word of its holder.
pub(crate) const TICKET: Duration = Duration::from_secs(30);
/// A lease.
pub(crate) const LEASE: Duration = Duration::from_mins(1);

pub(crate) fn open(flags: &flags::Pool) -> Result<Pool, Failure> {
    Ok(Pool::open(&flags.redis, &flags.prefix, PATIENCE)?)
}

/// The local time's distance from UTC, in seconds.
pub(crate) fn offset() -> i32 {
    jiff::Zoned::now().offset().seconds()
}
