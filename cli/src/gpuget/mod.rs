//! `bailiff gpuget`, and the program where it is called `GPU.py`: GPUGET's flags, texts and exit codes, over leases that
//! are neither lost nor doubled.

mod arguments;
mod flags;
mod get;
mod look;
mod place;
mod pool;
mod python;
mod signals;
mod usage;
mod visible;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{LeaseError, Pool};

use crate::lease::LEASE;
use crate::lease::abandoned::{abandoned, freeable};
use arguments::{Arguments, Asked, parse};
use place::{Environment, Place};
pub(crate) use usage::EXAMPLES;

/// What it is called in its own words, unless it is called by another name.
const NAME: &str = "GPU.py";

/// Why a command ends otherwise than done.
#[derive(Debug)]
enum Failure {
    /// Invalid flags.
    Usage(String),
    /// There is no Redis to be used.
    NoRedis(LeaseError),
    /// Told as the original tells it.
    Refused(String),
    /// Nobody reads what we print.
    Unread,
    /// The original would print a traceback.
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
            std::io::ErrorKind::BrokenPipe => Self::Unread,
            _ => Self::Other(bailiff_lifecycle::exit::plain(&error)),
        }
    }
}

/// Whether a program that is called by this name is GPU.py.
pub(crate) fn is_called(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().ends_with(NAME.as_bytes())
}

/// Does what the flags say.
pub(crate) fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = match parse(&words) {
        Ok(Asked::Help) => say(&format!("{}\n{EXAMPLES}", usage::help(NAME))),
        Ok(Asked::Action(arguments)) => act(&arguments),
        Err(why) => Err(Failure::Usage(why)),
    };
    match outcome {
        // A reader that has gone (`--log | head`) is no reason to fail.
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(Failure::Usage(why)) => {
            let _ = writeln!(std::io::stderr(), "{}{NAME}: error: {why}", usage::usage(NAME));
            ExitCode::from(2)
        }
        Err(Failure::NoRedis(error)) => {
            warn(&error.to_string());
            // The code tells it too.
            let _ = say("Can not connect to Redis server, try to start server first.");
            ExitCode::from(255)
        }
        Err(Failure::Refused(text)) => {
            let _ = say(&text);
            ExitCode::from(255)
        }
        Err(Failure::Other(why)) => {
            warn(&why);
            ExitCode::FAILURE
        }
    }
}

/// What is done where several are asked for: the first of these, as in the original.
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

fn act(arguments: &Arguments) -> Result<(), Failure> {
    let environment = Environment::read();
    if arguments.has("--gpu-count") {
        return say(&pool::gpus(&environment).map_err(Failure::Other)?.len().to_string());
    }
    let place = Place::of(arguments, &environment);
    let mut pool = open(&place)?;
    if !arguments.has("--get") {
        // What the dead of this host held is free; whoever waits sees to it as he waits. Whoever may only read may look
        // nevertheless.
        let _ = pool.reap_local_host(&LocalHost::read(), LEASE);
    }
    // As if it were absent: what Python takes for false.
    let empty = |name: &str| match name {
        "--redis-manage" => arguments.value(name) == Some(""),
        "--redis-manage-count" => arguments.value(name) == Some("0"),
        _ => false,
    };
    match ORDER.into_iter().find(|name| arguments.has(name) && !empty(name)) {
        Some("--redis-manage-all" | "--redis-manage" | "--redis-manage-count") => {
            pool::manage(&mut pool, arguments, &environment)
        }
        Some("--get") => get::get(&place, pool),
        Some("--release") => pool::release(&mut pool, arguments.value("--release").unwrap_or_default()),
        Some("--redis-delete") => pool::delete(&mut pool, &environment),
        Some("--redis-purge") => purge(&mut pool, &environment),
        Some(name) => look::look(&mut pool, name, &environment),
        None => Ok(()),
    }
}

/// Frees what those held who have ended.
fn purge(pool: &mut Pool, environment: &Environment) -> Result<(), Failure> {
    let (audit, local_host) = (pool.audit()?, LocalHost::read());
    let (free, kept) =
        freeable(abandoned(&audit, &local_host), pool, (&audit, &local_host, &environment.stream));
    for why in &kept {
        warn(why);
    }
    for one in free {
        one.free(pool)?;
    }
    Ok(())
}

/// Connects.
fn open(place: &Place) -> Result<Pool, Failure> {
    let pool = place.open().and_then(|mut pool| pool.ping().map(|()| pool));
    pool.map_err(|error| match error {
        LeaseError::Address(_)
        | LeaseError::Unreachable { .. }
        | LeaseError::Silent(_)
        | LeaseError::Denied(_)
        | LeaseError::NotNow(_) => Failure::NoRedis(error),
        error => error.into(),
    })
}

/// For whom a GPU is taken: the shell or program that runs us; 0 where that is outside of this PID namespace.
fn parent() -> u32 {
    let parent = rustix::process::getppid();
    parent.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()).unwrap_or_default()
}

/// On standard output. A reader that has gone is told to the caller.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    Ok(writeln!(out, "{text}").and_then(|()| out.flush())?)
}

/// On standard error.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{NAME}: {text}");
}
