//! Whether a process exists, according to `/proc`. A process counts as gone only if the kernel reports that. If a read
//! fails, for example because there are no free descriptors, the process may still be running.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{ProcessKey, State, Status, status};
use rustix::io::Errno;

/// Maximum number of ancestors that are followed.
pub(crate) const DEEPEST: usize = 256;
/// `start_ticks` count hundredths of a second: `USER_HZ` of `include/uapi/asm-generic/param.h`.
const MS_PER_TICK: u64 = 10;

/// The directory of a process.
pub(crate) fn directory(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The directories of all processes.
///
/// # Errors
/// If `/proc` cannot be read; per item, if the listing is incomplete.
pub fn all() -> io::Result<impl Iterator<Item = io::Result<PathBuf>>> {
    let is_process = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = fs::read_dir("/proc")?.filter(move |entry| entry.as_ref().map_or(true, is_process));
    Ok(entries.map(|entry| entry.map(|entry| entry.path())))
}

/// Returns the result of reading a process or thread that may have exited, or `None` if it has exited.
///
/// # Errors
/// If the read failed for another reason.
pub fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the parsed `stat` of a process or thread, or `None` if it is gone.
///
/// # Errors
/// If the file cannot be read or parsed.
pub fn read_stat(process: &Path) -> io::Result<Option<Stat>> {
    let Some(text) = unless_gone(fs::read(process.join("stat")))? else { return Ok(None) };
    stat::parse(&text).map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Returns the bytes of a process's `status`, or `None` if the process is gone.
///
/// # Errors
/// If the file cannot be read.
pub fn status(process: &Path) -> io::Result<Option<Vec<u8>>> {
    let read = |file: fs::File| {
        let mut text = Vec::new();
        file.take(status::LONGEST as u64).read_to_end(&mut text).map(|_| text)
    };
    unless_gone(fs::File::open(process.join("status")).and_then(read))
}

/// Returns the pids of a process, from our PID namespace to its own, or `None` if the process is gone.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn pids(process: &Path) -> io::Result<Option<Vec<u32>>> {
    let Some(text) = status(process)? else { return Ok(None) };
    Status::new(&text).pids().map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Returns when a process started, or `None` if it has exited, even if its parent has not reaped it yet.
pub(crate) fn start(pid: u32) -> io::Result<Option<u64>> {
    let process = directory(pid);
    let Some(stat) = read_stat(&process)? else { return Ok(None) };
    Ok((!ended(&stat) || has_threads(&process)?).then_some(stat.key.start_ticks))
}

/// Whether a process is running. A zombie is not.
///
/// # Errors
/// If that cannot be determined.
pub fn lives(process: ProcessKey) -> io::Result<bool> {
    Ok(start(process.pid)? == Some(process.start_ticks))
}

/// Like [`lives`], but a process that cannot be inspected counts as running.
#[must_use]
pub fn may_live(process: ProcessKey) -> bool {
    lives(process).unwrap_or(true)
}

/// Whether at least one of the processes is running.
///
/// # Errors
/// If no process is known to be running, and some cannot be inspected.
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

/// Whether threads are still running after the thread-group leader exited. They keep what the process held.
fn has_threads(process: &Path) -> io::Result<bool> {
    for thread in unless_gone(fs::read_dir(process.join("task")))?.into_iter().flatten() {
        if read_stat(&thread?.path())?.is_some_and(|stat| !ended(&stat)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the processes that receive our output, each with its start time: our parent and its ancestors up to the
/// process that reads the other end of our stdout pipe. If no ancestor reads it, these are our parent and further
/// ancestors, as long as each process is only a part of its parent: a subshell, or a shell that runs a line for a
/// program (`sh -c`).
pub(crate) fn chain(parent: u32) -> Vec<(u32, u64)> {
    let above = ancestors(parent);
    let output = fs::read_link("/proc/self/fd/1").unwrap_or_default();
    let reader = above.iter().position(|(pid, _)| reads(*pid, &output));
    let parts = || above.windows(2).take_while(|pair| is_part(pair[0].0, pair[1].0)).count();
    let last = reader.unwrap_or_else(parts);
    above.into_iter().take(last + 1).collect()
}

/// Returns a process and its ancestors except pid 1, each with its start time.
fn ancestors(pid: u32) -> Vec<(u32, u64)> {
    let (mut found, mut pid) = (Vec::new(), pid);
    while pid > 1
        && found.len() < DEEPEST
        && let Ok(Some(stat)) = read_stat(&directory(pid))
    {
        found.push((pid, stat.key.start_ticks));
        pid = stat.ppid;
    }
    found
}

/// Whether a process has the read end of this pipe open.
fn reads(pid: u32, pipe: &Path) -> bool {
    if !pipe.as_os_str().as_encoded_bytes().starts_with(b"pipe:") {
        return false;
    }
    let is_read_end = |number: std::ffi::OsString| {
        let flags = fs::read_to_string(directory(pid).join("fdinfo").join(number)).unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")?.trim().parse::<u32>().ok());
        // The flags are in octal. The last digit contains the access mode of open(2): 0 is O_RDONLY.
        flags.is_some_and(|flags| flags % 10 == 0)
    };
    let descriptors = fs::read_dir(directory(pid).join("fd")).into_iter().flatten().flatten();
    descriptors
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == pipe))
        .any(|entry| is_read_end(entry.file_name()))
}

/// Whether a process in this session that started before `before_ms` (since boot) has the device file open.
///
/// # Errors
/// If that cannot be determined for every process in the session.
pub fn session_has_open(session: u32, before_ms: u64, device: &Path) -> io::Result<bool> {
    for process in all()? {
        let process = process?;
        let Some(stat) = read_stat(&process)? else { continue };
        if stat.session != session || stat.key.start_ticks > before_ms / MS_PER_TICK {
            continue;
        }
        for descriptor in unless_gone(fs::read_dir(process.join("fd")))?.into_iter().flatten() {
            if unless_gone(fs::read_link(descriptor?.path()))?.is_some_and(|link| link == device) {
                return Ok(true);
            }
        }
        // The thread-group leader has exited and has no descriptors, but the other threads still have them.
        if ended(&stat) && has_threads(&process)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_part(pid: u32, parent: u32) -> bool {
    let arguments = |pid: u32| fs::read(directory(pid).join("cmdline")).unwrap_or_default();
    let own = arguments(pid);
    let runs_line = own
        .split(|byte| *byte == 0)
        .nth(1)
        .is_some_and(|first| first.starts_with(b"-") && !first.starts_with(b"--") && first.ends_with(b"c"));
    runs_line || !own.is_empty() && own == arguments(parent)
}
