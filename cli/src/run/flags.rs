//! The flags of `bailiff run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgGroup, Args};

use crate::lease::flags;

const EXAMPLES: &str = "\
Examples:
  bailiff run --vram 8GiB -- python train.py
      Limit all processes of train.py together to 8 GiB on each GPU. Allocations beyond
      that fail with the driver's out-of-memory error.
  bailiff run --gpus 2 --wait 1h -- torchrun --nproc-per-node 2 train.py
      Wait up to an hour for two GPUs, and release them when the command exits.
  bailiff run --gpus 1 --vram 40GiB --idle-timeout 30m --max-time 12h -- python train.py
      Also stop the command when its GPU has been idle for half an hour (SIGQUIT) or after
      twelve hours (SIGTERM), and kill remaining processes 10 s later.

Exit codes:
  the command's exit code; 128 plus the signal number if a signal ended the command or the
    wait for GPUs; 126 or 127 if the command cannot be started
  124   the command was stopped by --max-time or --idle-timeout; or no GPU, or not enough
        free memory (--min-free), became available within --wait
  75    no idle GPU, or not enough free memory (--nonblock)
  74    the lease was lost (--on-lost term or kill)
  69    no quota library, no directory for the quota file, no GPU pool, or no NVIDIA driver
  64    invalid flags, more GPUs than the pool has, or more memory than the GPUs have
  3     the lease request was cancelled by another process

The GPUs are released and the quota file is removed when the command and all processes that
it started have exited. Signals are forwarded to the command. If bailiff itself is killed by
SIGKILL, the command keeps running with its GPUs and its quota, but without time limits.
A signal to the whole process group, as sent by `timeout`, reaches the command twice.
If a process that already has children executes bailiff (`exec bailiff run`), bailiff neither
waits for nor stops orphaned processes of the command.";

/// Help heading of the lease flags.
const LEASES: &str = "With --gpus or --gpu";

/// The minimum of `--idle-timeout`.
const MIN_IDLE: Duration = Duration::from_millis(100);

/// Flags that are valid only with a lease.
const LEASE_FLAGS: [&str; 7] = ["priority", "note", "redis", "directory", "on_lost", "renew", "index"];

/// The flags of `run`.
#[derive(Debug, Args)]
#[group(skip)]
#[command(after_help = EXAMPLES, mut_args(adapt_lease_flag), group(lease()), group(waits()))]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lease: flags::Run,
    /// Limit GPU memory of all processes together, per GPU, such as 8GiB.
    ///
    /// On each GPU, the command and all processes that it starts share the limit. A process that cannot open
    /// the quota file, for example because it changed its user, cannot allocate GPU memory.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    pub(crate) vram: Option<u64>,
    /// Quota library; default: searched for next to this program and in /usr/lib.
    #[arg(long, env = "BAILIFF_QUOTA_LIBRARY", value_name = "PATH", hide_env_values = true)]
    pub(crate) quota_library: Option<PathBuf>,
    /// Directory of the quota file.
    ///
    /// Default: `/run/bailiff/quota/UID` if root has created its parent, else
    /// `$XDG_RUNTIME_DIR/bailiff/quota`.
    #[arg(long, env = "BAILIFF_QUOTA_DIR", value_name = "DIR", hide_env_values = true)]
    pub(crate) quota_dir: Option<PathBuf>,
    /// Stop the command when its GPUs have been idle for this time.
    ///
    /// Idle means a utilization below 1 % in every sample of the period. Samples are taken every 5 s, and at
    /// least three times in the period. Samples without data do not count as idle. The command receives SIGQUIT;
    /// processes that remain after --grace are killed.
    #[arg(long, value_name = "TIME", value_parser = idle)]
    pub(crate) idle_timeout: Option<Duration>,
    /// Start only when each visible GPU has this much free memory.
    ///
    /// The wait is limited by --wait and disabled by --nonblock. Leased GPUs are held during the wait.
    #[arg(long, value_name = "SIZE", value_parser = bailiff_size::size)]
    pub(crate) min_free: Option<u64>,
    /// Do not print a summary when the command exits.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl Run {
    /// Returns whether leased GPUs are requested.
    pub(crate) fn requests_gpus(&self) -> bool {
        self.lease.request.gpus.is_some() || self.lease.request.gpu.is_some()
    }

    /// Returns whether the driver is queried, for memory sizes or for the command's usage.
    pub(crate) fn needs_sampler(&self) -> bool {
        self.idle_timeout.is_some() || !self.amounts().is_empty() || !self.quiet
    }

    /// Returns the requested amounts of memory, with the flags that set them.
    pub(crate) fn amounts(&self) -> Vec<(&'static str, u64)> {
        let named = [("--vram", self.vram), ("--min-free", self.min_free)];
        named.into_iter().filter_map(|(flag, bytes)| Some((flag, bytes?))).collect()
    }
}

fn lease() -> ArgGroup {
    ArgGroup::new("lease").args(["gpus", "gpu"]).multiple(true)
}

/// Returns the flags that make the command wait.
fn waits() -> ArgGroup {
    ArgGroup::new("waits").args(["gpus", "gpu", "min_free"]).multiple(true)
}

/// Adjusts the flags of `lease run`: in `bailiff run` a lease is optional.
fn adapt_lease_flag(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "gpus" => {
            let help = "Number of GPUs to lease; without -n or --gpu, no GPU is leased";
            arg.help(help).long_help(format!("{help}.\n\nThe request is granted in full or not at all"))
        }
        "wait" => arg.requires("waits").help("Maximum time to wait for GPUs and --min-free, such as 30m"),
        "nonblock" => arg.requires("waits"),
        "nvml_library" => arg.help("NVML library; default: libnvidia-ml.so.1 from the library search path"),
        id if LEASE_FLAGS.contains(&id) => arg.requires("lease").help_heading(LEASES),
        // These may also come from the environment, so they are accepted without a lease.
        "job" | "stream" | "prefix" => arg.help_heading(LEASES),
        _ => arg,
    }
}

fn idle(text: &str) -> Result<Duration, String> {
    let idle = crate::args::span(text)?;
    // The driver is sampled three times in this period.
    if idle < MIN_IDLE { Err("the minimum is 100ms".to_owned()) } else { Ok(idle) }
}

pub(crate) fn above_zero(text: &str) -> Result<u64, String> {
    let bytes = bailiff_size::size(text).map_err(|error| error.to_string())?;
    // With 0 the quota library would refuse every allocation.
    if bytes == 0 { Err("the value must be above 0".to_owned()) } else { Ok(bytes) }
}
