//! `bailiff run`: runs a command with a GPU memory limit, leased GPUs and a time limit.

#![expect(clippy::disallowed_methods, reason = "a wait has a deadline")]

mod environment;
pub(crate) mod flags;
mod free_memory;
pub(crate) mod job;
mod monitor;
pub(crate) mod quota;
mod running;
mod summary;

use std::process::ExitCode;
use std::time::Instant;

use crate::exit::Failure;
use crate::output::print_message;
use flags::Run;
use free_memory::FreeMemory;
use job::{Job, Prepared};
use monitor::MonitorOptions;
use quota::Quota;
use running::CommandExit;

pub(crate) fn run(flags: &Run) -> Result<ExitCode, Failure> {
    let options = flags.needs_sampler().then(|| MonitorOptions {
        idle: flags.idle_timeout,
        needs_driver: flags.idle_timeout.is_some() || flags.min_free.is_some(),
        monitors_command: flags.idle_timeout.is_some() || !flags.quiet,
        library: flags.lease.nvml_library.clone(),
    });
    let start = Prepared::new(options.as_ref())?;
    let quota = flags.vram.map(|limit| Quota::create(limit, flags)).transpose()?;
    let mut job = Job::new(&flags.lease.command, &flags.lease.time_limit);
    job.lease = flags.requests_gpus().then_some(&flags.lease);
    job.amounts = flags.amounts();
    let request = &flags.lease.request;
    job.free_memory = flags.min_free.map(|bytes| FreeMemory {
        bytes,
        nonblock: request.nonblock,
        until: request.wait.map(|wait| Instant::now() + wait),
    });
    if let Some(quota) = &quota {
        quota.add_to(&mut job.environment);
    }
    let outcome = job.outcome(start)?;
    if !flags.quiet {
        let ledger = quota.as_ref().and_then(Quota::ledger);
        for line in summary::lines(&outcome, ledger.as_ref()) {
            print_message(line);
        }
    }
    if let (Some(quota), CommandExit::Detached(_)) = (quota, outcome.exit) {
        quota.keep_file();
    }
    outcome.code()
}
