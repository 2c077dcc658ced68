//! Process table of the node from `/proc`: identity, owner, cgroup and program of each process at this time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::guard;
use bailiff_engine::process::{CommandLine, Devices, ProcessInfo, Program, Table};
use bailiff_proc::clock::Deadline;
use bailiff_proc::{Files, LATE, NO_OWNER, Proc, Process, ReadError, StatusReads, unless_gone};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::text_limit::LONGEST_PATH;
use bailiff_snapshot::{Place, ProcessKey, State, Status, is_criu};

/// Major number of `/dev/nvidia0` and so on (Linux, Documentation/admin-guide/devices.txt).
const NVIDIA: u32 = 195;
/// The usual prefix of their paths.
pub(crate) const DEVICES: &str = "/dev/nvidia";
/// Time limit for the open files of all holders of a target together. A million descriptors take about three seconds;
/// the usual hard limit of a process is half a million.
pub(crate) const OPEN_FILES: Duration = Duration::from_secs(2);
/// Stands for `/proc/PID/cgroup` of kernel threads, which is not read.
const ROOT_CGROUP: &[u8] = b"0::/\n";
/// Maximum number of processes in the table; more are an error.
const MOST_PROCESSES: usize = 1 << 18;

/// Error of reading the process table. No process is signalled then.
#[derive(Debug, thiserror::Error)]
pub enum ProcessTableError {
    /// `/proc` cannot be read.
    #[error("/proc {0}")]
    Unreadable(ReadError),
    /// `/proc` shows only our own processes.
    #[error("/proc hides the processes of other users (hidepid)")]
    Hides,
    /// `/proc` belongs to another PID namespace, so a signal to one of its pids would reach another process.
    #[error("/proc belongs to another PID namespace")]
    Foreign,
    /// A process could not be read or understood, so its owner is unknown.
    #[error("process {0} {1}")]
    Process(u32, ReadError),
    /// There are more than the maximum number of processes.
    #[error("there are more than {MOST_PROCESSES} processes")]
    TooMany,
}

impl ProcessTableError {
    /// Returns whether a process was not read in time. Its owner can cause that.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Process(_, LATE))
    }
}

/// Cache of parsed `cgroup` files, by their text.
type Places = HashMap<Vec<u8>, (Arc<Place>, Option<Arc<str>>)>;

/// Reader of a `/proc` directory.
#[derive(Debug)]
pub struct Processes {
    proc: Proc,
    /// Prefix of the paths of GPU device files.
    devices: String,
}

