//! All that this process has started: who they are, and their end.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::stat::{self, Stat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Every descendant of this process with how far below it is, a child at 0, and nobody of those set apart nor whom they
/// started. We are the subreaper of all of them, so none can leave; whom others left behind is our child.
pub(crate) fn below(apart: &[ProcessKey]) -> Vec<(usize, Stat)> {
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in processes() {
        children.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut parents = vec![std::process::id()];
    for depth in 0.. {
        // Taken out as they are found: pids that change hands while we read make no circle.
        let next = parents.iter().filter_map(|parent| children.remove(parent)).flatten();
        let next: Vec<Stat> = next.filter(|stat| !apart.contains(&stat.key)).collect();
        if next.is_empty() {
            break;
        }
        parents = next.iter().map(|stat| stat.key.pid).collect();
        found.extend(next.into_iter().map(|stat| (depth, stat)));
    }
    found
}

/// Kills every descendant of this process once, but those set apart.
pub(crate) fn kill(apart: &[ProcessKey]) {
    for (_, stat) in below(apart) {
        signal(stat.key, Signal::KILL);
    }
}

/// Another may have the pid by now: who is looked at through the descriptor is who is signalled.
pub(crate) fn signal(key: ProcessKey, signal: Signal) {
    let Some(pid) = i32::try_from(key.pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if stated(key.pid).is_some_and(|stat| stat.key == key) {
        // It may have ended just now.
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Its command line in words, as far as it may be read.
pub(crate) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

/// When a process started, in ticks since boot; none where there is none.
pub(crate) fn start(pid: u32) -> Option<u64> {
    Some(stated(pid)?.key.start_ticks)
}

/// What processes have been told by a variable, all those whose environment we may read.
pub(crate) fn told(variable: &str) -> HashSet<OsString> {
    let begin = format!("{variable}=");
    let environments = processes().into_iter().filter_map(|stat| {
        let environment = fs::read(format!("/proc/{}/environ", stat.key.pid)).ok()?;
        let value =
            environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(begin.as_bytes()))?;
        Some(OsString::from_vec(value.to_vec()))
    });
    environments.collect()
}

fn processes() -> Vec<Stat> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    processes.filter_map(|process| stated(process.file_name().to_str()?.parse().ok()?)).collect()
}

fn stated(pid: u32) -> Option<Stat> {
    stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}
