//! `/proc` itself and the processes in it.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::path::Path;

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{FIRST_USER, ProcessKey, State, Status, redact};
use rustix::fs::{AtFlags, PROC_SUPER_MAGIC, RawDir, fstat, fstatfs, statat};
use rustix::io::Errno;

use crate::clock::Deadline;
use crate::denied::{self, Files};
use crate::directory::{Directory, PIECE, ReadError, unless_gone};
use crate::files;

/// Stands for the owner of a program if it is unknown for another reason than missing permission. It is not root.
pub const NO_OWNER: u32 = u32::MAX;
/// Bytes of a command line that are read; [`redact::command`] shows far fewer.
const MOST_OF_CMDLINE: usize = 16 << 10;

/// An open `/proc`.
#[derive(Debug)]
pub struct Proc(Directory);

impl Deref for Proc {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.0
    }
}

#[allow(clippy::missing_errors_doc, reason = "each fails if it cannot read")]
impl Proc {
    /// Opens the `/proc` at this path. Never returns `Gone`: without `/proc`, nothing is known about a process.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let opened = unless_gone(Directory::open(path))?.ok_or(ReadError::Unreadable(Errno::NOENT));
        opened.map(Self)
    }

    /// Opens the `/proc` of this program.
    pub fn own() -> Result<Self, ReadError> {
        Self::open(Path::new("/proc"))
    }

    /// Returns another handle.
    pub(crate) fn again(&self) -> Result<Self, ReadError> {
        Ok(Self(self.0.again()?))
    }

    /// Returns the effective uid of a process. The process cannot make that hang.
    pub(crate) fn uid_of(&self, pid: u32) -> Result<u32, ReadError> {
        Ok(statat(&**self, pid.to_string(), AtFlags::SYMLINK_NOFOLLOW)?.st_uid)
    }

    /// Opens a process.
    pub fn process(&self, pid: u32) -> Result<Process, ReadError> {
        Ok(Process { pid, directory: self.directory(&pid.to_string())? })
    }

    /// Reads the `stat` of a process, with a time limit.
    pub fn stat(&self, pid: u32) -> Result<Stat, ReadError> {
        self.process(pid)?.patiently(Process::stat)
    }

    /// Reads the `stat` of a process without opening its directory. The process can make that hang.
    pub fn stat_blocking(&self, pid: u32) -> Result<Stat, ReadError> {
        self.parse(&format!("{pid}/stat"), |line| stat_of(pid, line))
    }

    /// Returns the pids of all visible processes.
    pub fn pids(&self) -> Result<Vec<u32>, ReadError> {
        self.numbers()
    }

    /// Opens each visible process, except those that exit meanwhile.
    pub fn processes(&self) -> Result<impl Iterator<Item = Result<Process, ReadError>>, ReadError> {
        Ok(self.pids()?.into_iter().filter_map(|pid| unless_gone(self.process(pid)).transpose()))
    }

    /// Adds each pid with the inode number of its directory. The number stays the same while the process lives
    /// and the kernel caches the directory. Another process gets another number.
    pub fn pids_with_inodes(&self, found: &mut Vec<(u32, u64)>) -> Result<(), ReadError> {
        let mut space = [MaybeUninit::uninit(); 2 * PIECE];
        let again = self.directory(".")?;
        let mut entries = RawDir::new(&again, &mut space);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let pid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            found.extend(pid.map(|pid| (pid, entry.ino())));
        }
        Ok(())
    }

    /// Checks that this is a `/proc`, not an empty directory. With `subset=pid` it has no `stat`, and from
    /// another PID namespace no `self`.
    pub fn check(&self) -> Result<(), ReadError> {
        self.attributes("stat")
            .or_else(|_| self.attributes("self"))
            .or_else(|_| self.attributes("1"))
            .map(drop)
    }

    /// Returns whether other users' processes are visible. With `hidepid=2` they seem gone, as does pid 1.
    pub fn shows_others(&self) -> bool {
        self.exists("1")
    }

    /// Returns whether an error while reading a process proves that the process has exited.
    pub fn proves_exit(&self, error: ReadError) -> bool {
        error == ReadError::Gone && self.shows_others()
    }

    /// Returns whether this is the kernel's `/proc`: reading an open file fails after its process exits.
    pub fn is_kernels(&self) -> bool {
        fstatfs(&**self).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
    }

    /// Returns the id of the boot.
    pub fn boot_id(&self) -> Option<String> {
        let text = self.text("sys/kernel/random/boot_id").ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Returns the boot time in seconds since the Unix epoch (`btime` of `/proc/stat`).
    pub fn boot_time(&self) -> Option<u32> {
        let text = self.text("stat").ok()?;
        text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    }

    /// Returns the PID namespace of this program as the link `pid:[4026531836]`.
    pub fn own_pid_namespace(&self) -> Result<String, ReadError> {
        self.link("self/ns/pid")
    }

    /// Returns a bit mask from this program's `status`, such as `CapEff:`; `None` if it is unknown.
    pub fn own_mask(&self, name: &str) -> Option<u64> {
        Status::new(&self.bytes("self/status").ok()?).mask(name)
    }

    /// Returns when a process started, in clock ticks since boot; `None` if it has exited, even if its parent
    /// has not yet reaped it.
    pub fn start(&self, pid: u32) -> Result<Option<u64>, ReadError> {
        let Some(stat) = unless_gone(self.stat(pid))? else { return Ok(None) };
        let has_threads =
            || unless_gone(self.process(pid))?.map_or(Ok(false), |it| it.patiently(Process::runs));
        let runs = !stat.state.ended() || has_threads()?;
        Ok(runs.then_some(stat.key.start_ticks))
    }
}

