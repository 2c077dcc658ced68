//! The command's start, with the signals that we were given and not with those that we keep to ourselves.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;

/// Starts a program with its arguments and this environment, with this mask of signals.
pub(crate) fn start(
    words: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
    mask: &SigSet,
) -> io::Result<Pid> {
    let words = words.iter().map(|word| text(word)).collect::<io::Result<Vec<_>>>()?;
    let program = words.first().ok_or(io::ErrorKind::NotFound)?;
    let environment = environment.map(|(name, value)| text(&[name, value].join(OsStr::new("="))));
    let environment = environment.collect::<io::Result<Vec<_>>>()?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigmask(mask)?;
    // Rust ignores it in every program of its own.
    attributes.set_sigdefault(&std::iter::once(Signal::SIGPIPE).collect())?;
    let actions = PosixSpawnFileActions::init()?;
    let pid = posix_spawnp(program, &actions, &attributes, &words, &environment)?;
    Pid::from_raw(pid.as_raw()).ok_or_else(|| io::ErrorKind::Other.into())
}

fn text(word: &OsStr) -> io::Result<CString> {
    Ok(CString::new(word.to_owned().into_vec())?)
}
