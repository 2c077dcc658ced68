//! The command line of `run`, as it is written.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgGroup, Args};

use crate::flags;

const EXAMPLES: &str = "\
Examples:
  bailiff run --vram 8GiB -- python train.py
      All processes of train.py together get 8 GiB of each GPU, and the driver's own
      error past that.
  bailiff run --gpus 2 --wait 1h -- torchrun --nproc-per-node 2 train.py
      Waits its turn for two GPUs, at most an hour, and gives them back at the end.
  bailiff run --gpus 1 --vram 40GiB --idle-timeout 30m --max-time 12h -- python train.py
      Also ends it once its GPU was idle for half an hour (SIGQUIT), or after twelve hours
      (SIGTERM), and kills what is left 10 s later.

Exit codes:
  the command's own; 128 and the signal's number where one ended it, or the wait for GPUs;
  126 and 127 where it cannot run
  124   --max-time was up, and the command had not ended; it was idle for --idle-timeout; no
        GPU, or not --min-free, within --wait
  75    no GPU is idle, or not --min-free (--nonblock)
  74    the lease was lost (--on-lost term, kill)
  69    no quota library, no place for its file, no pool of GPUs, no driver to tell who is idle
  64    invalid flags, more GPUs than there are, or more memory than they have
  3     somebody has taken it out of the line

However it ends, GPUs are given back and the quota's file is removed, once all have ended
whom the command has started. Signals are passed on to the command. Where bailiff itself is
killed by SIGKILL the command goes on, with its GPUs and its quota, and nothing ends it.
A signal to the whole process group, as `timeout` sends, reaches the command twice.
Whoever had children and became bailiff by `exec` keeps them: then whoever of the command's
loses his parent is neither waited for nor ended.";

/// Above those of a lease in the help.
const LEASES: &str = "With --gpus or --gpu";

const SHORTEST: Duration = Duration::from_millis(100);

/// Flags that say what a lease is like, and mean nothing without one.
const OF_LEASES: [&str; 7] = ["priority", "note", "redis", "directory", "on_lost", "renew", "index"];

/// Runs a command with a limit of GPU memory, on GPUs of its own, for a time; each where it is asked for
#[derive(Debug, Args)]
#[group(skip)]
#[command(after_help = EXAMPLES, mut_args(needs_a_lease), group(lease()), group(awaited()))]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lease: flags::Run,
    /// The command and all that it starts share so much memory of each GPU, such as 8GiB or 1.5GiB, at most what the
    /// GPU has. Who cannot use the quota's file, as after a change of user, is granted none.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    pub(crate) vram: Option<u64>,
    /// The quota library; if not told, it is looked for beside this program and in /usr/lib.
    #[arg(long, env = "BAILIFF_QUOTA_LIBRARY", value_name = "PATH", hide_env_values = true)]
    pub(crate) quota_library: Option<PathBuf>,
    /// Where the quota's file is made; if not told, `/run/bailiff/quota/UID` where root has made its parent, or
    /// `$XDG_RUNTIME_DIR/bailiff/quota`.
    #[arg(long, env = "BAILIFF_QUOTA_DIR", value_name = "DIR", hide_env_values = true)]
    pub(crate) quota_dir: Option<PathBuf>,
    /// The command is told to end (SIGQUIT) once its GPUs were below 1 % of use for so long, and killed after the
    /// grace. A sample each 5 s must say so, without a break; for less than 15 s it is three samples. What could not be
    /// observed is not idle.
    #[arg(long, value_name = "TIME", value_parser = idle)]
    pub(crate) idle_timeout: Option<Duration>,
    /// Starts only once each GPU that the command can see has so much free memory. --wait says how long that may take,
    /// --nonblock that it may not; GPUs of a lease are held meanwhile.
    #[arg(long, value_name = "SIZE", value_parser = bailiff_size::size)]
    pub(crate) min_free: Option<u64>,
    /// No summary at the end.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl Run {
    /// Whether GPUs of its own are asked for.
    pub(crate) fn wants_gpus(&self) -> bool {
        self.lease.request.gpus.is_some() || self.lease.request.gpu.is_some()
    }

    /// Whether the driver is asked: for the GPUs' sizes, or how the command uses them.
    pub(crate) fn wants_a_watch(&self) -> bool {
        self.idle_timeout.is_some() || !self.amounts().is_empty() || !self.quiet
    }

    /// The amounts of memory that a GPU must have, with the flags that name them.
    pub(crate) fn amounts(&self) -> Vec<(&'static str, u64)> {
        let named = [("--vram", self.vram), ("--min-free", self.min_free)];
        named.into_iter().filter_map(|(flag, bytes)| Some((flag, bytes?))).collect()
    }
}

fn lease() -> ArgGroup {
    ArgGroup::new("lease").args(["gpus", "gpu"]).multiple(true)
}

/// What may be waited for.
fn awaited() -> ArgGroup {
    ArgGroup::new("awaited").args(["gpus", "gpu", "min_free"]).multiple(true)
}

fn needs_a_lease(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "gpus" => arg.help(
            "GPUs that nobody else has, so many; all or none. Without this and --gpu none is taken for it",
        ),
        "wait" => {
            arg.requires("awaited").help("Waits for GPUs and --min-free no longer than this, such as 30m")
        }
        "nonblock" => arg.requires("awaited"),
        "nvml_library" => arg.help("The driver's library, which is asked who is idle, and how much is free"),
        id if OF_LEASES.contains(&id) => arg.requires("lease").help_heading(LEASES),
        // What the environment may say too is no fault without a lease.
        "job" | "stream" | "prefix" => arg.help_heading(LEASES),
        _ => arg,
    }
}

fn idle(text: &str) -> Result<Duration, String> {
    let idle = flags::span(text)?;
    // The driver is asked three times in it.
    if idle < SHORTEST { Err("it is at least 100ms".to_owned()) } else { Ok(idle) }
}

fn above_zero(text: &str) -> Result<u64, String> {
    let bytes = bailiff_size::size(text).map_err(|error| error.to_string())?;
    // The library would refuse every request.
    if bytes == 0 { Err("it is above 0".to_owned()) } else { Ok(bytes) }
}
