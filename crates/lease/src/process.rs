//! The processes for which a GPU is taken: ancestors of this one, and members of its session.

use std::path::Path;
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::{Files, LATE, Proc, Process, ReadError, lives, unless_gone};
use bailiff_snapshot::ProcessKey;

/// Time limit for the open files of all processes of a session together.
const OPEN_FILES: Duration = Duration::from_secs(4);
/// Maximum number of ancestors that are followed.
pub(crate) const DEEPEST: usize = 256;
/// `start_ticks` is in hundredths of a second (`USER_HZ` in `include/uapi/asm-generic/param.h`).
const MS_PER_TICK: u64 = 10;

/// Whether at least one of the processes is alive.
///
/// # Errors
/// If no process is known to be running, and some cannot be inspected.
pub(crate) fn any_lives(processes: impl IntoIterator<Item = ProcessKey>) -> Result<bool, ReadError> {
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

/// The processes that receive our output, each with its start time: our parent and its ancestors up to the process that
/// reads the other end of our stdout pipe. If no ancestor reads it, the list starts with our parent. The next
/// ancestor is added while the last process in the list is a subshell, or a shell that runs one command line for a
/// program (`sh -c`).
pub(crate) fn chain(parent: u32) -> Vec<(u32, u64)> {
    let Ok(proc) = Proc::own() else { return Vec::new() };
    let above = ancestors(&proc, parent);
    let output = proc.link("self/fd/1").unwrap_or_default();
    let reader = above.iter().position(|(pid, _)| reads(&proc, *pid, &output));
    let parts = || above.windows(2).take_while(|pair| is_part(&proc, pair[0].0, pair[1].0)).count();
    let last = reader.unwrap_or_else(parts);
    above.into_iter().take(last + 1).collect()
}

/// Returns a process and its ancestors except pid 1, each with its start time.
fn ancestors(proc: &Proc, pid: u32) -> Vec<(u32, u64)> {
    let (mut found, mut pid) = (Vec::new(), pid);
    while pid > 1
        && found.len() < DEEPEST
        && let Ok(stat) = proc.stat(pid)
    {
        found.push((pid, stat.key.start_ticks));
        pid = stat.ppid;
    }
    found
}

/// Whether a process has the read end of this pipe open.
fn reads(proc: &Proc, pid: u32, pipe: &str) -> bool {
    let is_read_end = |process: &Process, number: u32| {
        let flags = process.text(&format!("fdinfo/{number}")).unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")?.trim().parse::<u32>().ok());
        // The flags are in octal. The last digit contains the access mode of open(2): 0 is O_RDONLY.
        flags.is_some_and(|flags| flags % 10 == 0)
    };
    pipe.starts_with("pipe:")
        && proc.process(pid).is_ok_and(|process| {
            let mut descriptors = process.descriptors().unwrap_or_default().into_iter();
            descriptors.any(|(number, link)| link.as_deref() == Ok(pipe) && is_read_end(&process, number))
        })
}

/// Whether a process in this session that started before `before_ms` (since boot) has the device file open.
///
/// # Errors
/// If that cannot be determined for every process in the session.
pub fn session_has_open(session: u32, before_ms: u64, device: &Path) -> Result<bool, ReadError> {
    let until = Deadline::after(OPEN_FILES);
    let proc = Proc::own()?;
    for (pid, stat) in proc.each(proc.pids()?, None, Proc::stat_blocking)? {
        let stat = match stat {
            // The owner made the read hang. The session is known nevertheless.
            Err(LATE) => proc.process(pid).and_then(|process| process.stat_from_status()),
            stat => stat,
        };
        let Some(stat) = unless_gone(stat)? else { continue };
        if stat.session != session || stat.key.start_ticks > before_ms / MS_PER_TICK {
            continue;
        }
        let files = Files { prefix: Some(device.display().to_string()), longer: false, major: None };
        // What was not read in time cannot be identified.
        if stat.key.start_ticks == 0 {
            return Err(LATE);
        }
        let read = move |process: &Process| {
            process.check(stat.key)?;
            // A thread-group leader that has exited has no descriptors, but the other threads still have them.
            Ok(process.has_open(&files, until)? || (stat.state.ended() && process.runs()?))
        };
        let open = proc.process(pid).and_then(|process| process.within(until.left(), read));
        if unless_gone(open)?.unwrap_or_default() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_part(proc: &Proc, pid: u32, parent: u32) -> bool {
    let arguments = |pid| proc.bytes(&format!("{pid}/cmdline")).unwrap_or_default();
    let own = arguments(pid);
    let runs_line = own
        .split(|byte| *byte == 0)
        .nth(1)
        .is_some_and(|first| first.starts_with(b"-") && !first.starts_with(b"--") && first.ends_with(b"c"));
    runs_line || !own.is_empty() && own == arguments(parent)
}
