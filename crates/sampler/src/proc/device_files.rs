#![expect(clippy::disallowed_methods, reason = "looking has a time limit")]
//! Finds processes with a GPU's device file open, including those that the driver does not list, such as forked
//! workers. The scan reads every descriptor of the node, so it is rare and split into parts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use bailiff_proc::clock::{Deadline, now};
use bailiff_proc::{Directory, LATE, Proc, Process, ReadError};
use bailiff_snapshot::identity::millis;
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{DeviceProcess, DeviceProcesses, FIRST_USER, Moment, State};

use crate::launcher::WORKER_ROLE;

/// Number of descriptors read between two checks of the clock.
const MANY: usize = 256;
/// Minimum time limit of a process. One whose owner makes reads hang counts as unreadable.
const SHORTEST: Duration = Duration::from_millis(200);
/// Major number of the device files of GPUs, and the first minor number that is not a GPU's (Linux, devices.txt).
const NVIDIA: u32 = 195;
const FIRST_OTHER: u32 = 254;
/// Maximum number of ancestors examined.
const MOST_ANCESTORS: usize = 16;

/// Returns the processes with open device files, as far as permissions and `patience` allow, and the pids of those that
/// were not read; `None` if `/proc` is not readable.
pub fn device_processes(procfs: &Path, patience: Duration) -> Option<(DeviceProcesses, Vec<u32>)> {
    let proc = Proc::open(procfs).ok()?;
    let mut search = Search::begin(&proc, now()).ok()?;
    let until = Instant::now() + patience;
    while !search.go_on(&proc, until) && Instant::now() < until {}
    let unread = search.unread().collect();
    Some((search.end(), unread))
}

/// Removes processes that no longer run.
pub(crate) fn keep_living(proc: &Proc, device_processes: &mut DeviceProcesses) {
    let pids = device_processes.processes.iter().map(|process| process.pid).collect();
    let read = proc.each(pids, Some(Deadline::after(SHORTEST)), Proc::stat_blocking).unwrap_or_default();
    let read: BTreeMap<u32, Result<Stat, ReadError>> = read.into_iter().collect();
    let living = |process: &DeviceProcess| match read.get(&process.pid) {
        Some(Ok(stat)) => Some(stat.key.start_ticks) == process.start_ticks,
        Some(Err(error)) => *error != ReadError::Gone,
        None => true,
    };
    device_processes.processes.retain(living);
}

/// A scan of all processes that can be continued later.
pub(crate) struct Search {
    /// Pids still to be scanned, the next one last.
    due: Vec<u32>,
    /// Pids that took long, or of users whose processes took long. They are scanned one by one after all others.
    later: Vec<u32>,
    /// Pids that could not be read.
    failed: Vec<u32>,
    found: DeviceProcesses,
    known_by: KnownBy,
}

/// What shows that a file is a GPU's device file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownBy {
    /// Its number. A user can give another file the same path, in a mount namespace of the user's own.
    Number,
    /// Its number, and that it is open. A user needs no permission to refer to a file with `O_PATH`.
    OpenNumber,
    /// Its path, in a made-up `/proc`.
    Path,
}

impl Search {
    pub(crate) fn begin(proc: &Proc, at: Moment) -> Result<Self, ReadError> {
        let ours = std::process::id();
        let mut due = proc.pids()?;
        due.retain(|pid| *pid != ours);
        due.reverse();
        Ok(Self {
            known_by: if proc.is_kernels() { KnownBy::Number } else { KnownBy::Path },
            due,
            later: Vec::new(),
            failed: Vec::new(),
            found: DeviceProcesses { boot_ms: millis(at.boot), processes: Vec::new(), unreadable: 0 },
        })
    }

    /// Returns when the scan began, as time since boot.
    pub(crate) const fn began(&self) -> Duration {
        self.found.at()
    }

