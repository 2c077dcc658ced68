//! `bailiff gpuget`, also started under the name `GPU.py`: the flags, texts and exit codes of GPUGET's GPU.py on top of
//! bailiff's leases.

mod arguments;
mod environment;
mod get;
mod pool;
mod query;
mod visible;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use bailiff_lease::Leases as _;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{LeaseError, Pool};

use crate::lease::LEASE;
use crate::lease::abandoned::{abandoned, freeable};
use crate::output::printable;
use crate::python::usage;
use arguments::{Arguments, Parsed, parse};
use environment::{Environment, PoolAddress};

/// The help in argparse's layout.
const HELP: &str = include_str!("help.txt");

/// The examples and exit codes after argparse's help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  bailiff gpuget --redis-manage-all   create a pool of all GPUs of this machine
  gpu=$(bailiff gpuget --get)         wait for a GPU
  bailiff gpuget --active             list the GPUs in use and their processes
  bailiff gpuget --release $gpu       release the GPU

Exit codes: 0 done, 1 failed, 2 invalid flags, 255 no Redis, or a
--redis-manage-count that is not below the number of GPUs.";

/// The program name in usage and messages.
const NAME: &str = "GPU.py";

/// Why an action failed.
#[derive(Debug)]
enum Failure {
    /// Invalid flags.
    Usage(String),
    /// Redis cannot be used.
    NoRedis(LeaseError),
    /// A refusal with the text of the original, on standard output.
    Refused(String),
    /// The reader of standard output has closed the pipe.
    ClosedPipe,
    /// An error for which the original would print a traceback.
    Other(String),
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Other(bailiff_lifecycle::exit::plain(&error)),
        }
    }
}

/// Whether the program was started under the name GPU.py.
pub(crate) fn is_called(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().ends_with(NAME.as_bytes())
}

/// Runs the action of the command line.
pub(crate) fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let outcome = match parse(&args) {
        Ok(Parsed::Help) => print_line(&format!("{HELP}\n{EXAMPLES}")),
        Ok(Parsed::Action(arguments)) => run(&arguments),
        Err(why) => Err(Failure::Usage(why)),
    };
    match outcome {
        // A closed pipe (`--log | head`) is not an error.
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(Failure::Usage(why)) => {
            let _ = writeln!(std::io::stderr(), "{}\n{NAME}: error: {why}", usage(HELP));
            ExitCode::from(2)
        }
        Err(Failure::NoRedis(error)) => {
            warn(&error.to_string());
            // A write error is ignored, because the exit code reports the failure as well.
            let _ = print_line("Can not connect to Redis server, try to start server first.");
            ExitCode::from(255)
        }
        Err(Failure::Refused(text)) => {
            let _ = print_line(&text);
            ExitCode::from(255)
        }
        Err(Failure::Other(why)) => {
            warn(&why);
            ExitCode::FAILURE
        }
    }
}

/// The order of actions: if several are given, the first one runs, as in the original.
const ORDER: [&str; 13] = [
    "--managed-gpu-count",
    "--redis-manage-all",
    "--redis-manage",
    "--redis-manage-count",
    "--get",
    "--release",
    "--log",
    "--idle",
    "--managed",
    "--info",
    "--redis-delete",
    "--redis-purge",
    "--active",
];

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let environment = Environment::read();
    if arguments.has("--gpu-count") {
        return print_line(&pool::gpus(&environment).map_err(Failure::Other)?.len().to_string());
    }
    let address = PoolAddress::resolve(arguments, &environment);
    let mut pool = open(&address)?;
    if !arguments.has("--get") {
        // Leases of exited processes are released first; `--get` does that while it waits. A failure is ignored, so
        // that users with read-only access can query the pool.
        let _ = pool.reap_local_host(&LocalHost::read(), LEASE);
    }
    // Python treats these values as false, so the flag counts as absent.
    let empty = |name: &str| match name {
        "--redis-manage" => arguments.value(name) == Some(""),
        "--redis-manage-count" => arguments.value(name) == Some("0"),
        _ => false,
    };
    match ORDER.into_iter().find(|name| arguments.has(name) && !empty(name)) {
        Some("--redis-manage-all" | "--redis-manage" | "--redis-manage-count") => {
            pool::manage(&mut pool, arguments, &environment)
        }
        Some("--get") => get::get(&address, pool),
        Some("--release") => pool::release(&mut pool, arguments.value("--release").unwrap_or_default()),
        Some("--redis-delete") => pool::delete(&mut pool, &environment),
        Some("--redis-purge") => purge(&mut pool, &environment),
        Some(name) => query::query(&mut pool, name, &environment),
        None => Ok(()),
    }
}

/// Releases leases and records of exited processes.
fn purge(pool: &mut Pool, environment: &Environment) -> Result<(), Failure> {
    let (audit, local_host) = (pool.audit()?, LocalHost::read());
    let (free, kept) =
        freeable(abandoned(&audit, &local_host), pool, (&audit, &local_host, &environment.stream));
    for why in &kept {
        warn(why);
    }
    for abandoned in free {
        abandoned.free(pool)?;
    }
    Ok(())
}

/// Connects to Redis.
fn open(address: &PoolAddress) -> Result<Pool, Failure> {
    let pool = address.open().and_then(|mut pool| pool.ping().map(|()| pool));
    pool.map_err(|error| match error {
        LeaseError::Address(_)
        | LeaseError::Unreachable { .. }
        | LeaseError::Silent(_)
        | LeaseError::Denied(_)
        | LeaseError::NotNow(_) => Failure::NoRedis(error),
        error => error.into(),
    })
}

/// Returns the calling process, which becomes the holder; 0 if it is outside of this PID namespace.
fn parent() -> u32 {
    let parent = rustix::process::getppid();
    parent.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()).unwrap_or_default()
}

/// Prints a line on standard output; a closed pipe is [`Failure::ClosedPipe`].
fn print_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    Ok(writeln!(out, "{}", printable(text)).and_then(|()| out.flush())?)
}

/// Prints a line on standard error.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{NAME}: {}", printable(text));
}
