//! Whether a process is there, by `/proc`. Only what the kernel says to be gone is gone: who cannot be looked at, for want of
//! a descriptor perhaps, may live.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{ProcessKey, State, Status, status};
use rustix::io::Errno;

/// Its folder.
pub(crate) fn folder(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The folders of all processes.
///
/// # Errors
/// Where it cannot be told who is there; for each, where not all could be listed.
pub fn all() -> io::Result<impl Iterator<Item = io::Result<PathBuf>>> {
    let is_process = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = fs::read_dir("/proc")?.filter(move |entry| entry.as_ref().map_or(true, is_process));
    Ok(entries.map(|entry| entry.map(|entry| entry.path())))
}

/// What is read of a process or a thread that may have ended; none where it has.
///
/// # Errors
/// Where it is there, or where nobody knows.
pub fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What its `stat` tells, or that of one of its threads; none where it is gone.
///
/// # Errors
/// Where it cannot be told.
pub fn stated(process: &Path) -> io::Result<Option<Stat>> {
    let Some(text) = unless_gone(fs::read(process.join("stat")))? else { return Ok(None) };
    stat::parse(&text).map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// The bytes of its `status`; none where it is gone.
///
/// # Errors
/// Where they cannot be read.
pub fn status(process: &Path) -> io::Result<Option<Vec<u8>>> {
    let read = |file: fs::File| {
        let mut text = Vec::new();
        file.take(status::LONGEST as u64).read_to_end(&mut text).map(|_| text)
    };
    unless_gone(fs::File::open(process.join("status")).and_then(read))
}

/// The pids by which it is known, from our PID namespace to its own; none where it is gone.
///
/// # Errors
/// Where they cannot be told.
pub(crate) fn pids(process: &Path) -> io::Result<Option<Vec<u32>>> {
    let Some(text) = status(process)? else { return Ok(None) };
    Status::new(&text).pids().map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// When it started; none of one that has ended, though its parent has not asked yet.
pub(crate) fn start(pid: u32) -> io::Result<Option<u64>> {
    let process = folder(pid);
    let Some(stat) = stated(&process)? else { return Ok(None) };
    Ok((!ended(&stat) || has_threads(&process)?).then_some(stat.key.start_ticks))
}

/// Whether a process lives; one that has ended does not, though its parent has not asked yet.
///
/// # Errors
/// Where it cannot be told.
pub fn lives(process: ProcessKey) -> io::Result<bool> {
    Ok(start(process.pid)? == Some(process.start_ticks))
}

/// The same, where one who cannot be looked at counts as alive.
#[must_use]
pub fn may_live(process: ProcessKey) -> bool {
    lives(process).unwrap_or(true)
}

/// Whether one of them lives.
///
/// # Errors
/// Where none was seen alive, and not all could be looked at.
pub(crate) fn any_lives(processes: impl IntoIterator<Item = ProcessKey>) -> io::Result<bool> {
    let mut seen = Ok(false);
    for process in processes {
        match lives(process) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            unknown => seen = unknown,
        }
    }
    seen
}

const fn ended(stat: &Stat) -> bool {
    matches!(stat.state, State::Zombie | State::Dead)
}

/// Whether threads live on whose first one has ended: they hold what the process held.
fn has_threads(process: &Path) -> io::Result<bool> {
    for thread in unless_gone(fs::read_dir(process.join("task")))?.into_iter().flatten() {
        if stated(&thread?.path())?.is_some_and(|stat| !ended(&stat)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A process and, as long as it is but a part of its parent, that: a shell's subshell, or a shell that runs a line for a
/// program (`sh -c`). Each with its start.
pub(crate) fn chain(pid: u32) -> Vec<(u32, u64)> {
    let mut chain = Vec::new();
    let mut pid = pid;
    while pid > 1
        && let Ok(Some(stat)) = stated(&folder(pid))
        && !chain.iter().any(|(met, _)| *met == pid)
    {
        chain.push((pid, stat.key.start_ticks));
        if !is_part(pid, stat.ppid) {
            break;
        }
        pid = stat.ppid;
    }
    chain
}

fn is_part(pid: u32, parent: u32) -> bool {
    let words = |pid: u32| fs::read(folder(pid).join("cmdline")).unwrap_or_default();
    let ours = words(pid);
    let line = ours
        .split(|byte| *byte == 0)
        .nth(1)
        .is_some_and(|word| word.starts_with(b"-") && !word.starts_with(b"--") && word.ends_with(b"c"));
    line || !ours.is_empty() && ours == words(parent)
}
