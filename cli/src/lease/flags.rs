//! The flags of `bailiff lease`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::examples;
use crate::args::{Exporter, Pool, TimeLimit, span};

/// The commands of `lease`.
#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// Run a command on leased GPUs and release them when it exits
    Run(Run),
    /// Lease GPUs for a running process or for a fixed time
    Acquire(Acquire),
    /// Lease the GPUs that a process already uses
    Adopt(Adopt),
    /// Release a lease
    Release(Release),
    /// Extend a lease that has an expiry time
    Extend(Extend),
    /// List the GPUs of the pool, their leases and the queue
    #[command(after_help = examples::LIST)]
    List(List),
    /// Show a one-line pool summary and your own leases
    #[command(after_help = examples::STATUS)]
    Status(List),
    /// List the waiting requests in queue order
    #[command(after_help = examples::QUEUE)]
    Queue(List),
    /// Print the lease event log
    Log(Log),
    /// Create the pool of GPUs to lease
    Init(Init),
    /// Release leases on this machine whose processes have exited
    Reap(Reap),
    /// Hold the locks of a lease that `acquire` took
    #[command(hide = true)]
    Hold(Hold),
}

/// The GPUs that a lease request asks for, and how long it waits.
#[derive(Debug, Clone, Args)]
pub(crate) struct LeaseRequest {
    /// Number of GPUs to lease.
    ///
    /// The request is granted in full or not at all. Default: 1, or all GPUs listed in --gpu.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gpus: Option<u32>,
    /// Lease only these GPUs, by index or UUID, such as 0,1.
    ///
    /// All listed GPUs are leased, unless -n requests fewer.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: Option<String>,
    /// Maximum time to wait for GPUs, such as 30m.
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// Fail immediately instead of waiting.
    #[arg(long)]
    pub(crate) nonblock: bool,
    /// Queue priority, -100 to 100; values above 0 require root.
    ///
    /// Requests with a higher priority are served first.
    #[arg(long, value_name = "P", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub(crate) priority: i32,
    /// Text that `bailiff lease list` shows to other users.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Job ID to record in the lease.
    #[arg(long, value_name = "ID", env = "SLURM_JOB_ID", hide_env = true)]
    pub(crate) job: Option<String>,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease run`.
#[derive(Debug, Args)]
#[command(after_help = examples::RUN)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) request: LeaseRequest,
    #[command(flatten)]
    pub(crate) time_limit: TimeLimit,
    /// What to do with the command if its lease is lost.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = OnLost::Warn)]
    pub(crate) on_lost: OnLost,
    /// Interval at which the lease is renewed.
    ///
    /// A lease that is not renewed for one minute can be granted to another request.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "20s")]
    pub(crate) renew: Duration,
    /// Set the GPU variables to indexes instead of UUIDs.
    #[arg(long)]
    pub(crate) index: bool,
    /// NVML library, used to check that GPU indexes have not changed.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// Command to run and its arguments, after `--`.
    ///
    /// With leased GPUs, `{index}` in an argument is replaced by the indexes under which the command sees the
    /// GPUs (`0` or `0,1`), and `{{index}}` by a literal `{index}`. `CUDA_VISIBLE_DEVICES` is set as well.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The reaction to a lost lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Print a warning and let the command run.
    Warn,
    /// Send SIGTERM, then SIGKILL after --grace.
    Term,
    /// Send SIGKILL.
    Kill,
}

/// The flags of `lease acquire`.
#[derive(Debug, Args)]
#[command(after_help = examples::ACQUIRE)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) request: LeaseRequest,
    /// Process that holds the lease; its exit releases the GPUs.
    ///
    /// Default: the shell or script that runs this command.
    #[arg(long = "for", value_name = "PID", conflicts_with = "duration")]
    pub(crate) holder: Option<u32>,
    /// Lease for a fixed time, such as 2h, independent of any process.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// Output format.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Env)]
    pub(crate) format: Format,
}

/// The output formats of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Shell exports, for eval "$(bailiff lease acquire)".
    Env,
    /// GPU indexes, such as 0,3.
    Ids,
    /// GPU UUIDs.
    Uuid,
    /// A JSON object with the fields of `list --json`.
    Json,
}

/// The flags of `lease adopt`.
#[derive(Debug, Args)]
#[command(after_help = examples::ADOPT)]
pub(crate) struct Adopt {
    /// GPUs that the process uses, by index or UUID, such as 3 or 0,1.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: String,
    /// Process that holds the lease; its exit releases the GPUs.
    #[arg(long, value_name = "PID")]
    pub(crate) pid: u32,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease release`.
#[derive(Debug, Args)]
#[command(after_help = examples::RELEASE)]
pub(crate) struct Release {
    /// Lease ID, as printed by `acquire`.
    #[arg(value_name = "LEASE", env = "BAILIFF_LEASE_ID", required_unless_present_any = ["gpu", "mine"])]
    pub(crate) lease: Option<String>,
    /// Release the lease on this GPU, by index or UUID.
    #[arg(long, value_name = "GPU", conflicts_with = "mine")]
    pub(crate) gpu: Option<String>,
    /// Release all your `acquire` and `adopt` leases on this machine.
    #[arg(long)]
    pub(crate) mine: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease extend`.
#[derive(Debug, Args)]
#[command(after_help = examples::EXTEND)]
pub(crate) struct Extend {
    /// Lease ID, as printed by `acquire`.
    #[arg(value_name = "LEASE")]
    pub(crate) lease: String,
    /// New remaining time, counted from now, such as 2h.
    #[arg(value_name = "TIME", value_parser = span)]
    pub(crate) span: Duration,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease list`, `lease status` and `lease queue`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease log`.
#[derive(Debug, Args)]
#[command(after_help = examples::LOG)]
pub(crate) struct Log {
    /// Keep printing new events.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Number of past events to print.
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 100)]
    pub(crate) lines: u64,
    /// Print one JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease init`.
#[derive(Debug, Args)]
#[command(after_help = examples::INIT)]
pub(crate) struct Init {
    /// Indexes of the GPUs in the pool, such as 0,1,4-7; default: all.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpus: Option<String>,
    /// NVML library; default: libnvidia-ml.so.1 from the library search path.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// Recreate an existing pool; refused while a lease is held.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The flags of `lease reap`.
#[derive(Debug, Args)]
#[command(after_help = examples::REAP)]
pub(crate) struct Reap {
    /// Print what would be released, without releasing it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also release unused GPUs that were taken with GPU.py and whose process has exited.
    #[arg(long)]
    pub(crate) legacy: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
}

/// The flags of `lease hold`.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// Lease ID; `release` finds this process by it.
    pub(crate) lease: String,
    /// Hold until this process exits.
    #[arg(long = "for", value_name = "PID", requires = "start")]
    pub(crate) holder: Option<u32>,
    /// Start time of the process given by --for, in clock ticks since boot.
    #[arg(long, value_name = "TICKS")]
    pub(crate) start: Option<u64>,
    /// Hold for this time.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// Lock file descriptors to keep open; all others are closed.
    #[arg(long, value_name = "FDS", value_delimiter = ',')]
    pub(crate) keep: Vec<i32>,
}

/// Parses the renewal interval, which must be far below the minute after which a lease is lost.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = span(text)?;
    let allowed = Duration::from_millis(10)..=Duration::from_secs(30);
    if allowed.contains(&interval) {
        Ok(interval)
    } else {
        Err("the value must be from 10ms to 30s".to_owned())
    }
}
