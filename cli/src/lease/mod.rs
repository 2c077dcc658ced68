//! `bailiff lease`: what its commands have in common.

pub(crate) mod abandoned;
pub(crate) mod acquire;
pub(crate) mod examples;
pub(crate) mod held;
pub(crate) mod hold;
pub(crate) mod init;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod place;
mod progress;
pub(crate) mod release;
mod request;
pub(crate) mod run;
mod shell;
pub(crate) mod status;
mod told;
pub(crate) mod unclean;

use std::fmt::Display;
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
        Place::LocalHost(directory) => Box::new(Local::at(directory)),
    })
}

/// A pool in Redis, for what this machine's own pool cannot do.
pub(crate) fn redis(flags: &flags::Pool, what: &str) -> Result<Pool, Failure> {
    match flags.place() {
        Place::Redis(address) => Ok(Pool::open(address, &flags.prefix, PATIENCE)?),
        Place::LocalHost(_) => {
            Err(Failure::usage(format!("this machine's own pool {what}: that needs one in Redis, --redis")))
        }
    }
}

/// The local time's distance from UTC, in seconds.
pub(crate) fn offset() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

/// `1 GPU` or `3 GPUs`.
pub(crate) fn gpus(count: impl Display) -> String {
    let count = count.to_string();
    if count == "1" { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

/// `1 GPU is` or `3 GPUs are`.
pub(crate) fn gpus_are(count: impl Display) -> String {
    let gpus = gpus(count);
    if gpus.ends_with('s') { gpus + " are" } else { gpus + " is" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_gpus_agree_with_their_noun() {
        assert_eq!((gpus(1).as_str(), gpus_are(1).as_str()), ("1 GPU", "1 GPU is"));
        assert_eq!((gpus(0).as_str(), gpus_are(2).as_str()), ("0 GPUs", "2 GPUs are"));
    }
}
