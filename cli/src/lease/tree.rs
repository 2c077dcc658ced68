//! All that a command has started, killed.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::collections::HashMap;
use std::fs;

use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::stat::{self, Stat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Kills every descendant of this process once; we are the subreaper of all of them, so none can leave.
pub(super) fn kill() {
    let all: HashMap<u32, Stat> = processes();
    let us = std::process::id();
    for stat in all.values() {
        let mut above = Some(stat.ppid);
        while let Some(parent) = above.filter(|parent| *parent != us) {
            above = all.get(&parent).map(|stat| stat.ppid);
        }
        if above.is_some() {
            end(stat.key);
        }
    }
}

fn processes() -> HashMap<u32, Stat> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let stats = processes.filter_map(|process| stated(process.file_name().to_str()?.parse().ok()?));
    stats.map(|stat| (stat.key.pid, stat)).collect()
}

fn stated(pid: u32) -> Option<Stat> {
    stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Another may have the pid by now: who is looked at through the descriptor is who is killed.
fn end(key: ProcessKey) {
    let Some(pid) = i32::try_from(key.pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if stated(key.pid).is_some_and(|stat| stat.key == key) {
        // It may have ended just now.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}
