//! `bailiff run`: a command with a limit of GPU memory, on GPUs of its own, for a time.

mod environment;
pub(crate) mod flags;
pub(crate) mod job;
mod live;
mod quota;
mod summary;
mod usage;
mod watch;

use std::process::ExitCode;

use crate::exit::Failure;
use flags::Run;
use job::Job;
use live::Lived;
use quota::Quota;
use watch::Wish;

/// Runs a command.
pub(crate) fn run(flags: &Run) -> Result<ExitCode, Failure> {
    let quota = flags.vram.map(|limit| Quota::make(limit, flags)).transpose()?;
    let mut job = Job::of(&flags.lease.command, &flags.lease.terms);
    job.lease = flags.wants_gpus().then_some(&flags.lease);
    job.watch = flags
        .wants_a_watch()
        .then(|| Wish { idle: flags.idle_timeout, library: flags.lease.nvml_library.clone() });
    if let Some(quota) = &quota {
        quota.tell(&mut job.environment);
    }
    let outcome = job.outcome()?;
    if !flags.quiet {
        let ledger = quota.as_ref().and_then(Quota::ledger);
        for line in summary::lines(&outcome, ledger.as_ref()) {
            eprintln!("bailiff: {line}");
        }
    }
    if let (Some(quota), Lived::Left(_)) = (quota, outcome.lived) {
        quota.leave();
    }
    outcome.code()
}