    /// Scans until the deadline, but at least one process, and returns whether all processes were scanned.
    pub(crate) fn go_on(&mut self, proc: &Proc, until: Instant) -> bool {
        let left = || until.saturating_duration_since(Instant::now());
        let known_by = self.known_by;
        let read = move |process: &Process| device_process(process, (known_by, until));
        if !self.due.is_empty() {
            let most = if left().is_zero() { 1 } else { self.due.len() };
            let pids = self.due.iter().rev().take(most).copied().collect();
            let deadline = Deadline::after(left().max(SHORTEST));
            let each = move |proc: &Proc, pid| read(&proc.process(pid)?);
            let results = proc.each(pids, Some(deadline), each).unwrap_or_default();
            let scanned: BTreeSet<u32> = results.iter().map(|(pid, _)| *pid).collect();
            self.due.retain(|pid| !scanned.contains(pid));
            for (pid, result) in results {
                if matches!(result, Err(LATE)) { self.later.push(pid) } else { self.add(proc, pid, result) }
            }
            return self.due.is_empty() && self.later.is_empty();
        }
        let mut is_first = true;
        while let Some(pid) = self.later.pop() {
            let result = proc.process(pid).and_then(|process| process.within(left().max(SHORTEST), read));
            let is_late = left().is_zero();
            // It had less time than a whole part.
            if is_late && !is_first && matches!(result, Err(LATE)) {
                self.later.push(pid);
                break;
            }
            self.add(proc, pid, result);
            if is_late {
                break;
            }
            is_first = false;
        }
        self.later.is_empty()
    }

    fn add(&mut self, proc: &Proc, pid: u32, result: Result<Option<DeviceProcess>, ReadError>) {
        match result {
            Ok(found) => self.found.processes.extend(found.filter(|found| !is_ours(proc, found))),
            Err(ReadError::Gone) => {}
            Err(_) => self.failed.push(pid),
        }
    }

    /// Returns the pids that could not be read, or were not scanned yet.
    fn unread(&self) -> impl Iterator<Item = u32> {
        self.failed.iter().chain(&self.due).chain(&self.later).copied()
    }

    /// Returns the result. Processes not yet scanned count as unreadable.
    pub(crate) fn end(mut self) -> DeviceProcesses {
        self.found.unreadable = self.unread().count() as u64;
        self.found
    }
}

/// Returns the process if it has device files open and is not a sampling worker, which has the driver's files open.
fn device_process(
    process: &Process,
    (known_by, until): (KnownBy, Instant),
) -> Result<Option<DeviceProcess>, ReadError> {
    let uid = process.owner().ok();
    let is_system = uid.is_some_and(|uid| uid < FIRST_USER);
    // Users can send descriptors to daemons such as D-Bus, whose users are not root, and programs such as sudo inherit them.
    let is_setuid = || process.cached_attributes("exe").map_or(true, |program| program.is_setuid);
    let known_by = match known_by {
        KnownBy::Number if uid != Some(0) => KnownBy::OpenNumber,
        other => other,
    };
    let mut minors = self::minors(process, (known_by, until))?;
    if known_by == KnownBy::Number && !minors.is_empty() && is_setuid() {
        minors = self::minors(process, (KnownBy::OpenNumber, until))?;
    }
    if minors.is_empty() {
        return Ok(None);
    }
    let stat = process.stat()?;
    if is_system && is_worker(process) {
        return Ok(None);
    }
    let (pid, start_ticks) = (stat.key.pid, Some(stat.key.start_ticks));
    Ok(Some(DeviceProcess { pid, start_ticks, comm: stat.comm, uid, minors }))
}

/// Returns whether a process descends from this program. A user can make that slow, so it is not asked about processes of
/// other users.
fn is_ours(proc: &Proc, process: &DeviceProcess) -> bool {
    if !process.uid.is_none_or(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw()) {
        return false;
    }
    let stat = |pid: &u32| proc.process(*pid).ok()?.stat_from_status().ok();
    let parent = |pid: &u32| stat(pid).map(|stat| stat.ppid).filter(|parent| *parent != 0);
    let mut ancestors = std::iter::successors(Some(process.pid), parent).skip(1).take(MOST_ANCESTORS);
    ancestors.any(|pid| pid == std::process::id())
}

