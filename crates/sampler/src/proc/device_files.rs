#![expect(clippy::disallowed_methods, reason = "looking has a time limit")]
//! Finds processes with `/dev/nvidiaN` open, including those that the driver does not list, such as forked
//! workers. The scan reads every descriptor of the node, so it is rare and split into parts.

use std::path::Path;
use std::time::{Duration, Instant};

use bailiff_snapshot::identity::millis;
use bailiff_snapshot::{DeviceProcess, DeviceProcesses, Moment, State, stat};

use super::files::{Directory, ReadError};
use crate::clock::now;

/// Number of descriptors read between two checks of the clock.
const MANY: usize = 256;
/// Maximum number of ancestors examined.
const MOST_ANCESTORS: usize = 16;

/// Returns the processes with open device files, as far as permissions and `patience` allow; `None` if
/// `/proc` is not readable.
#[must_use]
pub fn device_processes(procfs: &Path, patience: Duration) -> Option<DeviceProcesses> {
    let root = Directory::open(procfs).ok()?;
    let mut search = Search::begin(&root, now()).ok()?;
    search.go_on(&root, Instant::now() + patience);
    Some(search.end())
}

/// Removes processes that no longer run.
pub(crate) fn keep_living(root: &Directory, device_processes: &mut DeviceProcesses) {
    device_processes.processes.retain(|process| begin(root, process.pid) == process.start_ticks);
}

/// A scan of all processes that can be continued later.
pub(crate) struct Search {
    /// Pids still to be scanned, the next one last.
    due: Vec<u32>,
    found: DeviceProcesses,
}

/// Why a process's descriptors could not be listed.
enum DescriptorError {
    ReadError(ReadError),
    /// The deadline has passed.
    Late,
}

impl Search {
    pub(crate) fn begin(root: &Directory, at: Moment) -> Result<Self, ReadError> {
        let ours = std::process::id();
        let mut due = root.numbers()?;
        due.retain(|pid| *pid != ours);
        due.reverse();
        Ok(Self {
            due,
            found: DeviceProcesses { boot_ms: millis(at.boot), processes: Vec::new(), unreadable: 0 },
        })
    }

    /// Returns when the scan began, as time since boot.
    pub(crate) const fn began(&self) -> Duration {
        self.found.at()
    }

    /// Scans until the deadline, and returns whether all processes were scanned. A process that takes longer
    /// than a whole part counts as unreadable.
    pub(crate) fn go_on(&mut self, root: &Directory, until: Instant) -> bool {
        let mut is_first = true;
        while let Some(pid) = self.due.pop() {
            match root
                .directory(&pid.to_string())
                .map_err(DescriptorError::ReadError)
                .and_then(|directory| minors((&directory, pid), until))
            {
                Ok(minors) if minors.is_empty() => {}
                Ok(minors) => self.found.processes.extend(device_process(root, pid, minors)),
                Err(DescriptorError::ReadError(ReadError::Gone)) => {}
                Err(DescriptorError::Late) if !is_first => self.due.push(pid),
                Err(_) => self.found.unreadable += 1,
            }
            is_first = false;
            if Instant::now() >= until {
                break;
            }
        }
        self.due.is_empty()
    }

    /// Returns the result. Processes not yet scanned count as unreadable.
    pub(crate) fn end(mut self) -> DeviceProcesses {
        self.found.unreadable += self.due.len() as u64;
        self.found
    }
}

/// Returns the process, or `None` if it has exited or is our own worker, which has the driver's files open.
fn device_process(root: &Directory, pid: u32, minors: Vec<u32>) -> Option<DeviceProcess> {
    let directory = root.directory(&pid.to_string()).ok()?;
    let mut buffer = Vec::new();
    let stat = stat::parse(directory.read("stat", &mut buffer).ok()?)?;
    let mut parent = stat.ppid;
    for _ in 0..MOST_ANCESTORS {
        if parent == std::process::id() {
            return None;
        }
        let line = root.read(&format!("{parent}/stat"), &mut buffer).ok();
        match line.and_then(stat::parse) {
            Some(above) if above.ppid != 0 => parent = above.ppid,
            _ => break,
        }
    }
    Some(DeviceProcess {
        pid,
        start_ticks: Some(stat.key.start_ticks),
        comm: stat.comm,
        uid: directory.owner().ok(),
        minors,
    })
}

fn begin(root: &Directory, pid: u32) -> Option<u64> {
    let mut buffer = Vec::new();
    let line = root.read_piece(&format!("{pid}/stat"), &mut buffer).ok()?;
    stat::parse(line).map(|stat| stat.key.start_ticks)
}

