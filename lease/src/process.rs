//! Whether a process is there, by `/proc`. Only what the kernel says to be gone is gone: who cannot be looked at, for want of
//! a descriptor perhaps, may live.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{ProcessKey, State, Status, status};
use rustix::io::Errno;

/// Nobody is further from the first process.
pub(crate) const DEEPEST: usize = 256;
/// `start_ticks` count hundredths of a second: `USER_HZ` of `include/uapi/asm-generic/param.h`.
const MS_PER_TICK: u64 = 10;

/// Its directory.
pub(crate) fn directory(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The directories of all processes.
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
    let process = directory(pid);
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

/// The processes that are given what we print, each with its start: our parent, and all above it up to the one that reads
/// our output. Where none of them reads it, our parent and, as long as it is but a part of its parent, that: a shell's
/// subshell, or a shell that runs a line for a program (`sh -c`).
pub(crate) fn chain(parent: u32) -> Vec<(u32, u64)> {
    let above = ancestors(parent);
    let output = fs::read_link("/proc/self/fd/1").unwrap_or_default();
    let reader = above.iter().position(|(pid, _)| reads(*pid, &output));
    let parts = || above.windows(2).take_while(|pair| is_part(pair[0].0, pair[1].0)).count();
    let last = reader.unwrap_or_else(parts);
    above.into_iter().take(last + 1).collect()
}

/// A process and all above it but the first, each with its start.
fn ancestors(pid: u32) -> Vec<(u32, u64)> {
    let (mut found, mut pid) = (Vec::new(), pid);
    while pid > 1
        && found.len() < DEEPEST
        && let Ok(Some(stat)) = stated(&directory(pid))
    {
        found.push((pid, stat.key.start_ticks));
        pid = stat.ppid;
    }
    found
}

/// Whether a process has the end of this pipe open from which is read.
fn reads(pid: u32, pipe: &Path) -> bool {
    if !pipe.as_os_str().as_encoded_bytes().starts_with(b"pipe:") {
        return false;
    }
    let is_read_end = |number: std::ffi::OsString| {
        let flags = fs::read_to_string(directory(pid).join("fdinfo").join(number)).unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")?.trim().parse::<u32>().ok());
        // Written in octal, with the access mode of open(2) in the last digit: 0 is O_RDONLY, beside no other flag.
        flags.is_some_and(|flags| flags % 10 == 0)
    };
    let descriptors = fs::read_dir(directory(pid).join("fd")).into_iter().flatten().flatten();
    descriptors
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == pipe))
        .any(|entry| is_read_end(entry.file_name()))
}

/// Whether a process of this session that began before a moment, in milliseconds since boot, has this device file open.
///
/// # Errors
/// Where that cannot be told of each process of the session.
pub fn session_has_open(session: u32, before_ms: u64, device: &Path) -> io::Result<bool> {
    for process in all()? {
        let process = process?;
        let Some(stat) = stated(&process)? else { continue };
        if stat.session != session || stat.key.start_ticks > before_ms / MS_PER_TICK {
            continue;
        }
        for descriptor in unless_gone(fs::read_dir(process.join("fd")))?.into_iter().flatten() {
            if unless_gone(fs::read_link(descriptor?.path()))?.is_some_and(|link| link == device) {
                return Ok(true);
            }
        }
        // Its first thread has ended, and has no descriptors; the others do.
        if ended(&stat) && has_threads(&process)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_part(pid: u32, parent: u32) -> bool {
    let words = |pid: u32| fs::read(directory(pid).join("cmdline")).unwrap_or_default();
    let ours = words(pid);
    let line = ours
        .split(|byte| *byte == 0)
        .nth(1)
        .is_some_and(|word| word.starts_with(b"-") && !word.starts_with(b"--") && word.ends_with(b"c"));
    line || !ours.is_empty() && ours == words(parent)
}
