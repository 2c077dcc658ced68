//! `bailiff lease run`: a command, and all that it starts, on GPUs of its own.

use std::process::ExitCode;

use crate::exit::Failure;
use crate::flags;
use crate::run::job::Job;

/// Runs a command.
pub(crate) fn run(flags: &flags::Run) -> Result<ExitCode, Failure> {
    Job { lease: Some(flags), ..Job::of(&flags.command, &flags.terms) }.run()
}