/// Returns the minor numbers of the open device files. An exited thread-group leader has no descriptors, so
/// they are read from its running threads, which share them.
fn minors((directory, pid): (&Directory, u32), until: Instant) -> Result<Vec<u32>, DescriptorError> {
    let mut listed = listed(&directory.directory("fd").map_err(DescriptorError::ReadError)?, until)?;
    if listed.count == 0 && has_threads_alone(directory) {
        let tasks = directory.directory("task").map_err(DescriptorError::ReadError)?;
        for thread in
            tasks.numbers().map_err(DescriptorError::ReadError)?.into_iter().filter(|thread| *thread != pid)
        {
            if Instant::now() >= until {
                return Err(DescriptorError::Late);
            }
            let Ok(descriptors) = tasks.directory(&format!("{thread}/fd")) else { continue };
            match self::listed(&descriptors, until) {
                Ok(found) if found.count > 0 => {
                    listed = found;
                    break;
                }
                Ok(_) | Err(DescriptorError::ReadError(_)) => {}
                Err(late) => return Err(late),
            }
        }
    }
    listed.minors.sort_unstable();
    listed.minors.dedup();
    Ok(listed.minors)
}

/// Returns whether the thread-group leader has exited while other threads run.
fn has_threads_alone(directory: &Directory) -> bool {
    let mut buffer = Vec::new();
    let stat = directory.read("stat", &mut buffer).ok().and_then(stat::parse);
    stat.is_some_and(|stat| stat.state == State::Zombie && stat.threads > 1)
}

/// Result of reading a descriptor table.
struct Listed {
    count: usize,
    minors: Vec<u32>,
}

fn listed(descriptors: &Directory, until: Instant) -> Result<Listed, DescriptorError> {
    let mut listed = Listed { count: 0, minors: Vec::new() };
    let mut is_late = false;
    let each = |name: &str| {
        listed.count += 1;
        is_late = listed.count.is_multiple_of(MANY) && Instant::now() >= until;
        let link = if is_late { None } else { descriptors.link(name).ok() };
        listed.minors.extend(link.and_then(|link| link.strip_prefix("/dev/nvidia")?.parse::<u32>().ok()));
        !is_late
    };
    descriptors.each_name(each).map_err(DescriptorError::ReadError)?;
    if is_late { Err(DescriptorError::Late) } else { Ok(listed) }
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
        let found = device_processes(home.path(), Duration::from_mins(1)).unwrap();
        assert_eq!((pids(&found), found.unreadable), (vec![60], 0));
    }

    #[test]
    fn scan_continues_and_counts_what_it_did_not_read() {
        let home = tempfile::tempdir().unwrap();
        for pid in [40, 50, 60] {
            process(home.path(), pid, ('S', 1));
            open(home.path(), &format!("{pid}/fd"), &["/dev/nvidia0"]);
        }
        let root = Directory::open(home.path()).unwrap();
        let begin = || Search::begin(&root, Moment::default()).unwrap();
        let at_once = Instant::now();
        let mut search = begin();
        assert_eq!(
            [(); 3].map(|()| search.go_on(&root, at_once)),
            [false, false, true],
            "each part finds one process"
        );
        let found = search.end();
        assert_eq!((pids(&found), found.unreadable), (vec![40, 50, 60], 0));
        let mut search = begin();
        search.go_on(&root, at_once);
        let found = search.end();
        assert_eq!((found.processes.len(), found.unreadable), (1, 2));
    }

    #[test]
    fn process_with_too_many_files_is_unreadable() {
        let home = tempfile::tempdir().unwrap();
        process(home.path(), 40, ('S', 1));
        open(home.path(), "40/fd", &["/dev/nvidia0"; 2 * MANY]);
        let root = Directory::open(home.path()).unwrap();
        let mut search = Search::begin(&root, Moment::default()).unwrap();
        assert!(search.go_on(&root, Instant::now()));
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
        }
        assert_eq!(pids(&device_processes(home.path(), Duration::from_mins(1)).unwrap()), [40]);
    }

    #[test]
    fn ended_process_and_reused_pid_are_dropped() {
        let home = tempfile::tempdir().unwrap();
        for pid in [40, 50, 60] {
            process(home.path(), pid, ('S', 1));
            open(home.path(), &format!("{pid}/fd"), &["/dev/nvidia1"]);
        }
        let mut found = device_processes(home.path(), Duration::from_mins(1)).unwrap();
        assert_eq!(pids(&found), [40, 50, 60]);
        fs::remove_dir_all(home.path().join("40")).unwrap();
        let line = "50 (y) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999";
        fs::write(home.path().join("50/stat"), line).unwrap();
        keep_living(&Directory::open(home.path()).unwrap(), &mut found);
        assert_eq!(pids(&found), [60]);
    }
}
