//! The command line, as it is written.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// GPUs under a lease.
#[derive(Debug, Parser)]
#[command(name = "bailiff", version)]
pub(crate) struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// GPUs are handed out: to one at a time, in the order in which they were asked for
    #[command(subcommand)]
    Lease(Lease),
    /// Does what GPUGET's GPU.py does, with its flags; so does bailiff where it is called GPU.py
    #[command(disable_help_flag = true)]
    Gpuget(Words),
}

/// Words that are understood elsewhere.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// GPU.py's flags; --help tells them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub(crate) words: Vec<OsString>,
}

/// What can be done with leases.
#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// Runs a command on GPUs that nobody else has, and frees them when all that it started has ended
    Run(Run),
    /// Takes GPUs for a process; they are freed when it ends
    Acquire(Acquire),
    /// Gives GPUs back
    Release(Release),
    /// Lists the GPUs, who has them and who waits
    List(List),
    /// Begins a pool: says which GPUs are handed out
    Init(Init),
    /// Frees what the dead of this machine held
    Reap(Pool),
}

/// Where leases are kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct Pool {
    /// Redis, as `redis://HOST:PORT/DB` or `redis+unix:///PATH`.
    #[arg(
        long,
        env = "LEASE_REDIS_URL",
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379/0",
        hide_env_values = true
    )]
    pub(crate) redis: String,
    /// What all keys begin with, as GPU.py's --redis-prefix.
    #[arg(long, env = "LEASE_PREFIX", value_name = "PREFIX", default_value = "GPU")]
    pub(crate) prefix: String,
}

/// What is asked for.
#[derive(Debug, Clone, Args)]
pub(crate) struct Ask {
    /// How many GPUs; all or none.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gpus: u32,
    /// Waits no longer than this, such as 30m.
    #[arg(long, value_name = "TIME", conflicts_with = "nonblock")]
    pub(crate) wait: Option<String>,
    /// Does not wait.
    #[arg(long)]
    pub(crate) nonblock: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Runs a command.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// The command and its arguments, after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Takes GPUs.
#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// For this process; its end frees them. Without this for the one that runs this command.
    #[arg(long = "for", value_name = "PID")]
    pub(crate) holder: Option<u32>,
}

/// Gives GPUs back.
#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The lease, as acquire printed it.
    #[arg(value_name = "LEASE", env = "BAILIFF_LEASE_ID")]
    pub(crate) lease: String,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Lists.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Begins a pool.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The GPUs by their numbers, such as 0,1,4-7; without it all that the driver has.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpus: Option<String>,
    /// The driver's library.
    #[arg(long, value_name = "PATH", default_value = "libnvidia-ml.so.1")]
    pub(crate) nvml_library: PathBuf,
    /// Begins it anew though it was begun before; not while somebody holds a lease.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}
