//! All that this process has started: who they are, and their end.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bailiff_lease::process::{self, may_live};
use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{ProcessKey, Status};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, geteuid, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, wait,
};

/// Whom the command has started, told from all others below this process.
#[derive(Debug)]
pub(crate) struct Family {
    /// We had children before we started anybody, as a shell has that runs us by `exec`.
    strangers: bool,
    /// Children of ours that are not the command's.
    apart: Vec<ProcessKey>,
    /// Where there are strangers, those alone who are below this one.
    only: Option<ProcessKey>,
}

impl Family {
    /// Before anybody is started.
    pub(crate) fn look() -> Self {
        let strangers = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        Self { strangers, apart: Vec::new(), only: None }
    }

    /// Before the command is started: whoever is there is none of its own.
    pub(crate) fn set_apart(&mut self) -> io::Result<()> {
        // The system starts no helper without saying so here.
        if wait(WaitOptions::NOHANG).is_ok() {
            self.apart = processes_below(&[], None)?.into_iter().map(|(_, stat)| stat.key).collect();
        }
        // Whoever loses his parent becomes our child, so that nobody gets out of sight. Nobody could tell those whom
        // strangers leave behind from those whom the command does.
        if !self.strangers {
            set_child_subreaper(Some(getpid()))?;
        }
        Ok(())
    }

    /// The command is there.
    pub(crate) fn begin(&mut self, child: Pid) {
        if self.strangers {
            self.only =
                u32::try_from(child.as_raw_nonzero().get()).ok().and_then(stated).map(|stat| stat.key);
        }
    }

    /// Whether we have children that are not the command's, for whose end nobody waits.
    pub(crate) fn has_others(&self) -> bool {
        self.strangers || !self.apart.is_empty()
    }

    /// Every descendant with how far below us it is, a child at 0. Where we are the subreaper none can leave, and whom
    /// others left behind is our child.
    ///
    /// # Errors
    /// Where it cannot be told: then somebody may be there.
    pub(crate) fn below(&self) -> io::Result<Vec<(usize, Stat)>> {
        match (self.strangers, self.only) {
            (true, None) => Ok(Vec::new()),
            (_, only) => processes_below(&self.apart, only),
        }
    }

    /// Signals every descendant once, as far as they are to be seen.
    pub(crate) fn signal(&self, number: Signal) {
        for (_, stat) in self.below().unwrap_or_default() {
            signal(stat.key, number);
        }
    }
}

/// Nobody of those set apart nor whom they started; of our children only this one, where one is named.
fn processes_below(apart: &[ProcessKey], only: Option<ProcessKey>) -> io::Result<Vec<(usize, Stat)>> {
    let is_theirs = |depth, stat: &Stat| depth > 0 || only.is_none_or(|only| stat.key == only);
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in processes()? {
        children.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut parents = vec![std::process::id()];
    for depth in 0.. {
        // Taken out as they are found: pids that change hands while we read make no circle.
        let next = parents.iter().filter_map(|parent| children.remove(parent)).flatten();
        let next: Vec<Stat> =
            next.filter(|stat| !apart.contains(&stat.key) && is_theirs(depth, stat)).collect();
        if next.is_empty() {
            break;
        }
        parents = next.iter().map(|stat| stat.key.pid).collect();
        found.extend(next.into_iter().map(|stat| (depth, stat)));
    }
    Ok(found)
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

/// Whether a process that was not started before this tick may use this file: it was told of it by the variable, has it
/// mapped, or cannot be asked. A program may overwrite its environment, as daemons do to show a title; it still has this
/// library then.
pub(crate) fn may_use(file: &Path, variable: &str, (library, since): (&str, u64)) -> bool {
    let told = [variable.as_bytes(), b"=", file.as_os_str().as_bytes()].concat();
    let Ok(processes) = processes() else { return true };
    processes.into_iter().filter(|stat| stat.key.start_ticks >= since).any(|stat| {
        let read = |what| fs::read(format!("/proc/{}/{what}", stat.key.pid));
        match (read("environ"), read("maps")) {
            (Ok(environment), Ok(maps)) if !environment.is_empty() || !maps.is_empty() => {
                let has = |what: &[u8]| maps.windows(what.len()).any(|part| part == what);
                let mut pairs = environment.split(|byte| *byte == 0);
                let intact =
                    environment.is_empty() || pairs.clone().next().is_some_and(|pair| pair.contains(&b'='));
                pairs.any(|pair| pair == told)
                    || has(file.as_os_str().as_bytes())
                    || (!intact && has(library.as_bytes()))
            }
            // It has ended, or is the kernel's own; or it hides itself, or its first thread has ended and others have not.
            _ => !stat.kernel_thread && may_live(stat.key) && may_be_ours(stat.key.pid),
        }
    })
}

/// Whether a process has our user, whoever owns its files.
fn may_be_ours(pid: u32) -> bool {
    let us = geteuid().as_raw();
    let is_ours = |status: Vec<u8>| Status::new(&status).uids().is_none_or(|uids| uids.contains(&us));
    process::status(&Path::new("/proc").join(pid.to_string()))
        .map_or(true, |status| status.is_some_and(is_ours))
}

/// Everybody who is to be seen; others' are not where `/proc` is mounted with `hidepid`.
fn processes() -> io::Result<Vec<Stat>> {
    let mut found = Vec::new();
    for process in process::all()? {
        match process::read_stat(&process?) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            stat => found.extend(stat?),
        }
    }
    Ok(found)
}

fn stated(pid: u32) -> Option<Stat> {
    stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn process_of_another_user_is_not_ours_whatever_bytes_its_name_has() {
        let program = r"import os
open('/proc/self/comm', 'wb').write(b'trainer\xff')
print(flush=True)
os.read(0, 1)";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .uid(65534)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert!(!may_be_ours(child.id()));
        assert!(may_be_ours(std::process::id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!may_be_ours(child.id()), "it has ended");
    }
}
