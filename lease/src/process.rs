//! Whether a process is there, by `/proc`. Only what the kernel says to be gone is gone: who cannot be looked at, for want of
//! a descriptor perhaps, may live.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{ProcessKey, State, Status, status, workload};
use rustix::io::Errno;

/// Nobody is further from the first process.
pub(crate) const DEEPEST: usize = 256;
/// `start_ticks` count hundredths of a second: `USER_HZ` of `include/uapi/asm-generic/param.h`.
const MS_PER_TICK: u64 = 10;

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
/// program (`sh -c`). Each with its start. It ends at the first process that reads our standard output: that one is given
/// the GPU, though it may itself be a subshell.
pub(crate) fn chain(pid: u32) -> Vec<(u32, u64)> {
    let mut chain = Vec::new();
    let output = fs::read_link("/proc/self/fd/1")
        .ok()
        .filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"pipe:"));
    let mut pid = pid;
    while pid > 1
        && let Ok(Some(stat)) = stated(&folder(pid))
        && !chain.iter().any(|(met, _)| *met == pid)
    {
        chain.push((pid, stat.key.start_ticks));
        if output.as_deref().is_some_and(|pipe| reads(pid, pipe)) || !is_part(pid, stat.ppid) {
            break;
        }
        pid = stat.ppid;
    }
    chain
}

/// Whether a process has the end of this pipe open from which is read.
fn reads(pid: u32, pipe: &Path) -> bool {
    let is_read_end = |number: std::ffi::OsString| {
        let flags = fs::read_to_string(folder(pid).join("fdinfo").join(number)).unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")?.trim().parse::<u32>().ok());
        // Written in octal, with the access mode of open(2) in the last digit: 0 is O_RDONLY, beside no other flag.
        flags.is_some_and(|flags| flags % 10 == 0)
    };
    let descriptors = fs::read_dir(folder(pid).join("fd")).into_iter().flatten().flatten();
    descriptors
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == pipe))
        .any(|entry| is_read_end(entry.file_name()))
}

/// Whether a process of this user and cgroup began after another one and has lost its parent: the other may have started
/// it.
///
/// # Errors
/// Where that cannot be told of each process.
pub(crate) fn has_orphan(of: ProcessKey, owner: Option<u32>, cgroup: Option<&str>) -> io::Result<bool> {
    for process in all()? {
        let process = process?;
        let Some(stat) = stated(&process)? else { continue };
        let is_work = !stat.kernel_thread && (!ended(&stat) || has_threads(&process)?);
        if is_work && stat.key.start_ticks >= of.start_ticks && is_orphan(&stat, of)? {
            let of_another = |found: fs::Metadata| owner.is_some_and(|owner| owner != found.uid());
            let elsewhere =
                |found: Vec<u8>| cgroup.is_some_and(|cgroup| cgroup.as_bytes() != found.trim_ascii());
            let is_others = unless_gone(fs::metadata(&process))?.is_none_or(of_another)
                || unless_gone(fs::read(process.join("cgroup")))?.is_none_or(elsewhere);
            if !is_others {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whoever loses its parent is given to the first process, or to one that keeps others.
fn is_orphan(stat: &Stat, of: ProcessKey) -> io::Result<bool> {
    let mut parent = stat.ppid;
    for _ in 0..DEEPEST {
        let Some(above) = stated(&folder(parent))?.filter(|_| parent > 1) else { return Ok(true) };
        if above.key.start_ticks < of.start_ticks {
            return Ok(workload::keeps_others(&above.comm));
        }
        parent = above.ppid;
    }
    Ok(true)
}

/// A process's cgroups, as the kernel lists them.
pub(crate) fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read_to_string(folder(pid).join("cgroup")).ok()?;
    Some(text.trim().to_owned())
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
    let words = |pid: u32| fs::read(folder(pid).join("cmdline")).unwrap_or_default();
    let ours = words(pid);
    let line = ours
        .split(|byte| *byte == 0)
        .nth(1)
        .is_some_and(|word| word.starts_with(b"-") && !word.starts_with(b"--") && word.ends_with(b"c"));
    line || !ours.is_empty() && ours == words(parent)
}
