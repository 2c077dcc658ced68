//! `bailiff lease run`: runs a command on leased GPUs.

use std::process::ExitCode;

use super::flags;
use crate::exit::Failure;
use crate::run::job::Job;

/// Runs the command.
pub(crate) fn run(flags: &flags::Run) -> Result<ExitCode, Failure> {
    Job { lease: Some(flags), ..Job::new(&flags.command, &flags.time_limit) }.run()
}