/// Returns when a process started, as shown in this program's `/proc`; `None` if it has exited.
///
/// # Errors
/// If that cannot be determined.
pub fn start(pid: u32) -> Result<Option<u64>, ReadError> {
    Proc::own()?.start(pid)
}

/// Returns whether a process is alive; an unreaped zombie is not.
///
/// # Errors
/// If that cannot be determined.
pub fn lives(process: ProcessKey) -> Result<bool, ReadError> {
    Ok(start(process.pid)? == Some(process.start_ticks))
}

/// Like [`lives`]; a process that cannot be inspected counts as alive.
pub fn may_live(process: ProcessKey) -> bool {
    lives(process).unwrap_or(true)
}

/// Returns whether a `cgroup` file has lines of cgroup v1, and all of them show the root cgroup.
fn shows_root_of_v1(text: &[u8]) -> bool {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut of_v1 = lines.filter(|line| !line.starts_with(b"0::")).peekable();
    of_v1.peek().is_some() && of_v1.all(|line| line.ends_with(b":/"))
}

/// Parses the inode of a namespace from its link, such as `pid:[4026531836]`.
pub fn namespace_inode(link: &str) -> Option<u64> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

/// A descriptor and the target of its link, which is `Gone` if it was closed meanwhile.
pub type Descriptor = (u32, Result<String, ReadError>);

/// An open `/proc/PID`, or `/proc/PID/task/TID`. Its owner can make reads hang, except those of the owner and of `status`;
/// use [`Process::patiently`] or [`Proc::each`] for the others.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    directory: Directory,
}

impl Deref for Process {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.directory
    }
}

fn stat_of(pid: u32, line: &[u8]) -> Option<Stat> {
    stat::parse(line).filter(|stat| stat.key.pid == pid)
}

#[allow(clippy::missing_errors_doc, reason = "each fails if it cannot read")]
impl Process {
    /// Reads `stat`.
    pub fn stat(&self) -> Result<Stat, ReadError> {
        self.parse("stat", |line| stat_of(self.pid, line))
    }

    /// Returns what `status` shows of the `stat`: all but start time (0) and CPU time. The process cannot make that hang.
    pub fn stat_from_status(&self) -> Result<Stat, ReadError> {
        self.status().map(|(_, stat)| stat)
    }

    /// The same with the real uid, as far as it is shown.
    pub(crate) fn status(&self) -> Result<(Option<u32>, Stat), ReadError> {
        let text = self.bytes("status")?;
        let status = Status::new(&text);
        let stat = status.stat(0).filter(|stat| stat.key.pid == self.pid);
        let real = status.uids().and_then(|uids| uids.first().copied());
        Ok((real, stat.ok_or(ReadError::Malformed)?))
    }

    /// Checks that this is a process; `Gone` if it is a thread of another one. `/proc` does not list threads, but opens them.
    pub fn check_leader(&self) -> Result<(), ReadError> {
        // If the process has exited, the next read shows that.
        let text = unless_gone(self.bytes("status"))?.unwrap_or_default();
        let is_thread = Status::new(&text).tgid().is_some_and(|pid| pid != self.pid);
        if is_thread { Err(ReadError::Gone) } else { Ok(()) }
    }

