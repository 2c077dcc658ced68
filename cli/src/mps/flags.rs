//! Flags of `bailiff mps`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{Machine, span};

/// Commands of `bailiff mps`.
#[derive(Debug, Subcommand)]
pub(crate) enum Mps {
    /// Show MPS daemons, servers, clients and problems
    ///
    /// Daemons and servers are found in /proc. Each daemon is queried with a timeout of two seconds. A daemon
    /// that hangs blocks every CUDA program that starts under it. The command changes nothing.
    Status(Status),
    /// Start an MPS control daemon and reserve GPUs for it
    ///
    /// The GPUs are set to compute mode `EXCLUSIVE_PROCESS`, so that only the MPS server can use them. Each
    /// executed command is printed. If the daemon does not respond, the compute modes are restored.
    Start(Start),
    /// Stop an MPS control daemon and reset the mode of its GPUs
    ///
    /// The daemon receives a quit command, never a signal. The command fails while programs use the daemon.
    /// After the daemon and its servers have exited, the GPUs are set to compute mode DEFAULT.
    Stop(Stop),
}

/// Flags of all `bailiff mps` commands.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Pipe directory, which identifies the daemon.
    ///
    /// Default: `CUDA_MPS_PIPE_DIRECTORY`, else `/tmp/nvidia-mps`.
    #[arg(long, value_name = "DIR")]
    pub(crate) pipe_dir: Option<PathBuf>,
    /// From `CUDA_MPS_PIPE_DIRECTORY`; --pipe-dir takes precedence.
    #[arg(long = "usual-pipe-dir", env = "CUDA_MPS_PIPE_DIRECTORY", hide = true)]
    pub(crate) default_pipe_dir: Option<PathBuf>,
    /// NVIDIA's nvidia-cuda-mps-control program.
    #[arg(long, value_name = "PATH", default_value = bailiff_mps::control::PROGRAM)]
    pub(crate) mps_control: PathBuf,
    /// Timeout of driver queries.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    pub(crate) deadline: Duration,
    #[command(flatten)]
    pub(crate) machine: Machine,
}

/// Flags of `bailiff mps status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Status {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Flags of `bailiff mps start`.
#[derive(Debug, Args)]
#[command(after_help = START)]
pub(crate) struct Start {
    /// GPUs of the daemon, by index or UUID, such as 0,1; default: all.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) gpu: Vec<String>,
    /// Keep running until the daemon exits, for use as a service.
    ///
    /// A termination signal stops the daemon.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Log directory of the daemon.
    #[arg(long, env = "CUDA_MPS_LOG_DIRECTORY", value_name = "DIR", default_value = bailiff_mps::place::DEFAULT_LOGS, hide_env = true)]
    pub(crate) log_dir: PathBuf,
    /// Print the commands without running them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// NVIDIA's nvidia-smi program, used to set compute modes.
    #[arg(long, value_name = "PATH", default_value = "nvidia-smi")]
    pub(crate) nvidia_smi: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Flags of `bailiff mps stop`.
#[derive(Debug, Args)]
#[command(after_help = STOP)]
pub(crate) struct Stop {
    /// Time to wait for servers to exit before forcing them to exit.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) timeout: Option<Duration>,
    /// Stop the daemon even if programs are using it; these programs fail.
    ///
    /// Servers are forced to exit after --timeout, by default 10 s.
    #[arg(long)]
    pub(crate) force: bool,
    /// NVIDIA's nvidia-smi program, used to set compute modes.
    #[arg(long, value_name = "PATH", default_value = "nvidia-smi")]
    pub(crate) nvidia_smi: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
}

pub(crate) const EXAMPLES: &str = "Examples:
  sudo bailiff mps status                    show daemons, servers and clients
  sudo bailiff mps start --gpu 0             share GPU 0 through MPS
  sudo bailiff mps stop                      stop the daemon, if no program uses it

Exit codes: 0: success; 1: a daemon does not respond (status), or a command failed;
64: invalid flags; 69: the daemon cannot be started, or does not respond; 75: the daemon or its
GPUs are in use.";

const STATUS: &str = "Examples:
  sudo bailiff mps status                    include the daemons of other users
  bailiff mps status --pipe-dir /run/mps0    show one daemon
  bailiff mps status --json | jq '.daemons[].servers[].clients[].pid'

Exit codes: 0: every daemon responds; 1: a daemon does not respond; 64: invalid flags.";

const START: &str = "Examples:
  sudo bailiff mps start --gpu 0             start a daemon for GPU 0
  sudo bailiff mps start --gpu 0 --dry-run   print the commands only
  sudo bailiff mps start --gpu 1 --pipe-dir /run/mps1 --log-dir /var/log/mps1
                                             start a second daemon; its clients need
                                             CUDA_MPS_PIPE_DIRECTORY=/run/mps1
  bailiff mps start --foreground             run in a systemd unit or a container

Do not set CUDA_VISIBLE_DEVICES for clients: the daemon renumbers its GPUs.

Exit codes: 0: the daemon responds; 1: a command failed; 64: invalid flags; 69: the daemon cannot
be started; 75: the GPUs are in use.";

const STOP: &str = "Examples:
  sudo bailiff mps stop                      stop the daemon, if no program uses it
  sudo bailiff mps stop --timeout 30s        force servers to exit after 30 s
  sudo bailiff mps stop --force --timeout 5s stop it even if programs are using it

Exit codes: 0: the daemon has exited; 1: a command failed; 64: invalid flags; 69: no daemon
responds, or the daemon refuses; 75: the daemon has clients, or does not exit in time.";
