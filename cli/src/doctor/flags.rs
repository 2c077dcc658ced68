//! The flags of `bailiff doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::{Exporter, Machine, Pool};

/// The flags of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Timeout of each check.
    #[arg(long, value_name = "TIME", value_parser = crate::args::span, default_value = "10s")]
    pub(crate) deadline: Duration,
    /// CUDA driver library.
    #[arg(long, value_name = "PATH", default_value = "libcuda.so.1")]
    pub(crate) cuda_library: PathBuf,
    /// Quota library; default: searched for next to this program and in /usr/lib.
    #[arg(long, env = "BAILIFF_QUOTA_LIBRARY", value_name = "PATH", hide_env_values = true)]
    pub(crate) quota_library: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    /// Control socket of bailiff-enforcer.
    #[arg(long, value_name = "PATH", default_value = "/run/bailiff/enforcer.sock")]
    pub(crate) control: PathBuf,
    /// Rules file of bailiff-enforcer.
    #[arg(long, value_name = "FILE", default_value = "/etc/bailiff/rules.yaml")]
    pub(crate) rules: PathBuf,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

const EXAMPLES: &str = "Examples:
  bailiff doctor                             check as the current user
  sudo bailiff doctor                        check with access to all processes
  bailiff doctor --json | jq '.checks[] | select(.state == \"fail\")'

Exit codes: 0: no check failed; 1: a check failed; 64: invalid flags.";
