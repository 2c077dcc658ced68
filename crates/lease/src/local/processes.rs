//! The processes that have a kernel lock. `/proc/locks` shows the process that took the lock, and
//! `/proc/PID/fdinfo` shows the processes that have it now.

use std::collections::BTreeSet;
use std::fs::File;

use bailiff_proc::{Attributes, Proc, Process, ReadError, unless_gone};
use bailiff_snapshot::PidNamespace;
use bailiff_snapshot::locks::takers;
use rustix::fs::{fstat, major, minor};

/// Maximum number of processes with a lock on a file that are examined.
const MOST_LOCKERS: usize = 64;

/// The identity of a file in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    pub(super) fn of(file: &File) -> Option<Self> {
        let found = fstat(file).ok()?;
        Some(Self { device: found.st_dev, number: found.st_ino })
    }

    /// Returns its name in `/proc/locks`.
    fn name(self) -> String {
        format!("{:02x}:{:02x}:{}", major(self.device), minor(self.device), self.number)
    }
}

impl From<Attributes> for Inode {
    fn from(found: Attributes) -> Self {
        Self { device: found.device, number: found.inode }
    }
}

/// The content of `/proc/locks`, which contains for each lock the pid that took it. That process may have exited
/// since. Locks that were taken in other PID namespaces are not listed. `None` if it could not be read: any user can take so
/// many locks that it is too long.
#[derive(Debug)]
pub(super) struct Locks(Option<String>);

impl Locks {
    pub(super) fn read() -> Self {
        Self(Proc::own().and_then(|proc| proc.text("locks")).ok())
    }

    pub(super) const fn is_known(&self) -> bool {
        self.0.is_some()
    }

    fn text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether no process is known to have a lock on a file; false if that is unknown.
    pub(super) fn shows_none(&self, inode: Inode) -> bool {
        self.is_known() && self.lockers(inode).is_empty()
    }

    /// The process that took the exclusive lock on a file; `None` also if that is unknown.
    pub(super) fn taker(&self, inode: Inode) -> Option<u32> {
        let name = inode.name();
        takers(self.text(), &name).find_map(|(kind, pid)| (kind == "WRITE").then_some(pid))
    }

    /// The processes that have a lock on a file, shared or exclusive. A listed process that cannot be read
    /// counts; a listed process that has exited does not.
    pub(super) fn lockers(&self, inode: Inode) -> BTreeSet<u32> {
        let name = inode.name();
        // A process can have very many locks on a file.
        let listed: BTreeSet<u32> = takers(self.text(), &name).map(|(_, pid)| pid).collect();
        let listed = listed.into_iter().take(MOST_LOCKERS);
        let mut lockers: BTreeSet<u32> = listed.filter(|pid| holds(*pid, inode) != Some(false)).collect();
        lockers.extend(holding(inode));
        lockers
    }

    /// Whether a process of a user took the exclusive lock on a file and no process has it, for example because the open file is
    /// only in a socket. False if that cannot be read. Only processes of root may be unreadable, as they are from a
    /// container in which root lacks capabilities.
    pub(super) fn is_in_no_process(&self, inode: Inode) -> bool {
        let read = |by_root: bool| -> Result<bool, ReadError> {
            let proc = Proc::own()?;
            let (is_initial, mut read) =
                (proc.own_pid_namespace()? == PidNamespace::INITIAL, BTreeSet::new());
            loop {
                // After the first time, those that were started meanwhile.
                let new: Vec<u32> = proc.pids()?.into_iter().filter(|pid| read.insert(*pid)).collect();
                if new.is_empty() || !is_initial {
                    return Ok(is_initial);
                }
                let all = proc.each(new, None, move |proc, pid| has_lock(&proc.process(pid)?, inode))?;
                let has_none = |(pid, has): &(u32, Result<bool, ReadError>)| match has {
                    Ok(has) => !has,
                    Err(ReadError::Gone) => true,
                    Err(error) => error.is_denied() && !by_root && owner(*pid) == Some(0),
                };
                if !all.iter().all(has_none) {
                    return Ok(false);
                }
            }
        };
        let taker = self.taker(inode);
        taker.is_some_and(|taker| read(owner(taker).is_none_or(|uid| uid == 0)).unwrap_or(false))
    }