/// Returns whether this is a worker of any of our programs. Only asked about processes of the system's users, because
/// others could start one with a library of their own.
fn is_worker(process: &Process) -> bool {
    let line = process.cmdline().unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(WORKER_ROLE.as_bytes())
}

/// Returns the minor numbers of the open device files. An exited thread-group leader has no descriptors, so
/// they are read from its running threads, which share them.
fn minors(process: &Process, (known_by, until): (KnownBy, Instant)) -> Result<Vec<u32>, ReadError> {
    let mut listed = listed(&process.directory("fd")?, (known_by, until))?;
    if listed.count == 0 && has_threads_alone(process) {
        for thread in process.other_threads()? {
            if Instant::now() >= until {
                return Err(LATE);
            }
            let Ok(descriptors) = process.directory(&format!("task/{thread}/fd")) else { continue };
            match self::listed(&descriptors, (known_by, until)) {
                Ok(found) if found.count > 0 => {
                    listed = found;
                    break;
                }
                Err(LATE) => return Err(LATE),
                Ok(_) | Err(_) => {}
            }
        }
    }
    listed.minors.sort_unstable();
    listed.minors.dedup();
    Ok(listed.minors)
}

/// Returns whether the thread-group leader has exited while other threads run.
fn has_threads_alone(process: &Process) -> bool {
    process.stat().is_ok_and(|stat| stat.state == State::Zombie && stat.threads > 1)
}

/// Result of reading a descriptor table.
struct Listed {
    count: usize,
    minors: Vec<u32>,
}

fn listed(descriptors: &Directory, (known_by, until): (KnownBy, Instant)) -> Result<Listed, ReadError> {
    let mut listed = Listed { count: 0, minors: Vec::new() };
    let mut is_late = false;
    let each = |name: &str| {
        listed.count += 1;
        is_late = listed.count.is_multiple_of(MANY) && Instant::now() >= until;
        listed.minors.extend(if is_late { None } else { minor(descriptors, name, known_by) });
        !is_late
    };
    descriptors.each_name(each)?;
    if is_late { Err(LATE) } else { Ok(listed) }
}

