#![expect(clippy::disallowed_methods, reason = "opens the file that thaws a cgroup")]
//! Continues processes that an action stopped before SIGKILL, if the action cannot go on.

use std::io::Write;
use std::path::Path;

use bailiff_proc::Pidfd;
use bailiff_snapshot::{ProcessKey, State};
use rustix::process::Signal;

use super::permit::{Permit, send};
use crate::audit::HeldStill;
use crate::process_table::Processes;

/// Continues the processes that are unchanged and still stopped; returns their number.
pub fn continue_stopped(still: &HeldStill) -> usize {
    if let Some(file) = &still.freezer {
        let opened = std::fs::OpenOptions::new().write(true).open(file);
        drop(opened.and_then(|mut file| file.write_all(b"0")));
    }
    let Ok(proc_table) = Processes::open(Path::new("/proc"), "/dev/nvidia") else { return 0 };
    let continued = still.processes.iter().filter(|key| continue_one(&proc_table, **key));
    continued.count()
}

fn continue_one(proc_table: &Processes, key: ProcessKey) -> bool {
    let Ok(Some(handle)) = Pidfd::open(key.pid) else { return false };
    let Ok(Some(person)) = proc_table.person(key.pid) else { return false };
    let same = person.stat.key == key && person.stat.state == State::Stopped;
    same && send(&handle, Signal::CONT, &Permit::to_continue()).unwrap_or(false)
}