    /// Checks that this is the process that was read before; `Gone` if its pid was reused.
    pub fn check(&self, key: ProcessKey) -> Result<(), ReadError> {
        if self.stat()?.key == key { Ok(()) } else { Err(ReadError::Gone) }
    }

    /// Returns the effective uid, which owns `/proc/PID` even if the process is not dumpable. A setuid program that a user
    /// runs belongs to the user, who can choose its name and stop it.
    pub fn owner(&self) -> Result<u32, ReadError> {
        let owner = self.effective_uid()?;
        let real = if owner < FIRST_USER { self.uids().ok() } else { None };
        Ok(real.and_then(|uids| uids.first().copied()).filter(|real| *real >= FIRST_USER).unwrap_or(owner))
    }

    /// Returns the inode number of its directory, which the kernel may change, but gives to no other process with this pid.
    ///
    /// # Errors
    /// If the directory cannot be examined.
    pub fn inode(&self) -> Result<u64, ReadError> {
        Ok(fstat(&**self)?.st_ino)
    }

    /// Returns the effective uid.
    pub(crate) fn effective_uid(&self) -> Result<u32, ReadError> {
        let owner = fstat(&**self)?.st_uid;
        // After the process has exited, the kernel reports uid 0.
        self.attributes("stat")?;
        Ok(owner)
    }

    /// Returns the real, effective, saved and filesystem uid.
    pub fn uids(&self) -> Result<Vec<u32>, ReadError> {
        Status::new(&self.bytes("status")?).uids().ok_or(ReadError::Malformed)
    }

    /// Returns the pid in each PID namespace, from that of this `/proc` to the process's own.
    pub fn inner_pids(&self) -> Result<Vec<u32>, ReadError> {
        Status::new(&self.bytes("status")?).pids().ok_or(ReadError::Malformed)
    }

    /// Reads `cgroup`; empty if only this file is unreadable, for example a path longer than `PATH_MAX`. If the first thread has
    /// exited before the others, cgroup v1 shows the root cgroup for it, so that of another thread is read.
    pub fn cgroup(&self) -> Result<Vec<u8>, ReadError> {
        let text = match self.bytes("cgroup") {
            Err(ReadError::Gone) if !self.exists("stat") => return Err(ReadError::Gone),
            text => text.unwrap_or_default(),
        };
        // No process has memory of 0 pages.
        let is_first_exited = || self.bytes("statm").is_ok_and(|pages| pages.starts_with(b"0 "));
        if !shows_root_of_v1(&text) || !is_first_exited() {
            return Ok(text);
        }
        let threads: Vec<u32> = self.other_threads()?.collect();
        let mut read = threads.iter().filter_map(|thread| self.bytes(&format!("task/{thread}/cgroup")).ok());
        Ok(if threads.is_empty() { text } else { read.next().unwrap_or_default() })
    }

    /// Returns the path of the program.
    pub fn exe(&self) -> Result<String, ReadError> {
        self.link("exe")
    }

    /// Returns the path of the program, and the owner of its file. Both are `None` without permission. If they are unknown
    /// for another reason, which the process can cause, such as after its exit or on a file system of its user, the owner is
    /// [`NO_OWNER`].
    pub fn program(&self) -> (Option<String>, Option<u32>) {
        let path = self.exe();
        let owner = match (&path, self.exe_owner()) {
            (_, Ok(owner)) => Some(owner),
            (Err(error), Err(_)) if error.is_denied() => None,
            (_, Err(_)) => Some(NO_OWNER),
        };
        (path.ok(), owner)
    }

    /// Returns the owner of the program's file.
    pub fn exe_owner(&self) -> Result<u32, ReadError> {
        Ok(self.cached_attributes("exe")?.owner)
    }

    /// Returns the redacted command line; `None` if it is unreadable or the process has cleared it.
    pub fn command(&self) -> Option<String> {
        let line = self.cmdline().ok().map(|line| redact::command(&line));
        line.filter(|line| !line.is_empty())
    }