impl Processes {
    /// Opens `/proc`; `devices` is the prefix of the paths of GPU device files.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn open(procfs: &Path, devices: &str) -> Result<Self, ProcessTableError> {
        let proc = Proc::open(procfs).map_err(ProcessTableError::Unreadable)?;
        Ok(Self { proc, devices: devices.to_owned() })
    }

    /// Reads all processes.
    ///
    /// # Errors
    /// If a process cannot be read, or not all are visible.
    pub fn everybody(&self) -> Result<Table, ProcessTableError> {
        self.since(Table::default(), &BTreeSet::new())
    }

    /// Returns all processes. Processes in `before` are not read again unless their pid is in `again`, which
    /// saves time. A process that is to be signalled must be read again once its pidfd is open.
    ///
    /// Programs are read only of the processes in `again`, and of those that may be CRIU: for other users' processes, the
    /// privileged process has to read them, and a user can give very many processes the name of a protected program.
    ///
    /// # Errors
    /// If a process cannot be read, or not all are visible.
    pub fn since(&self, before: Table, again: &BTreeSet<u32>) -> Result<Table, ProcessTableError> {
        let pids: BTreeSet<u32> = self.pids()?.into_iter().collect();
        let mut people = before.people;
        people.retain(|pid, _| pids.contains(pid) && !again.contains(pid) && !before.unread.contains(pid));
        let new: Vec<u32> = pids.into_iter().filter(|pid| !people.contains_key(pid)).collect();
        let with_program = again.clone();
        let unreadable = ProcessTableError::Unreadable;
        let read = self.proc.each(new, None, move |proc, pid| {
            let process = proc.process(pid)?;
            if with_program.contains(&pid) { Read::of(&process) } else { Read::of_any(&process) }
        });
        let read = read.map_err(unreadable)?;
        // Many processes in deeply nested cgroups make each read slow.
        let has_own = |(_, read): &&(u32, Result<Read, ReadError>)| {
            read.as_ref().map_or(true, |read| !read.stat.kernel_thread)
        };
        let of_users = read.iter().filter(has_own).map(|(pid, _)| *pid).collect();
        let mut cgroups: BTreeMap<u32, _> =
            self.proc.cgroups(of_users, None).map_err(unreadable)?.into_iter().collect();
        let (mut places, mut unread) = (Places::new(), BTreeMap::new());
        let mut reads = StatusReads::limited_for_root();
        for (pid, read) in read {
            let cgroup = match cgroups.remove(&pid) {
                Some(Err(LATE)) | None => Ok(Vec::new()),
                Some(cgroup) => cgroup,
            };
            let is_late = read.as_ref().is_err_and(|error| *error == LATE);
            let read = match read {
                Ok(read) if read.stat.kernel_thread => Ok(Read { cgroup: ROOT_CGROUP.to_vec(), ..read }),
                Err(LATE) => self.proc.process(pid).and_then(|it| Read::of_status(&it, cgroup?, &mut reads)),
                Ok(read) if read.cgroup.is_empty() => cgroup.map(|cgroup| Read { cgroup, ..read }),
                read => read,
            };
            let person = known(pid, read)?.map(|read| (pid, read.person(&mut places)));
            if is_late { unread.extend(person) } else { people.extend(person) }
        }
        Ok(Table::sorted(people).with_unread(unread))
    }

    /// Returns what can always be read of a process, also while other reads of it hang; `None` if it has ended. The start
    /// time is missing (0).
    ///
    /// # Errors
    /// If the process exists and cannot be read.
    pub fn person_from_status(&self, pid: u32) -> Result<Option<ProcessInfo>, ProcessTableError> {
        let mut reads = StatusReads::default();
        let cgroup = self.proc.cgroups(vec![pid], None).map_err(ProcessTableError::Unreadable)?.pop();
        let cgroup = cgroup.and_then(|(_, cgroup)| cgroup.ok()).unwrap_or_default();
        let read = self.proc.process(pid).and_then(|process| Read::of_status(&process, cgroup, &mut reads));
        // A name must not protect a process because its program cannot be read.
        let unnamed = |read: Read| Read { exe_uid: Some(NO_OWNER), ..read };
        Ok(known(pid, read)?.map(|read| unnamed(read).person(&mut Places::new())))
    }

    /// Returns all pids; fails if some processes are hidden.
    fn pids(&self) -> Result<Vec<u32>, ProcessTableError> {
        self.own()?;
        let pids = self.proc.pids().map_err(ProcessTableError::Unreadable)?;
        match pids.len() {
            _ if !pids.contains(&1) => Err(ProcessTableError::Hides),
            0..=MOST_PROCESSES => Ok(pids),
            _ => Err(ProcessTableError::TooMany),
        }
    }

    /// Checks that `/proc` shows our own PID namespace. Pids from another namespace would refer to other processes.
    fn own(&self) -> Result<(), ProcessTableError> {
        let ours = self.proc.link("self").map_err(|_| ProcessTableError::Foreign)?;
        if ours.parse() == Ok(std::process::id()) { Ok(()) } else { Err(ProcessTableError::Foreign) }
    }

    /// Reads a process by its pid in our own PID namespace; `None` if that fails or `/proc` shows another one.
    pub fn own_person(&self, pid: u32) -> Option<ProcessInfo> {
        self.own().ok()?;
        self.person(pid).ok()?
    }

    /// Reads one process; `None` if it has ended.
    ///
    /// # Errors
    /// If the process exists and cannot be read.
    pub fn person(&self, pid: u32) -> Result<Option<ProcessInfo>, ProcessTableError> {
        let read = self.proc.process(pid).and_then(|process| process.patiently(Read::of));
        Ok(known(pid, read)?.map(|read| read.person(&mut Places::new())))
    }

    /// Reads one process and whether it has a GPU device file open, all through one open directory.
    ///
    /// # Errors
    /// If the process exists and cannot be read, or not before the deadline.
    pub fn holder(
        &self,
        pid: u32,
        until: Deadline,
    ) -> Result<Option<(ProcessInfo, Devices)>, ProcessTableError> {
        let prefix = self.devices.clone();
        let both = move |process: &Process| Ok((Read::of(process)?, devices(process, (&prefix, until))?));
        let read = self.proc.process(pid).and_then(|process| process.within(until.left(), both));
        Ok(known(pid, read)?.map(|(read, devices)| (read.person(&mut Places::new()), devices)))
    }

    /// Returns the state of each thread of a process; empty if it has ended.
    ///
    /// # Errors
    /// If the process exists and cannot be read.
    pub fn threads(&self, pid: u32) -> Result<Vec<State>, ProcessTableError> {
        let process = self.proc.process(pid);
        let states = process.and_then(|process| process.patiently(Process::thread_states));
        known(pid, states).map(Option::unwrap_or_default)
    }

    /// Returns the content of `/proc/PID/cgroup`, as [`Process::cgroup`]; `None` if it was not read in time.
    pub fn cgroup(&self, pid: u32) -> Option<String> {
        let read = self.proc.process(pid).and_then(|process| process.patiently(Process::cgroup));
        String::from_utf8(read.ok()?).ok()
    }

    /// Returns whether a process sees the same file at a path as this program does: its root or mount namespace may
    /// differ. `None` if that cannot be read.
    ///
    /// # Errors
    /// If it was not read in time.
    pub fn sees_same(&self, pid: u32, path: &str) -> Result<Option<bool>, ReadError> {
        let (theirs, ours) = (format!("root{path}"), format!("self/root{path}"));
        let proc = self.proc.directory(".")?;
        // Both paths can lead to a file system of a user that does not respond.
        let read = move |process: &Process| {
            let theirs = process.attributes(&theirs)?;
            let ours = proc.attributes(&ours).ok();
            Ok(ours.is_some_and(|ours| (ours.device, ours.inode) == (theirs.device, theirs.inode)))
        };
        match self.proc.process(pid).and_then(|process| process.patiently(read)) {
            Err(LATE) => Err(LATE),
            read => Ok(read.ok()),
        }
    }

    /// Returns whether a process catches or ignores a signal instead of ending; `None` if that is unknown.
    pub fn heeds(&self, pid: u32, signal: i32) -> Option<bool> {
        let text = self.proc.process(pid).and_then(|process| process.bytes("status")).ok()?;
        let status = Status::new(&text);
        let bit = 1_u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
        Some((status.mask("SigCgt:")? | status.mask("SigIgn:")?) & bit != 0)
    }

    /// Returns whether a process is in a nested PID namespace; `None` if it has ended or that is unknown.
    pub fn nested(&self, pid: u32) -> Option<bool> {
        Some(self.proc.process(pid).ok()?.inner_pids().ok()?.len() > 1)
    }

    /// Returns the program that a process runs; `None` if the process has exited. A part that is unreadable, too long or
    /// read too late is unknown.
    pub fn runs(&self, key: ProcessKey, line: CommandLine) -> Option<Program> {
        let read = move |process: &Process| {
            process.check(key)?;
            match process.exe() {
                // A process that is exiting has no program any more. Of a leader that has exited, other threads may run.
                Err(ReadError::Gone) if process.other_threads()?.next().is_none() => Err(ReadError::Gone),
                exe => Ok(exe.ok().filter(|path| path.len() <= LONGEST_PATH)),
            }
        };
        let opened = self.proc.process(key.pid);
        let (exe, process) = match opened.and_then(|process| Ok((process.patiently(read)?, process))) {
            Ok(read) => read,
            Err(error) => return (!self.proc.proves_exit(error)).then(Program::default),
        };
        let command = match line {
            CommandLine::Needed => process.patiently(|process| Ok(process.command())).ok().flatten(),
            CommandLine::Ignored => None,
        };
        Some(Program { exe, command })
    }

    /// Returns the path of a process's program.
    ///
    /// # Errors
    /// If it is unreadable.
    pub fn program(&self, pid: u32) -> Result<String, ReadError> {
        self.proc.process(pid).and_then(|process| process.patiently(Process::exe))
    }

    /// Returns the value of an environment variable of a process, if it is readable.
    ///
    /// # Errors
    /// If it was not read in time. The variable may be set.
    pub fn variable(&self, pid: u32, name: &'static str) -> Result<Option<String>, ReadError> {
        let read = self
            .proc
            .process(pid)
            .and_then(|process| process.patiently(move |process| Ok(process.variable(name))));
        match read {
            Err(LATE) => Err(LATE),
            read => Ok(read.ok().flatten()),
        }
    }
}

