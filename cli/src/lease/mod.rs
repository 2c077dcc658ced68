//! `bailiff lease`: code shared by its commands.

pub(crate) mod abandoned;
mod acquire;
pub(crate) mod command_lease;
pub(crate) mod commands;
pub(crate) mod examples;
pub(crate) mod flags;
mod format;
pub(crate) mod gpu_users;
mod hold;
mod init;
pub(crate) mod list;
mod log;
mod progress;
mod release;
pub(crate) mod request;

use std::fmt::Display;
use std::time::Duration;

use bailiff_lease::{Leases, Pool};

use crate::args::Backend;
use crate::exit::Failure;

/// The timeout of a Redis reply.
pub(crate) const REDIS_TIMEOUT: Duration = Duration::from_secs(5);
/// The lifetime of a ticket without a renewal.
pub(crate) const TICKET: Duration = Duration::from_secs(30);
/// The lifetime of a lease without a renewal.
pub(crate) const LEASE: Duration = Duration::from_mins(1);

/// Opens the pool, in Redis or on this machine.
pub(crate) fn open(flags: &crate::args::Pool) -> Result<Box<dyn Leases>, Failure> {
    Ok(flags.open(REDIS_TIMEOUT)?)
}

/// Opens the pool in Redis, for commands that the local pool does not support; `limitation` says what it lacks.
pub(crate) fn redis(flags: &crate::args::Pool, limitation: &str) -> Result<Pool, Failure> {
    match flags.backend() {
        Backend::Redis(address) => Ok(Pool::open(address, &flags.prefix, REDIS_TIMEOUT)?),
        Backend::LocalHost(_) => Err(Failure::usage(format!(
            "this machine's own pool {limitation}; use a pool in Redis (--redis)"
        ))),
    }
}

/// Returns the UTC offset of the local time in seconds.
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
    fn gpu_counts_agree_with_their_noun() {
        assert_eq!((gpus(1).as_str(), gpus_are(1).as_str()), ("1 GPU", "1 GPU is"));
        assert_eq!((gpus(0).as_str(), gpus_are(2).as_str()), ("0 GPUs", "2 GPUs are"));
    }
}
