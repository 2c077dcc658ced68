//! The flags of `bailiff slurm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::config::OnResult;
use crate::args::{Machine, span};

/// Commands of `bailiff slurm`.
#[derive(Debug, Subcommand)]
pub(crate) enum Slurm {
    /// Check that a job's GPUs are clean before the job starts
    ///
    /// Waits until no process holds memory on the job's GPUs or has their device files open. slurmd runs it as
    /// Prolog through /usr/lib/bailiff/slurm/prolog.
    #[command(after_help = HOOK)]
    Prolog(Hook),
    /// End a finished job's leftover processes and check its GPUs
    ///
    /// Only processes that provably belong to the job are ended; all others are reported. slurmd runs it as
    /// Epilog through /usr/lib/bailiff/slurm/epilog.
    #[command(after_help = HOOK)]
    Epilog(Hook),
    /// Drain this node while a GPU without a job is in use
    ///
    /// slurmd runs it as `HealthCheckProgram` through /usr/lib/bailiff/slurm/health.
    #[command(after_help = HEALTH)]
    Health(Health),
    /// Show the GPU map and check Slurm's settings for the hooks
    ///
    /// It changes nothing.
    #[command(after_help = CHECK)]
    Check(Check),
}

/// Flags of all `bailiff slurm` commands.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Settings file; without it, the defaults apply.
    #[arg(long, value_name = "PATH", default_value = "/etc/bailiff/slurm.yaml")]
    pub(crate) config: PathBuf,
    /// GPUs in the order of gres.conf, such as /dev/nvidia[0-3]; default: as `slurmd -G` lists them.
    #[arg(long, value_name = "FILES")]
    pub(crate) gpus: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory of the job records.
    #[arg(long, value_name = "DIR", default_value = "/run/bailiff/slurm")]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) machine: Machine,
}

/// Flags of `bailiff slurm prolog` and `epilog`.
#[derive(Debug, Args)]
pub(crate) struct Hook {
    /// Maximum time to wait until the GPUs are clean.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    /// Whether to fail if the state of the GPUs is unknown.
    #[arg(long, value_name = "RESULT")]
    pub(crate) on_unknown: Option<OnResult>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Flags of `bailiff slurm health`.
#[derive(Debug, Args)]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Flags of `bailiff slurm check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Examples of `bailiff slurm`.
pub(crate) const EXAMPLES: &str = "Examples:
  sudo bailiff slurm check                   show the GPU map, and what slurm.conf lacks
  sudo bailiff slurm health                  check the GPUs that no job has, and drain the node

In slurm.conf:
  Prolog=/usr/lib/bailiff/slurm/prolog
  Epilog=/usr/lib/bailiff/slurm/epilog
  HealthCheckProgram=/usr/lib/bailiff/slurm/health

Exit codes: 0: success; 1: not clean, or a check failed; 2: unknown; 64: invalid flags.";

const HOOK: &str = "Examples:
  sudo SLURM_JOB_ID=1 SLURM_JOB_UID=1000 SLURM_JOB_GPUS=0,1 bailiff slurm prolog --wait 0s
                                             check two GPUs by hand, as for a job

slurmd sets the variables of the job: SLURM_JOB_ID, SLURM_JOB_UID, SLURM_JOB_GPUS, SLURMD_NODENAME.

Exit codes: 0: clean, tolerated, or invalid settings; 1: not clean; 2: unknown; 64: invalid flags.";

const HEALTH: &str = "Examples:
  sudo bailiff slurm health --json           check once, and print what was found and done

Exit codes: 0: clean, unknown, or another run is in progress; 1: not clean; 64: invalid flags.";

const CHECK: &str = "Examples:
  sudo bailiff slurm check                   check this node
  sudo bailiff slurm check --json | jq '.checks[] | select(.state != \"ok\")'

Exit codes: 0: no check failed; 1: a check failed; 64: invalid flags.";
