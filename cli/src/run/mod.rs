//! `bailiff run`: a command with a limit of GPU memory, on GPUs of its own, for a time.

mod environment;
pub(crate) mod flags;
pub(crate) mod job;
mod live;
mod quota;

use std::process::ExitCode;

use crate::exit::Failure;
use flags::Run;
use job::Job;
use live::Lived;
use quota::Quota;

/// Runs a command.
pub(crate) fn run(flags: &Run) -> Result<ExitCode, Failure> {
    let quota = flags.vram.map(|limit| Quota::make(limit, flags)).transpose()?;
    let mut job = Job::of(&flags.lease.command, &flags.lease.terms);
    job.lease = flags.wants_gpus().then_some(&flags.lease);
    if let Some(quota) = &quota {
        quota.tell(&mut job.environment);
    }
    let outcome = job.outcome()?;
    if let (Some(quota), Lived::Left(_)) = (quota, outcome.lived) {
        quota.leave();
    }
    outcome.code()
}
