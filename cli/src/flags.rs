//! The command line, as it is written.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::lease::examples;
pub(crate) use crate::lease::place::{Place, Pool};
use crate::{completions, doctor, gpuget, idle_timeout, info, mps, run};

/// Nothing of ours lasts longer, and a clock can still tell its end.
const LONGEST: Duration = Duration::from_hours(100 * 366 * 24);

const EXAMPLES: &str = "\
Examples:
  bailiff doctor                             what works on this machine, and what does not
  bailiff info                               who holds memory of GPUs, and who uses them
  bailiff run --vram 8GiB -- python train.py
                                             with 8 GiB of each GPU at most
  sudo bailiff lease init                    from now on GPUs are handed out
  bailiff lease run -- python train.py       waits for a GPU that nobody else has

Exit codes: 0 done, 1 failed, 64 invalid flags; `--help` of a command tells its own.";

/// What a user of GPUs needs: GPUs under a lease, and who holds which memory.
#[derive(Debug, Parser)]
#[command(name = "bailiff", version, after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command with a limit of GPU memory, on GPUs of its own, for a time; each where it is asked for
    Run(Box<run::flags::Run>),
    /// Shows each GPU: its memory, who holds it, and whether they use it
    Info(info::flags::Info),
    /// Tells what works on this machine and what does not, and the way out
    Doctor(doctor::flags::Doctor),
    /// GPUs are handed out: to one at a time, in the order in which they were asked for
    #[command(subcommand, after_help = examples::LEASE)]
    Lease(Box<Lease>),
    /// NVIDIA's MPS: shows daemons, servers and clients; starts and stops a daemon
    #[command(subcommand, after_help = mps::flags::EXAMPLES)]
    Mps(mps::flags::Mps),
    /// Prints what a shell needs in order to complete the words of this command
    Completions(completions::Completions),
    /// Does what GPUGET's GPU.py does, with its flags; so does bailiff where it is called GPU.py
    #[command(disable_help_flag = true, after_help = gpuget::EXAMPLES)]
    Gpuget(Words),
    /// Ends a command that leaves its GPUs idle, as `gpu_idle_timeout.py` does; also where bailiff is called so
    #[command(override_help = idle_timeout::HELP, after_help = idle_timeout::EXAMPLES)]
    IdleTimeout(Box<idle_timeout::Flags>),
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
    /// Takes GPUs for a process, or for a time; they are freed when it ends
    Acquire(Acquire),
    /// Takes a GPU for a process that runs on it already
    Adopt(Adopt),
    /// Gives GPUs back
    Release(Release),
    /// Lets a lease that has an end of its own last longer
    Extend(Extend),
    /// Lists the GPUs, who has them and who waits
    #[command(after_help = examples::LIST)]
    List(List),
    /// Shows the pool in one line, and what you hold and wait for
    #[command(after_help = examples::STATUS)]
    Status(List),
    /// Lists who waits, in the order in which they will be served
    #[command(after_help = examples::QUEUE)]
    Queue(List),
    /// Tells what happened: who was given what, and what became of it
    Log(Log),
    /// Begins a pool: says which GPUs are handed out
    Init(Init),
    /// Frees what the dead of this machine held
    Reap(Reap),
    /// Keeps a lease that `acquire` took
    #[command(hide = true)]
    Hold(Hold),
}

/// What is asked for.
#[derive(Debug, Clone, Args)]
pub(crate) struct LeaseRequest {
    /// How many GPUs; all or none. One, unless --gpu names some.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gpus: Option<u32>,
    /// These, by number or UUID, such as 0,1; all of them, or with -n so many of them.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: Option<String>,
    /// Waits no longer than this, such as 30m.
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// Does not wait.
    #[arg(long)]
    pub(crate) nonblock: bool,
    /// Before those of a lower one, -100 to 100; above 0 is for root.
    #[arg(long, value_name = "P", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub(crate) priority: i32,
    /// A word for others, who see it in `list`.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The job that it is for.
    #[arg(long, value_name = "ID", env = "SLURM_JOB_ID", hide_env = true)]
    pub(crate) job: Option<String>,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Where bailiff-exporter is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Exporter {
    /// The exporter's stream, which tells who uses a GPU.
    #[arg(
        long,
        env = "BAILIFF_STREAM",
        value_name = "PATH",
        default_value = "/run/bailiff/stream.sock",
        hide_env = true
    )]
    pub(crate) stream: PathBuf,
}

/// What a look at this machine itself needs.
#[derive(Debug, Clone, Args)]
pub(crate) struct Machine {
    /// The driver's library; by default the system is searched for libnvidia-ml.so.1.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// Where the host's /proc is mounted.
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    pub(crate) procfs: PathBuf,
}

/// How long a command may last.
#[derive(Debug, Clone, Args)]
pub(crate) struct Terms {
    /// The command is told to end after this time, such as 4h, and killed after a grace.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) max_time: Option<Duration>,
    /// Between the request to end and the kill of all that is left.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    pub(crate) grace: Duration,
}

