//! The descendants of this process: finding them and signalling them.

#![expect(clippy::disallowed_methods, reason = "signals descendants")]

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bailiff_proc::{LATE, Pidfd, Proc, Process, ReadError, may_live, unless_gone};
use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::stat::Stat;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, geteuid, getpid, set_child_subreaper, wait};

/// The processes that the command has started, as opposed to other descendants of this process.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// Whether this process already had children when it started, for example because a shell with children
    /// replaced itself by `exec`.
    inherited_children: bool,
    /// Children of this process that do not belong to the command.
    excluded: Vec<ProcessKey>,
    /// The command, if there are inherited children: only its subtree counts then.
    root: Option<ProcessKey>,
}

impl ProcessTree {
    /// Detects inherited children; call it before starting any process.
    pub(crate) fn detect() -> Self {
        let inherited_children = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        Self { inherited_children, excluded: Vec::new(), root: None }
    }

    /// Excludes all existing descendants; call it just before the command starts.
    pub(crate) fn exclude_existing(&mut self) -> io::Result<()> {
        // Without any child, `wait` fails with ECHILD, and there is nothing to exclude.
        if wait(WaitOptions::NOHANG).is_ok() {
            self.excluded = processes_below(&[], None)?.into_iter().map(|(_, stat)| stat.key).collect();
        }
        // As a subreaper, this process adopts orphans, so that none of them escapes. This is skipped if there
        // are inherited children, because their orphans could not be distinguished from those of the command.
        if !self.inherited_children {
            set_child_subreaper(Some(getpid()))?;
        }
        Ok(())
    }

    pub(crate) fn set_command(&mut self, child: Pid) {
        if self.inherited_children {
            let pid = child.as_raw_nonzero().get().cast_unsigned();
            self.root = Proc::own().and_then(|proc| proc.stat(pid)).ok().map(|stat| stat.key);
        }
    }

    /// Returns whether this process has children that do not belong to the command, and whose exit is not
    /// awaited.
    pub(crate) fn has_other_children(&self) -> bool {
        self.inherited_children || !self.excluded.is_empty()
    }

    /// Returns every descendant with its depth; a child has depth 0. If this process is the subreaper, the
    /// list is complete and orphans appear as children.
    ///
    /// # Errors
    /// If `/proc` cannot be read; there may be descendants nevertheless.
    pub(crate) fn descendants(&self) -> io::Result<Vec<(usize, Stat)>> {
        match (self.inherited_children, self.root) {
            (true, None) => Ok(Vec::new()),
            (_, root) => processes_below(&self.excluded, root),
        }
    }

    /// Sends a signal to every visible descendant once.
    pub(crate) fn signal(&self, number: Signal) {
        for (_, stat) in self.descendants().unwrap_or_default() {
            signal(stat.key, number);
        }
    }
}

/// Returns the descendants except the excluded processes and their descendants; with a root, only its
/// subtree.
fn processes_below(excluded: &[ProcessKey], root: Option<ProcessKey>) -> io::Result<Vec<(usize, Stat)>> {
    let is_included = |depth, stat: &Stat| depth > 0 || root.is_none_or(|root| stat.key == root);
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in processes(&Proc::own()?)? {
        children.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut parents = vec![std::process::id()];
    for depth in 0.. {
        // Entries are removed when found, so that a pid reused while `/proc` is read cannot form a cycle.
        let next = parents.iter().filter_map(|parent| children.remove(parent)).flatten();
        let next: Vec<Stat> =
            next.filter(|stat| !excluded.contains(&stat.key) && is_included(depth, stat)).collect();
        if next.is_empty() {
            break;
        }
        parents = next.iter().map(|stat| stat.key.pid).collect();
        found.extend(next.into_iter().map(|stat| (depth, stat)));
    }
    Ok(found)
}

/// Signals a process through a pidfd, after checking its start time, because its pid may have been reused.
pub(crate) fn signal(key: ProcessKey, signal: Signal) {
    if let Ok(Some(process)) = Pidfd::of(key) {
        // The process may have exited meanwhile.
        let _ = process.send(signal);
    }
}

/// Returns the command line of a process, or an empty string if it cannot be read.
pub(crate) fn command_line(pid: u32) -> String {
    let bytes = Proc::own().and_then(|proc| proc.bytes(&format!("{pid}/cmdline"))).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

/// Returns whether any process started at or after `since` may use the file: its environment contains `variable`
/// with the path of the file, it has mapped the file, or its `/proc` files cannot be read. If a process has
/// overwritten its environment, as daemons do to set a title, a mapped `library` also counts.
pub(crate) fn may_use(file: &Path, variable: &str, (library, since): (&str, u64)) -> bool {
    let pair = [variable.as_bytes(), b"=", file.as_os_str().as_bytes()].concat();
    let Ok(proc) = Proc::own() else { return true };
    let Ok(processes) = processes(&proc) else { return true };
    processes.into_iter().filter(|stat| stat.key.start_ticks >= since).any(|stat| {
        let read = |process: &Process| Ok((process.bytes("environ")?, process.bytes("maps")?));
        match proc.process(stat.key.pid).and_then(|process| process.patiently(read)) {
            Ok((environment, maps)) if !environment.is_empty() || !maps.is_empty() => {
                let has = |what: &[u8]| maps.windows(what.len()).any(|part| part == what);
                let mut pairs = environment.split(|byte| *byte == 0);
                let intact =
                    environment.is_empty() || pairs.clone().next().is_some_and(|pair| pair.contains(&b'='));
                pairs.any(|found| found == pair)
                    || has(file.as_os_str().as_bytes())
                    || (!intact && has(library.as_bytes()))
            }
            // Nothing could be read. A process that has exited and a kernel thread cannot use the file. A
            // process that is unreadable, or whose leader has exited while other threads run, may use it.
            _ => !stat.kernel_thread && may_live(stat.key) && may_be_ours(&proc, stat.key.pid),
        }
    })
}

/// Returns whether a process may run as our user, based on its UIDs and not on the owner of its `/proc` files.
fn may_be_ours(proc: &Proc, pid: u32) -> bool {
    let is_ours = |uids: Vec<u32>| uids.contains(&geteuid().as_raw());
    let uids = proc.process(pid).and_then(|process| process.uids());
    unless_gone(uids).map_or(true, |uids| uids.is_some_and(is_ours))
}

/// Returns all visible processes; `hidepid` hides those of other users.
fn processes(proc: &Proc) -> Result<Vec<Stat>, ReadError> {
    let mut found = Vec::new();
    for (pid, stat) in proc.each(proc.pids()?, None, Proc::stat_blocking)? {
        match stat {
            Err(error) if error.is_denied() => {}
            // Another user can make reads of a process hang.
            Err(LATE) if !may_be_ours(proc, pid) => {}
            stat => found.extend(unless_gone(stat)?),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn process_of_other_user_with_non_utf8_name_is_not_ours() {
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
        let proc = Proc::own().unwrap();
        assert!(!may_be_ours(&proc, child.id()));
        assert!(may_be_ours(&proc, std::process::id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!may_be_ours(&proc, child.id()), "it has exited");
    }
}
