//! `bailiff lease`: what its commands have in common.

pub(crate) mod acquire;
mod ask;
pub(crate) mod examples;
pub(crate) mod held;
pub(crate) mod hold;
pub(crate) mod init;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod place;
mod progress;
pub(crate) mod release;
pub(crate) mod run;
mod shell;
pub(crate) mod status;
mod told;
pub(crate) mod unclean;

use std::time::Duration;

use bailiff_lease::{Leases, Local, Pool};

use crate::exit::Failure;
use crate::flags::{self, Place};

/// No answer of Redis takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// A ticket is forgotten after so long without a word of its holder.
pub(crate) const TICKET: Duration = Duration::from_secs(30);
/// A lease.
pub(crate) const LEASE: Duration = Duration::from_mins(1);

/// A pool, whoever keeps it.
pub(crate) fn open(flags: &flags::Pool) -> Result<Box<dyn Leases>, Failure> {
    Ok(match flags.place() {
        Place::Redis(address) => Box::new(Pool::open(address, &flags.prefix, PATIENCE)?),
        Place::Here(folder) => Box::new(Local::at(folder)),
    })
}

/// A pool in Redis, for what this machine's own pool cannot do.
pub(crate) fn redis(flags: &flags::Pool, what: &str) -> Result<Pool, Failure> {
    match flags.place() {
        Place::Redis(address) => Ok(Pool::open(address, &flags.prefix, PATIENCE)?),
        Place::Here(_) => {
            Err(Failure::usage(format!("this machine's own pool {what}: that needs one in Redis, --redis")))
        }
    }
}

/// The local time's distance from UTC, in seconds.
pub(crate) fn offset() -> i32 {
    jiff::Zoned::now().offset().seconds()
}
