//! Continues processes that an action stopped before SIGKILL, if the action cannot go on.

use std::path::Path;

use bailiff_proc::Pidfd;
use bailiff_snapshot::{ProcessKey, State};
use rustix::fs::{Mode, OFlags, fstatfs, open};
use rustix::io::write;
use rustix::process::Signal;

use super::permit::{Permit, send};
use crate::audit::HeldStill;
use crate::process_table::Processes;

/// File system type of cgroup v2 (`linux/magic.h`).
const CGROUP2_SUPER_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// Continues the processes that are unchanged and still stopped; returns their number.
pub fn continue_stopped(still: &HeldStill) -> usize {
    if let Some(file) = &still.freezer {
        thaw(file);
    }
    let Ok(proc_table) = Processes::open(Path::new("/proc"), "/dev/nvidia") else { return 0 };
    let continued = still.processes.iter().filter(|key| continue_one(&proc_table, **key));
    continued.count()
}

/// Thaws a cgroup. The path comes from another process or from a file, so it could be any path.
fn thaw(file: &Path) {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(opened) = open(file, flags, Mode::empty()) else { return };
    let is_freezer = file.ends_with("cgroup.freeze");
    if is_freezer && fstatfs(&opened).is_ok_and(|system| system.f_type == CGROUP2_SUPER_MAGIC) {
        let _ = write(&opened, b"0");
    }
}

fn continue_one(proc_table: &Processes, key: ProcessKey) -> bool {
    let Ok(Some(handle)) = Pidfd::open(key.pid) else { return false };
    let Ok(Some(person)) = proc_table.person(key.pid) else { return false };
    // If the first thread has exited, only the others show that the process is stopped.
    let stopped = |states: Vec<State>| states.contains(&State::Stopped);
    let same = person.stat.key == key && proc_table.threads(key.pid).is_ok_and(stopped);
    same && send(&handle, Signal::CONT, &Permit::to_continue()).unwrap_or(false)
}
