//! `bailiff run`: a command with a limit of GPU memory, on GPUs of its own, for a time.

#![expect(clippy::disallowed_methods, reason = "a wait has an end")]

mod environment;
pub(crate) mod flags;
pub(crate) mod job;
mod live;
pub(crate) mod quota;
mod room;
mod summary;
mod usage;
mod watch;

use std::process::ExitCode;
use std::time::Instant;

use crate::exit::Failure;
use crate::say::say;
use flags::Run;
use job::{Job, Start};
use live::Lived;
use quota::Quota;
use room::Room;
use watch::Wish;

/// Runs a command.
pub(crate) fn run(flags: &Run) -> Result<ExitCode, Failure> {
    let wish = flags.wants_a_watch().then(|| Wish {
        idle: flags.idle_timeout,
        needs_driver: flags.idle_timeout.is_some() || flags.min_free.is_some(),
        stays: flags.idle_timeout.is_some() || !flags.quiet,
        library: flags.lease.nvml_library.clone(),
    });
    let start = Start::new(wish.as_ref())?;
    let quota = flags.vram.map(|limit| Quota::make(limit, flags)).transpose()?;
    let mut job = Job::of(&flags.lease.command, &flags.lease.terms);
    job.lease = flags.wants_gpus().then_some(&flags.lease);
    job.amounts = flags.amounts();
    let request = &flags.lease.request;
    job.room = flags.min_free.map(|bytes| Room {
        bytes,
        nonblock: request.nonblock,
        until: request.wait.map(|wait| Instant::now() + wait),
    });
    if let Some(quota) = &quota {
        quota.tell(&mut job.environment);
    }
    let outcome = job.outcome(start)?;
    if !flags.quiet {
        let ledger = quota.as_ref().and_then(Quota::ledger);
        for line in summary::lines(&outcome, ledger.as_ref()) {
            say(line);
        }
    }
    if let (Some(quota), Lived::Left(_)) = (quota, outcome.lived) {
        quota.leave();
    }
    outcome.code()
}
