//! The command line of `doctor`, as it is written.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::flags::{Exporter, Machine, Pool};

/// Tells what works on this machine and what does not, and the way out.
///
/// It changes nothing. What is not installed, or not for this user to see, is skipped.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long any one of those asked may be silent.
    #[arg(long, value_name = "TIME", value_parser = crate::flags::span, default_value = "10s")]
    pub(crate) deadline: Duration,
    /// CUDA's library.
    #[arg(long, value_name = "PATH", default_value = "libcuda.so.1")]
    pub(crate) cuda_library: PathBuf,
    /// The quota library; if not told, it is looked for where `bailiff run` does.
    #[arg(long, env = "BAILIFF_QUOTA_LIBRARY", value_name = "PATH", hide_env_values = true)]
    pub(crate) quota_library: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    /// The enforcer's control socket.
    #[arg(long, value_name = "PATH", default_value = "/run/bailiff/enforcer.sock")]
    pub(crate) control: PathBuf,
    /// The enforcer's rules.
    #[arg(long, value_name = "FILE", default_value = "/etc/bailiff/rules.yaml")]
    pub(crate) rules: PathBuf,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

const EXAMPLES: &str = "Examples:
  bailiff doctor                             as this user
  sudo bailiff doctor                        with the rights to see all
  bailiff doctor --json | jq '.checks[] | select(.state == \"fail\")'

Exit codes: 0 nothing failed, 1 something did, 64 invalid flags.";
