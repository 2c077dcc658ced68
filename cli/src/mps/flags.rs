//! The command line of `mps`, as it is written.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::flags::{Machine, span};

/// What can be done with MPS.
#[derive(Debug, Subcommand)]
pub(crate) enum Mps {
    /// Shows daemons, servers and clients, limits and compute modes, and what is wrong with them
    Status(Status),
    /// Starts a control daemon for GPUs that nobody else can use then
    Start(Start),
    /// Ends a control daemon, and lets others use its GPUs
    Stop(Stop),
}

/// What all of them need.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The daemon's pipe directory, by which daemons are told apart; `/tmp/nvidia-mps` if not told. Also by
    /// `CUDA_MPS_PIPE_DIRECTORY`.
    #[arg(long, value_name = "DIR")]
    pub(crate) pipe_dir: Option<PathBuf>,
    /// What the environment says.
    #[arg(long, env = "CUDA_MPS_PIPE_DIRECTORY", hide = true)]
    pub(crate) usual_pipe_dir: Option<PathBuf>,
    /// NVIDIA's control program.
    #[arg(long, value_name = "PATH", default_value = bailiff_mps::control::PROGRAM)]
    pub(crate) mps_control: PathBuf,
    /// How long the driver may take to answer.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    pub(crate) deadline: Duration,
    #[command(flatten)]
    pub(crate) machine: Machine,
}

/// Shows what MPS does on this machine. It changes nothing.
///
/// Daemons and servers are found in /proc by their programs; each daemon is asked by NVIDIA's own client, which is given two
/// seconds: one that hangs, hangs every CUDA program that starts.
#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Status {
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Starts a control daemon.
///
/// Its GPUs are set to take one process alone, which is then the MPS server, so that no program can compute beside it by
/// mistake. Each command that is run is shown. Where the daemon does not answer, the compute modes are as before again.
#[derive(Debug, Args)]
#[command(after_help = START)]
pub(crate) struct Start {
    /// These GPUs, by number or UUID, such as 0,1; all without it.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) gpu: Vec<String>,
    /// Stays until the daemon ends, as a service does; a signal to end makes it stop the daemon.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Where the daemon writes its logs; `/var/log/nvidia-mps` if not told. Also by `CUDA_MPS_LOG_DIRECTORY`.
    #[arg(long, env = "CUDA_MPS_LOG_DIRECTORY", value_name = "DIR", default_value = bailiff_mps::place::DEFAULT_LOGS, hide_env = true)]
    pub(crate) log_dir: PathBuf,
    /// Shows the commands, and runs none.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Sets compute modes.
    #[arg(long, value_name = "PATH", default_value = "nvidia-smi")]
    pub(crate) nvidia_smi: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Ends a control daemon and its servers by asking it, never by a signal.
///
/// It is refused while programs compute under it. Once daemon and servers have gone, the GPUs take any number of processes again.
#[derive(Debug, Args)]
#[command(after_help = STOP)]
pub(crate) struct Stop {
    /// How long servers may take to end before the daemon forces them to.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) timeout: Option<Duration>,
    /// Though programs compute under it: they fail when their server is forced to end, after 10 s without --timeout.
    #[arg(long)]
    pub(crate) force: bool,
    /// Sets compute modes.
    #[arg(long, value_name = "PATH", default_value = "nvidia-smi")]
    pub(crate) nvidia_smi: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
}

pub(crate) const EXAMPLES: &str = "Examples:
  sudo bailiff mps status                    what runs, and what is wrong with it
  sudo bailiff mps start --gpu 0             one GPU for programs that share it
  sudo bailiff mps stop                      once no program computes under it

Exit codes: 0 done, 1 a daemon does not answer (status), or a command failed, 64 invalid flags,
69 no daemon can be had, or none answers, 75 it or its GPUs are in use.";

const STATUS: &str = "Examples:
  sudo bailiff mps status                    with the right to see where daemons of others are
  bailiff mps status --pipe-dir /run/mps0    one daemon
  bailiff mps status --json | jq '.daemons[].servers[].clients[].pid'

Exit codes: 0 every daemon that there is answers, 1 one does not, 64 invalid flags.";

const START: &str = "Examples:
  sudo bailiff mps start --gpu 0             one GPU
  sudo bailiff mps start --gpu 0 --dry-run   what would be run
  sudo bailiff mps start --gpu 1 --pipe-dir /run/mps1 --log-dir /var/log/mps1
                                             a second daemon; its clients need
                                             CUDA_MPS_PIPE_DIRECTORY=/run/mps1
  bailiff mps start --foreground             in a systemd unit or a container

Do not set CUDA_VISIBLE_DEVICES for clients: the daemon renumbers its GPUs.

Exit codes: 0 the daemon answers, 1 a command failed, 64 invalid flags,
69 no daemon can be had, 75 somebody is on those GPUs.";

const STOP: &str = "Examples:
  sudo bailiff mps stop                      once no program computes under it
  sudo bailiff mps stop --timeout 30s        servers that do not end are forced to
  sudo bailiff mps stop --force --timeout 5s programs under it fail

Exit codes: 0 it has gone, 1 a command failed, 64 invalid flags, 69 no daemon
answers, or it refuses, 75 it has clients, or does not end in time.";
