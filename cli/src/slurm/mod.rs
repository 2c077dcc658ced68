//! `bailiff slurm`: hooks for slurmd, which check and clean the GPUs of a job.

mod check;
mod config;
pub(crate) mod flags;
mod gpus;
mod health;
mod hook;
mod inspection;
mod job;
mod leftovers;
pub(crate) mod programs;
mod state;

use std::process::ExitCode;

use crate::exit::Failure;
use flags::Slurm;

/// Runs a command.
pub(crate) fn slurm(command: &Slurm) -> Result<ExitCode, Failure> {
    match command {
        Slurm::Prolog(flags) => hook::prolog(flags),
        Slurm::Epilog(flags) => hook::epilog(flags),
        Slurm::Health(flags) => health::health(flags),
        Slurm::Check(flags) => check::check(flags),
    }
}
