//! The command-line flags of `bailiff` and its subcommands.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

use crate::lease::examples;
use crate::lease::flags::Lease;
use crate::owner::{hold, why};
use crate::{completions, doctor, free, gpuget, idle_timeout, info, mps, report, run, slurm};

const EXAMPLES: &str = "\
Examples:
  bailiff doctor                             check the driver, the exporter and the lease pool
  bailiff info                               show each GPU and the processes that use it
  bailiff run --vram 8GiB -- python train.py
                                             limit a command to 8 GiB on each GPU
  sudo bailiff lease init                    create the pool of GPUs to lease
  bailiff lease run -- python train.py       wait for a free GPU, then run

Exit codes: 0: success; 1: failure; 64: invalid flags. For other codes, see each command's `--help`.";

/// Limit, lease and inspect the GPUs of a shared machine
#[derive(Debug, Parser)]
#[command(name = "bailiff", version, after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command with a GPU memory limit, leased GPUs or a time limit
    Run(Box<run::flags::Run>),
    /// Show each GPU with its memory, utilization and processes
    ///
    /// The report has one line per GPU and one per process that holds GPU memory; --full prints the long
    /// report. An unknown value is shown as ? (as - in the long report), never as 0. The data comes from
    /// bailiff-exporter if it is running, because it records idle times; otherwise the driver and /proc are sampled
    /// twice, one second apart.
    Info(info::flags::Info),
    /// Show which GPUs of this machine or the cluster are free, best first
    Free(Box<free::Free>),
    /// Ask the enforcer to keep one's own process for a time
    Hold(Box<hold::Hold>),
    /// Show why one's own process ended, or what a rule will do to it
    Why(Box<why::Why>),
    /// Report GPU-hours, memory, energy and actions of each user
    ///
    /// The data comes from a Prometheus server that scrapes bailiff-exporter and, for notices and terminations,
    /// bailiff-enforcer. Time without data is unknown, and counts neither as used nor as idle.
    Report(report::flags::Report),
    /// Check this machine for problems and print how to fix them
    ///
    /// The checks change nothing. Components that are not installed, or that this user cannot access, are
    /// skipped.
    Doctor(doctor::Doctor),
    /// Reserve GPUs exclusively (FIFO queue)
    #[command(subcommand, after_help = examples::LEASE)]
    Lease(Box<Lease>),
    /// Start, stop and inspect NVIDIA MPS daemons
    #[command(subcommand, after_help = mps::flags::EXAMPLES)]
    Mps(mps::flags::Mps),
    /// Check and clean GPUs around Slurm jobs
    #[command(subcommand, after_help = slurm::flags::EXAMPLES)]
    Slurm(Box<slurm::flags::Slurm>),
    /// Print the completion script of a shell
    Completions(completions::Completions),
    /// Manage a GPU pool with the flags of GPUGET's GPU.py
    ///
    /// bailiff also behaves like this if it is invoked as GPU.py.
    #[command(disable_help_flag = true, after_help = gpuget::EXAMPLES)]
    Gpuget(GpugetArgs),
    /// Run a command and stop it when its GPUs stay idle
    ///
    /// The flags are the same as in `gpu_idle_timeout.py`. bailiff also behaves like this if it is invoked by
    /// that name.
    #[command(override_help = idle_timeout::HELP, after_help = idle_timeout::EXAMPLES)]
    IdleTimeout(Box<idle_timeout::Flags>),
}

/// The unparsed arguments of `gpuget`.
#[derive(Debug, Args)]
pub(crate) struct GpugetArgs {
    /// Flags of GPU.py (see `bailiff gpuget --help`).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub(crate) args: Vec<OsString>,
}