/// Runs a command.
#[derive(Debug, Args)]
#[command(after_help = examples::RUN)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) request: LeaseRequest,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// What becomes of the command where somebody else got its GPUs.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = OnLost::Warn)]
    pub(crate) on_lost: OnLost,
    /// The lease is renewed so often; after a minute without, others may take the holder for lost.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "20s")]
    pub(crate) renew: Duration,
    /// Names GPUs by number, for programs that understand no UUIDs.
    #[arg(long)]
    pub(crate) index: bool,
    /// The driver's library, which is asked whether numbers still mean the same.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// The command and its arguments, after `--`. Where it has GPUs of its own, `{index}` becomes the numbers that it knows
    /// them by, `0` or `0,1`, and `{{index}}` stays `{index}`; its environment has them too (`CUDA_VISIBLE_DEVICES`).
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What becomes of a command whose lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// It goes on, and it is said.
    Warn,
    /// It is told to end, and killed after a grace.
    Term,
    /// It is killed.
    Kill,
}

/// Takes GPUs.
#[derive(Debug, Args)]
#[command(after_help = examples::ACQUIRE)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) request: LeaseRequest,
    /// For this process, whose end frees them. Without this, for the shell or script that runs this command.
    #[arg(long = "for", value_name = "PID", conflicts_with = "duration")]
    pub(crate) holder: Option<u32>,
    /// For so long, such as 2h, whoever lives or dies.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// What is printed.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Env)]
    pub(crate) format: Format,
}

/// How a grant is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines for a shell: eval "$(bailiff lease acquire)".
    Env,
    /// The numbers of the GPUs, 0,3.
    Ids,
    /// Their UUIDs.
    Uuid,
    /// An object, as list --json has it.
    Json,
}

/// Takes a GPU for whom has it.
#[derive(Debug, Args)]
#[command(after_help = examples::ADOPT)]
pub(crate) struct Adopt {
    /// The GPUs that it runs on, by number or UUID, such as 3 or 0,1.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: String,
    /// The process; its end frees them.
    #[arg(long, value_name = "PID")]
    pub(crate) pid: u32,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Gives GPUs back.
#[derive(Debug, Args)]
#[command(after_help = examples::RELEASE)]
pub(crate) struct Release {
    /// The lease, as acquire printed it.
    #[arg(value_name = "LEASE", env = "BAILIFF_LEASE_ID", required_unless_present_any = ["gpu", "mine"])]
    pub(crate) lease: Option<String>,
    /// The lease of this GPU, by number or UUID.
    #[arg(long, value_name = "GPU", conflicts_with = "mine")]
    pub(crate) gpu: Option<String>,
    /// All that you have taken with `acquire` and `adopt` on this machine.
    #[arg(long)]
    pub(crate) mine: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Gives more time.
#[derive(Debug, Args)]
#[command(after_help = examples::EXTEND)]
pub(crate) struct Extend {
    /// The lease, as acquire printed it.
    #[arg(value_name = "LEASE")]
    pub(crate) lease: String,
    /// It ends so long from now, such as 2h.
    #[arg(value_name = "TIME", value_parser = span)]
    pub(crate) span: Duration,
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

/// Tells what happened.
#[derive(Debug, Args)]
#[command(after_help = examples::LOG)]
pub(crate) struct Log {
    /// Goes on with what happens from now on.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// So many events, the newest.
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 100)]
    pub(crate) lines: u64,
    /// Prints JSON, one object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Begins a pool.
#[derive(Debug, Args)]
#[command(after_help = examples::INIT)]
pub(crate) struct Init {
    /// The GPUs by their numbers, such as 0,1,4-7; without it all that the driver has.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpus: Option<String>,
    /// The driver's library; by default the system is searched for libnvidia-ml.so.1.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// Begins it again though it was begun before; not while somebody holds a lease.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Frees what the dead held.
#[derive(Debug, Args)]
#[command(after_help = examples::REAP)]
pub(crate) struct Reap {
    /// Print what would be freed, and free nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also free GPUs taken with GPU.py whose process has ended and on which no process is.
    #[arg(long)]
    pub(crate) legacy: bool,
    #[command(flatten)]
    pub(crate) pool: Pool,
    #[command(flatten)]
    pub(crate) exporter: Exporter,
}

/// Keeps a lease for somebody.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// The lease, by which whoever releases it knows this process.
    pub(crate) lease: String,
    /// As long as this process lives.
    #[arg(long = "for", value_name = "PID", requires = "start")]
    pub(crate) holder: Option<u32>,
    /// When it began, in clock ticks.
    #[arg(long, value_name = "TICKS")]
    pub(crate) start: Option<u64>,
    /// So long.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// The descriptors of its locks; all others are closed.
    #[arg(long, value_name = "FDS", value_delimiter = ',')]
    pub(crate) keep: Vec<i32>,
}

/// A time that can be added to any moment.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if span <= LONGEST { Ok(span) } else { Err("it is at most 100 years".to_owned()) }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = span(text)?;
    let allowed = Duration::from_millis(10)..=Duration::from_secs(30);
    if allowed.contains(&interval) { Ok(interval) } else { Err("it is from 10ms to 30s".to_owned()) }
}