/// Returns the minor number of a descriptor's file, if it is a GPU's device file.
fn minor(descriptors: &Directory, name: &str, known_by: KnownBy) -> Option<u32> {
    match known_by {
        // Cached attributes, because a query may hang on a user's file system.
        KnownBy::Number | KnownBy::OpenNumber => {
            let (major, minor) = descriptors.cached_attributes(name).ok()?.character?;
            let is_gpu = major == NVIDIA && minor < FIRST_OTHER;
            let is_open = || known_by == KnownBy::Number || descriptors.is_open_for_use(name);
            (is_gpu && is_open()).then_some(minor)
        }
        KnownBy::Path => descriptors.link(name).ok()?.strip_prefix("/dev/nvidia")?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Creates a fake process with this state and number of threads.
    fn process(home: &Path, pid: u32, (state, threads): (char, u32)) {
        fs::create_dir_all(home.join(format!("{pid}/fd"))).unwrap();
        let line = format!("{pid} (x) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 {pid}0");
        fs::write(home.join(format!("{pid}/stat")), line).unwrap();
    }

    fn open(home: &Path, at: &str, targets: &[&str]) {
        fs::create_dir_all(home.join(at)).unwrap();
        for (number, target) in targets.iter().enumerate() {
            symlink(target, home.join(format!("{at}/{number}"))).unwrap();
        }
    }

    fn pids(device_processes: &DeviceProcesses) -> Vec<u32> {
        let mut pids: Vec<u32> = device_processes.processes.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn threads_are_looked_into_only_where_the_leader_has_ended() {
        let home = tempfile::tempdir().unwrap();
        process(home.path(), 40, ('S', 2));
        open(home.path(), "40/fd", &["/dev/null"]);
        process(home.path(), 50, ('S', 2));
        process(home.path(), 60, ('Z', 2));
        for pid in [40, 50, 60] {
            fs::create_dir_all(home.path().join(format!("{pid}/task/{pid}"))).unwrap();
            open(home.path(), &format!("{pid}/task/{}/fd", pid + 1), &["/dev/nvidia0", "/dev/nvidiactl"]);
        }
        let found = device_processes(home.path(), Duration::from_mins(1)).unwrap().0;
        assert_eq!((pids(&found), found.unreadable), (vec![60], 0));
    }

    #[test]
    fn scan_continues_and_counts_what_it_did_not_read() {
        let home = tempfile::tempdir().unwrap();
        for pid in [40, 50, 60] {
            process(home.path(), pid, ('S', 1));
            open(home.path(), &format!("{pid}/fd"), &["/dev/nvidia0"]);
        }
        let proc = Proc::open(home.path()).unwrap();
        let begin = || Search::begin(&proc, Moment::default()).unwrap();
        let at_once = Instant::now();
        let mut search = begin();
        assert_eq!(
            [(); 3].map(|()| search.go_on(&proc, at_once)),
            [false, false, true],
            "each part finds one process"
        );
        let found = search.end();
        assert_eq!((pids(&found), found.unreadable), (vec![40, 50, 60], 0));
        let mut search = begin();
        search.go_on(&proc, at_once);
        let found = search.end();
        assert_eq!((found.processes.len(), found.unreadable), (1, 2));
    }

    #[test]
    fn process_with_too_many_files_is_unreadable() {
        let home = tempfile::tempdir().unwrap();
        process(home.path(), 40, ('S', 1));
        open(home.path(), "40/fd", &["/dev/nvidia0"; 2 * MANY]);
        let proc = Proc::open(home.path()).unwrap();
        let mut search = Search::begin(&proc, Moment::default()).unwrap();
        let at_once = Instant::now();
        assert_eq!([(); 2].map(|()| search.go_on(&proc, at_once)), [false, true]);
        let found = search.end();
        assert_eq!((found.processes.len(), found.unreadable), (0, 1));
    }

    #[test]
    fn own_child_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        for (pid, parent) in [(40, 1), (50, std::process::id()), (60, 50)] {
            process(home.path(), pid, ('S', 1));
            open(home.path(), &format!("{pid}/fd"), &["/dev/nvidia0"]);
            let line = format!("{pid} (x) S {parent} 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7");
            fs::write(home.path().join(format!("{pid}/stat")), line).unwrap();
            let status =
                format!("Name:\tx\nState:\tS\nPid:\t{pid}\nPPid:\t{parent}\nThreads:\t1\nNSsid:\t7\n");
            fs::write(home.path().join(format!("{pid}/status")), status).unwrap();
        }
        assert_eq!(pids(&device_processes(home.path(), Duration::from_mins(1)).unwrap().0), [40]);
    }

    #[test]
    fn workers_of_other_programs_are_left_out() {
        let home = tempfile::tempdir().unwrap();
        process(home.path(), 40, ('S', 1));
        open(home.path(), "40/fd", &["/dev/nvidia0"]);
        let found = |line: &str| {
            fs::write(home.path().join("40/cmdline"), line).unwrap();
            pids(&device_processes(home.path(), Duration::from_mins(1)).unwrap().0)
        };
        // The owner of these files, and thus of the process, is root.
        assert_eq!(found("/proc/self/exe\0sampling-worker\0{}\0"), [0; 0]);
        assert_eq!(found("python\0train.py\0"), [40]);
    }

    #[test]
    fn ended_process_and_reused_pid_are_dropped() {
        let home = tempfile::tempdir().unwrap();
        for pid in [40, 50, 60] {
            process(home.path(), pid, ('S', 1));
            open(home.path(), &format!("{pid}/fd"), &["/dev/nvidia1"]);
        }
        let mut found = device_processes(home.path(), Duration::from_mins(1)).unwrap().0;
        assert_eq!(pids(&found), [40, 50, 60]);
        fs::remove_dir_all(home.path().join("40")).unwrap();
        let line = "50 (y) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999";
        fs::write(home.path().join("50/stat"), line).unwrap();
        keep_living(&Proc::open(home.path()).unwrap(), &mut found);
        assert_eq!(pids(&found), [60]);
    }
}