/// What was read of a process.
struct Read {
    stat: Stat,
    uid: u32,
    cgroup: Vec<u8>,
    exe: Option<String>,
    exe_uid: Option<u32>,
}

impl Read {
    /// Reads a process. The process can make that hang.
    fn of(process: &Process) -> Result<Self, ReadError> {
        // A name that protects only outside containers is looked up for all.
        Self::with_program_if((process, process.cgroup()?), |stat, _| guard::is_named(&stat.comm, false))
    }

    /// Like [`Self::of`], without the cgroup, for a process that is not acted upon.
    fn of_any(process: &Process) -> Result<Self, ReadError> {
        Self::with_program_if((process, Vec::new()), |stat, uid| is_criu(&stat.comm, Some(uid), (None, None)))
    }

    fn with_program_if(
        (process, cgroup): (&Process, Vec<u8>),
        matters: fn(&Stat, u32) -> bool,
    ) -> Result<Self, ReadError> {
        let (uid, stat) = (process.owner()?, process.stat()?);
        let (exe, exe_uid) = if matters(&stat, uid) { process.program() } else { (None, None) };
        Ok(Self { stat, uid, cgroup, exe, exe_uid })
    }

    /// Reads what the process cannot make hang.
    fn of_status(process: &Process, cgroup: Vec<u8>, reads: &mut StatusReads) -> Result<Self, ReadError> {
        let (uid, stat) = reads.read(process)?;
        let stat = stat.unwrap_or_else(|| Stat::unknown(process.pid()));
        Ok(Self { stat, uid, cgroup, exe: None, exe_uid: None })
    }