    /// Returns the value of an environment variable, if it is readable.
    pub fn variable(&self, name: &str) -> Option<String> {
        let text = self.bytes("environ").ok()?;
        let mut pairs = text.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
        pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// Returns the arguments, each ended by a zero byte, up to a limit.
    pub fn cmdline(&self) -> Result<Vec<u8>, ReadError> {
        let mut buffer = Vec::new();
        self.read_start(MOST_OF_CMDLINE, "cmdline", &mut buffer)?;
        Ok(buffer)
    }

    /// Returns the inode of the process's PID namespace.
    pub fn pid_namespace(&self) -> Result<u64, ReadError> {
        namespace_inode(&self.link("ns/pid")?).ok_or(ReadError::Malformed)
    }

    /// Returns the pid.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Opens the process once more, for another thread.
    pub(crate) fn again(&self) -> Result<Self, ReadError> {
        Ok(Self { pid: self.pid, directory: self.directory.again()? })
    }

    /// Returns all descriptors.
    pub fn descriptors(&self) -> Result<Vec<Descriptor>, ReadError> {
        let directory = self.directory("fd")?;
        let numbers = directory.numbers()?.into_iter();
        Ok(numbers.map(|number| (number, directory.link(&number.to_string()))).collect())
    }

    /// Returns whether one of these files is open. A process can have a million open files.
    ///
    /// # Errors
    /// If the descriptors cannot be read, or not before the deadline.
    pub fn has_open(&self, files: &Files, until: Deadline) -> Result<bool, ReadError> {
        match files::are_open(files, self, until) {
            Err(ReadError::Unreadable(error @ (Errno::ACCESS | Errno::PERM))) => {
                Ok(denied::has_open(&**self, (files, until), error)?)
            }
            own => own,
        }
    }

    /// Returns the ids of the threads.
    pub fn threads(&self) -> Result<Vec<u32>, ReadError> {
        self.directory("task")?.numbers()
    }

    /// Returns the ids of the threads except the first.
    pub fn other_threads(&self) -> Result<impl Iterator<Item = u32>, ReadError> {
        let first = self.pid;
        Ok(self.threads()?.into_iter().filter(move |thread| *thread != first))
    }

    /// Opens a thread.
    pub fn thread(&self, thread: u32) -> Result<Self, ReadError> {
        Ok(Self { pid: thread, directory: self.directory(&format!("task/{thread}"))? })
    }

    /// Returns the state of each thread, because the first thread may have ended or stopped before the others.
    pub fn thread_states(&self) -> Result<Vec<State>, ReadError> {
        let state = |thread| unless_gone(self.parse(&format!("task/{thread}/stat"), stat::parse));
        let stats = self.threads()?.into_iter().filter_map(|thread| state(thread).transpose());
        stats.map(|stat| Ok(stat?.state)).collect()
    }

    /// Returns whether a thread runs; the first thread may have exited before the others.
    pub fn runs(&self) -> Result<bool, ReadError> {
        let states = unless_gone(self.thread_states())?.unwrap_or_default();
        Ok(states.iter().any(|state| !state.ended()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_empty_directory_is_no_proc() {
        for (made, is_proc) in [(None, false), (Some("stat"), true), (Some("self"), true), (Some("1"), true)]
        {
            let home = tempfile::tempdir().unwrap();
            if let Some(name) = made {
                fs::create_dir(home.path().join(name)).unwrap();
            }
            assert_eq!(Proc::open(home.path()).unwrap().check().is_ok(), is_proc, "{made:?}");
        }
        assert_eq!(Proc::own().unwrap().check(), Ok(()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "writes a `/proc` of its own")]
    fn cgroup_of_a_process_whose_first_thread_has_exited_is_that_of_another_thread() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = home.path().join("4100").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let (root, job) = ("12:pids:/\n1:name=systemd:/\n0::/\n", "12:pids:/docker/1\n0::/\n");
        write("stat", "");
        write("cgroup", root);
        write("statm", "100 7 7 1 0 1 0\n");
        write("task/4100/cgroup", root);
        let cgroup = || Proc::open(home.path()).unwrap().process(4100).unwrap().cgroup().unwrap();
        assert_eq!(cgroup(), root.as_bytes());
        write("statm", "0 0 0 0 0 0 0\n");
        assert_eq!(cgroup(), root.as_bytes(), "there is no other thread");
        write("task/4101/cgroup", job);
        assert_eq!(cgroup(), job.as_bytes());
        fs::remove_file(home.path().join("4100/task/4101/cgroup")).unwrap();
        assert!(cgroup().is_empty(), "unknown");
        let [v2, nested] = ["0::/\n", "12:pids:/docker/1\n1:name=systemd:/\n"].map(str::as_bytes);
        assert_eq!([root.as_bytes(), v2, nested, b""].map(shows_root_of_v1), [true, false, false, false]);
    }
}