    /// Describes the processes that have a lock on a file.
    pub(super) fn describe(&self, inode: Inode) -> String {
        let describe = |pid: &u32| match owner(*pid) {
            Some(uid) => format!("process {pid} of user {uid}"),
            None => format!("process {pid}"),
        };
        let lockers: Vec<String> = self.lockers(inode).iter().map(describe).collect();
        if lockers.is_empty() { "a process that was not found".to_owned() } else { lockers.join(", ") }
    }
}

/// Whether a process has the lock on a file, or `None` if the process cannot be inspected.
pub(super) fn holds(pid: u32, inode: Inode) -> Option<bool> {
    let holds = process(pid).and_then(|process| process.patiently(move |process| has_lock(process, inode)));
    unless_gone(holds).ok().map(Option::unwrap_or_default)
}

fn has_lock(process: &Process, inode: Inode) -> Result<bool, ReadError> {
    if let Some(has) = thread_has_lock(process, inode)? {
        return Ok(has);
    }
    // If the first thread has exited, only the others show the open files.
    for thread in process.other_threads()? {
        let Some(thread) = unless_gone(process.thread(thread))? else { continue };
        if unless_gone(thread_has_lock(&thread, inode))?.flatten() == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a thread has the lock on a file; `None` if it has no open file.
fn thread_has_lock(thread: &Process, inode: Inode) -> Result<Option<bool>, ReadError> {
    let lock = format!(":{} ", inode.number);
    let holds = |number: &u32| {
        let info = thread.text(&format!("fdinfo/{number}")).unwrap_or_default();
        // Only locked files are opened by path, because stat can hang on other files.
        info.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK") && line.contains(&lock))
            && thread.attributes(&format!("fd/{number}")).is_ok_and(|found| Inode::from(found) == inode)
    };
    let numbers = thread.directory("fdinfo")?.numbers()?;
    Ok((!numbers.is_empty()).then(|| numbers.iter().any(holds)))
}

fn process(pid: u32) -> Result<Process, ReadError> {
    Proc::own()?.process(pid)
}

/// Returns the visible processes that have the lock on a file.
pub(super) fn holding(inode: Inode) -> Vec<u32> {
    let read =
        |proc: Proc| proc.each(proc.pids()?, None, move |proc, pid| has_lock(&proc.process(pid)?, inode));
    let all = Proc::own().and_then(read).unwrap_or_default();
    all.into_iter().filter(|(_, holds)| *holds == Ok(true)).map(|(pid, _)| pid).collect()
}

/// Returns whether this program may read the processes of all users, except those that have more capabilities.
pub(super) fn reads_all() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    Proc::own().is_ok_and(|proc| proc.own_mask("CapEff:").is_some_and(|mask| mask & SYS_PTRACE != 0))
}

/// Returns the uid of a process's owner.
pub(super) fn owner(pid: u32) -> Option<u32> {
    process(pid).and_then(|process| process.owner()).ok()
}

/// Returns the PID namespace of a process, if it may be read.
pub(super) fn namespace(pid: u32) -> Option<u64> {
    process(pid).and_then(|process| process.patiently(Process::pid_namespace)).ok()
}

/// Returns the command line of a process, or its name if the command line is empty.
pub(super) fn command(pid: u32) -> Option<Vec<String>> {
    let process = process(pid).ok()?;
    let line = process.patiently(|process| process.bytes("cmdline")).ok()?;
    let arguments = line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    let arguments: Vec<String> =
        arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect();
    if !arguments.is_empty() {
        return Some(arguments);
    }
    Some(vec![process.text("comm").ok()?.trim().to_owned()])
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn open_file_without_lock_is_not_held() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (opened, inode) = (file.reopen().unwrap(), Inode::of(file.as_file()).unwrap());
        let own_pid = std::process::id();
        assert_eq!((holds(own_pid, inode), Locks::read().taker(inode)), (Some(false), None));
        assert_eq!([Locks::read(), Locks(None)].map(|locks| locks.shows_none(inode)), [true, false]);
        flock(&opened, FlockOperation::LockExclusive).unwrap();
        assert_eq!((holds(own_pid, inode), Locks::read().taker(inode)), (Some(true), Some(own_pid)));
        assert_eq!(holding(inode), [own_pid]);
        assert!(!Locks::read().shows_none(inode));
        drop(opened);
        assert_eq!(holding(inode), [0_u32; 0]);
        assert_eq!(holds(u32::MAX, inode), Some(false), "no process has this pid");
    }
}
