//! Running a command: its start, and the events until it exits.

pub(crate) mod pace;
pub(crate) mod signals;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::Receiver;

use bailiff_snapshot::Sample;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;
use signals::ReceivedSignal;

use crate::exit::Failure;

/// An event while a command runs.
pub(crate) enum Event {
    /// A new GPU sample; `None` if sampling has ended.
    Sampled(Option<Box<Sample>>),
    /// This process received a signal.
    Signal(ReceivedSignal),
    /// A child process has exited.
    ChildEnded,
    /// A waiting thread of this process has finished.
    Waited,
}

/// Fails if a signal has arrived.
pub(crate) fn check_signals(events: &Receiver<Event>) -> Result<(), Failure> {
    for event in events.try_iter() {
        if let Event::Signal(signal) = event {
            return Err(Failure::signalled(signal.number));
        }
    }
    Ok(())
}

/// Starts a program with its arguments, an environment and a signal mask.
pub(crate) fn start(
    args: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
    mask: &SigSet,
) -> io::Result<Pid> {
    let args = args.iter().map(|arg| c_string(arg)).collect::<io::Result<Vec<_>>>()?;
    let program = args.first().ok_or(io::ErrorKind::NotFound)?;
    let environment = environment.map(|(name, value)| c_string(&[name, value].join(OsStr::new("="))));
    let environment = environment.collect::<io::Result<Vec<_>>>()?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigmask(mask)?;
    // The Rust runtime ignores SIGPIPE, and an ignored signal would be inherited.
    attributes.set_sigdefault(&std::iter::once(Signal::SIGPIPE).collect())?;
    let actions = PosixSpawnFileActions::init()?;
    let pid = posix_spawnp(program, &actions, &attributes, &args, &environment)?;
    Pid::from_raw(pid.as_raw()).ok_or_else(|| io::ErrorKind::Other.into())
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.to_owned().into_vec())?)
}