    fn person(self, places: &mut Places) -> ProcessInfo {
        let (place, unified) = places.entry(self.cgroup).or_insert_with_key(|text| located(text)).clone();
        let Self { stat, uid, exe, exe_uid, .. } = self;
        ProcessInfo { stat, uid, place, unified, exe, exe_uid }
    }
}

/// Returns whether a GPU device file is open. If the leader thread has exited, only other threads show it.
fn devices(process: &Process, files: (&str, Deadline)) -> Result<Devices, ReadError> {
    let mut devices = devices_in(process, files)?;
    if devices == Devices::None {
        for thread in process.other_threads()? {
            match unless_gone(process.thread(thread).and_then(|thread| devices_in(&thread, files)))? {
                Some(Devices::Open) => return Ok(Devices::Open),
                Some(Devices::Denied) => devices = Devices::Denied,
                Some(Devices::None) | None => {}
            }
        }
    }
    Ok(devices)
}

fn devices_in(process: &Process, (prefix, until): (&str, Deadline)) -> Result<Devices, ReadError> {
    // In a mount namespace of its own, a user can give any file this path.
    let prefix = Some(prefix.to_owned()).filter(|prefix| prefix != DEVICES);
    let files = Files { prefix, longer: true, major: Some(NVIDIA) };
    match process.has_open(&files, until) {
        Ok(true) => Ok(Devices::Open),
        Ok(false) => Ok(Devices::None),
        Err(error) if error.is_denied() => Ok(Devices::Denied),
        Err(error) => Err(error),
    }
}

/// Returns what was read of a process; `None` if it has ended.
fn known<T>(pid: u32, read: Result<T, ReadError>) -> Result<Option<T>, ProcessTableError> {
    unless_gone(read).map_err(|error| ProcessTableError::Process(pid, error))
}

fn located(cgroup: &[u8]) -> (Arc<Place>, Option<Arc<str>>) {
    let text = String::from_utf8_lossy(cgroup);
    let unified = text.lines().find_map(|line| line.strip_prefix("0::")).map(Arc::from);
    (Arc::new(Place::parse(&text)), unified)
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::workload::Home;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "runs a program with the name of a protected one")]
    fn programs_of_others_are_read_only_on_demand() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("Xorg");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("infinity").spawn().unwrap();
        let proc_table = Processes::open(Path::new("/proc"), "/dev/nvidia").unwrap();
        let pid = child.id();
        let exe = |table: Table| table.people[&pid].exe.clone();
        let read = (
            exe(proc_table.everybody().unwrap()),
            exe(proc_table.since(proc_table.everybody().unwrap(), &BTreeSet::from([pid])).unwrap()),
            proc_table.person(pid).unwrap().unwrap().exe,
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let path = program.display().to_string();
        assert_eq!(read, (None, Some(path.clone()), Some(path)));
    }

    #[test]
    fn kernel_threads_are_in_the_root_cgroup() {
        let proc_table = Processes::open(Path::new("/proc"), "/dev/nvidia").unwrap();
        let table = proc_table.everybody().unwrap();
        let root = Place::parse("0::/\n");
        let is_elsewhere = |person: &&ProcessInfo| person.stat.kernel_thread && *person.place != root;
        assert_eq!(table.people.values().find(is_elsewhere).map(|person| person.stat.key), None);
        let own = &table.people[&std::process::id()].place;
        assert_ne!(Home::of(own), Home::Unknown);
    }

    #[test]
    fn program_of_this_process_is_known_and_of_another_start_is_not() {
        let proc_table = Processes::open(Path::new("/proc"), "/dev/nvidia").unwrap();
        let key = proc_table.person(std::process::id()).unwrap().unwrap().stat.key;
        let own = std::env::current_exe().unwrap().display().to_string();
        let runs = proc_table.runs(key, CommandLine::Needed).unwrap();
        assert_eq!(runs.exe.as_deref(), Some(own.as_str()));
        let name = own.rsplit('/').next().unwrap();
        assert!(runs.command.unwrap().contains(name));
        assert_eq!(proc_table.runs(key, CommandLine::Ignored).unwrap().command, None);
        let other = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
        assert_eq!(proc_table.runs(other, CommandLine::Needed), None);
    }
}
