//! Process table of the node from `/proc`: identity, owner and cgroup of each process. Reads are bounded and
//! go through an open directory, which keeps referring to the same process.

pub mod program;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bailiff_engine::process::{Devices, ProcessInfo, Table};
use bailiff_snapshot::stat;
use bailiff_snapshot::{Place, State, Status};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, fstat, openat, readlinkat, statx};
use rustix::io::Errno;

/// Maximum number of bytes that are read from a file of a process.
const MOST: usize = 256 << 10;
/// Major number of `/dev/nvidia0` and so on (Linux, Documentation/admin-guide/devices.txt).
const NVIDIA: u32 = 195;
/// Maximum number of processes in the table; more are an error.
const MOST_PROCESSES: usize = 1 << 18;

/// Error of reading the process table. No process is signalled then.
#[derive(Debug, thiserror::Error)]
pub enum ProcessTableError {
    /// `/proc` cannot be read.
    #[error("cannot read /proc: {0}")]
    Unreadable(Errno),
    /// `/proc` shows only our own processes.
    #[error("/proc hides the processes of other users (hidepid)")]
    Hides,
    /// `/proc` belongs to another PID namespace, so its pids would name other processes in a signal.
    #[error("/proc belongs to another PID namespace")]
    Foreign,
    /// A process could not be read, so its owner is unknown.
    #[error("cannot read process {0}: {1}")]
    Process(u32, Errno),
    /// The `stat` file of a process is malformed.
    #[error("cannot parse the data of process {0}")]
    Malformed(u32),
    /// There are more than the maximum number of processes.
    #[error("there are more than {MOST_PROCESSES} processes")]
    TooMany,
}

/// Cache of parsed `cgroup` files, by their text.
type Places = HashMap<Vec<u8>, (Arc<Place>, Option<Arc<str>>)>;

/// Reader of a `/proc` directory.
#[derive(Debug)]
pub struct Processes {
    root: OwnedFd,
    /// Prefix of the paths of GPU device files.
    devices: String,
}

impl Processes {
    /// Opens `/proc`; `devices` is the prefix of the paths of GPU device files.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn open(procfs: &Path, devices: &str) -> Result<Self, ProcessTableError> {
        let root = directory(CWD, procfs).map_err(ProcessTableError::Unreadable)?;
        Ok(Self { root, devices: devices.to_owned() })
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
    /// # Errors
    /// If a process cannot be read, or not all are visible.
    pub fn since(&self, before: Table, again: &BTreeSet<u32>) -> Result<Table, ProcessTableError> {
        let pids: BTreeSet<u32> = self.pids()?.into_iter().collect();
        let mut people = before.people;
        let mut places = Places::new();
        people.retain(|pid, _| pids.contains(pid) && !again.contains(pid));
        for pid in pids {
            if !people.contains_key(&pid)
                && let Some((person, _)) = self.read_process(pid, &mut places)?
            {
                people.insert(pid, person);
            }
        }
        Ok(Table::sorted(people))
    }

    /// Returns all pids; fails if some processes are hidden.
    fn pids(&self) -> Result<Vec<u32>, ProcessTableError> {
        self.own()?;
        let pids = numbers(&self.root).map_err(ProcessTableError::Unreadable)?;
        match pids.len() {
            _ if !pids.contains(&1) => Err(ProcessTableError::Hides),
            0..=MOST_PROCESSES => Ok(pids),
            _ => Err(ProcessTableError::TooMany),
        }
    }

    /// Checks that `/proc` shows our own PID namespace. Pids of another namespace would name other processes.
    fn own(&self) -> Result<(), ProcessTableError> {
        let ours = readlinkat(&self.root, "self", Vec::new()).map_err(|_| ProcessTableError::Foreign)?;
        let same = ours.to_str().is_ok_and(|pid| pid.parse() == Ok(std::process::id()));
        if same { Ok(()) } else { Err(ProcessTableError::Foreign) }
    }

    /// Reads a process by its pid in our own PID namespace; `None` if that fails or `/proc` shows another.
    #[must_use]
    pub fn own_person(&self, pid: u32) -> Option<ProcessInfo> {
        self.own().ok()?;
        self.person(pid).ok()?
    }

    /// Reads one process; `None` if it has ended.
    ///
    /// # Errors
    /// If the process exists and cannot be read.
    pub fn person(&self, pid: u32) -> Result<Option<ProcessInfo>, ProcessTableError> {
        Ok(self.read_process(pid, &mut Places::new())?.map(|(person, _)| person))
    }

    /// Reads one process and whether it has a GPU device file open, all through one open directory.
    ///
    /// # Errors
    /// If the process exists and cannot be read.
    pub fn holder(&self, pid: u32) -> Result<Option<(ProcessInfo, Devices)>, ProcessTableError> {
        let Some((person, directory)) = self.read_process(pid, &mut Places::new())? else { return Ok(None) };
        match self.devices(&directory, pid) {
            Ok(devices) => Ok(Some((person, devices))),
            Err(error) if is_gone(error) => Ok(None),
            Err(error) => Err(ProcessTableError::Process(pid, error)),
        }
    }

    /// Returns the state of each thread of a process, because the first thread may have ended or stopped
    /// before the others. Empty if the process has ended.
    ///
    /// # Errors
    /// If the process exists and cannot be read.
    pub fn threads(&self, pid: u32) -> Result<Vec<State>, ProcessTableError> {
        let read = || {
            let tasks = directory(&directory(&self.root, pid.to_string())?, "task")?;
            let numbers = numbers(&tasks)?;
            let stats =
                numbers.iter().map(|thread| match read(&directory(&tasks, thread.to_string())?, "stat") {
                    Err(error) if is_gone(error) => Ok(None),
                    stat => stat.map(|text| stat::parse(&text).map(|stat| stat.state)),
                });
            stats.filter_map(Result::transpose).collect::<Result<Vec<State>, Errno>>()
        };
        match read() {
            Err(error) if is_gone(error) => Ok(Vec::new()),
            states => states.map_err(|error| ProcessTableError::Process(pid, error)),
        }
    }

    /// Returns the content of `/proc/PID/cgroup`; `None` if it cannot be read.
    #[must_use]
    pub fn cgroup(&self, pid: u32) -> Option<String> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "cgroup").ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns whether a process is in our mount namespace; `None` if that cannot be read.
    #[must_use]
    pub fn same_mounts(&self, pid: u32) -> Option<bool> {
        let of = |pid: &str| readlinkat(directory(&self.root, pid).ok()?, "ns/mnt", Vec::new()).ok();
        Some(of(&pid.to_string())? == of("self")?)
    }

    /// Returns whether a process catches or ignores a signal instead of ending; `None` if that is unknown.
    #[must_use]
    pub fn heeds(&self, pid: u32, signal: i32) -> Option<bool> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "status").ok()?;
        let status = Status::new(&text);
        let bit = 1_u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
        Some((status.mask("SigCgt:")? | status.mask("SigIgn:")?) & bit != 0)
    }

    /// Returns whether a process is in a nested PID namespace; `None` if it has ended or that is unknown.
    #[must_use]
    pub fn nested(&self, pid: u32) -> Option<bool> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "status").ok()?;
        Some(Status::new(&text).pids()?.len() > 1)
    }

    fn read_process(
        &self,
        pid: u32,
        places: &mut Places,
    ) -> Result<Option<(ProcessInfo, OwnedFd)>, ProcessTableError> {
        match self.read(pid, places) {
            Ok((Some(person), directory)) => Ok(Some((person, directory))),
            Ok((None, _)) => Err(ProcessTableError::Malformed(pid)),
            Err(error) if is_gone(error) => Ok(None),
            Err(error) => Err(ProcessTableError::Process(pid, error)),
        }
    }

    fn read(&self, pid: u32, places: &mut Places) -> Result<(Option<ProcessInfo>, OwnedFd), Errno> {
        let held = directory(&self.root, pid.to_string())?;
        let uid = fstat(&held)?.st_uid;
        // If a cgroup path is unreadable (longer than PATH_MAX), only this process has no cgroup.
        let cgroup = match read(&held, "cgroup") {
            Err(error) if !is_gone(error) => Vec::new(),
            other => other?,
        };
        let (place, unified) = places.entry(cgroup).or_insert_with_key(|text| located(text)).clone();
        let stat = stat::parse(&read(&held, "stat")?).filter(|stat| stat.key.pid == pid);
        Ok((stat.map(|stat| ProcessInfo { stat, uid, place, unified }), held))
    }

    /// Returns whether a GPU device file is open. If the leader thread has exited, only other threads show
    /// it.
    fn devices(&self, process: &OwnedFd, pid: u32) -> Result<Devices, Errno> {
        let mut devices = self.devices_in(process, "fd")?;
        if devices == Devices::None {
            let tasks = directory(process, "task")?;
            for thread in numbers(&tasks)?.into_iter().filter(|thread| *thread != pid) {
                match self.devices_in(&tasks, &format!("{thread}/fd")) {
                    Ok(Devices::Open) => return Ok(Devices::Open),
                    Ok(Devices::Denied) => devices = Devices::Denied,
                    Ok(Devices::None) => {}
                    Err(error) if is_gone(error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(devices)
    }

    fn devices_in(&self, parent: &OwnedFd, name: &str) -> Result<Devices, Errno> {
        let descriptors = match directory(parent, name) {
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Devices::Denied),
            other => other?,
        };
        let numbers = match numbers(&descriptors) {
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Devices::Denied),
            other => other?,
        };
        for number in &numbers {
            match readlinkat(&descriptors, number.to_string(), Vec::new()) {
                Ok(link) if link.to_bytes().starts_with(self.devices.as_bytes()) => return Ok(Devices::Open),
                Err(Errno::ACCESS | Errno::PERM) => return Ok(Devices::Denied),
                // The descriptor was closed in the meantime.
                Ok(_) | Err(_) => {}
            }
        }
        // In another mount namespace the same device may have another path, so the device number is checked.
        let is_device = |number: &u32| is_nvidia(&descriptors, *number);
        Ok(if numbers.iter().any(is_device) { Devices::Open } else { Devices::None })
    }
}

/// Returns whether a descriptor is a character device of the NVIDIA driver. Uses cached attributes, because a
/// query may hang on a user's file system or an unreachable server.
fn is_nvidia(descriptors: &OwnedFd, number: u32) -> bool {
    let attributes = statx(descriptors, number.to_string(), AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    attributes.is_ok_and(|attributes| {
        FileType::from_raw_mode(attributes.stx_mode.into()) == FileType::CharacterDevice
            && attributes.stx_rdev_major == NVIDIA
    })
}

fn located(cgroup: &[u8]) -> (Arc<Place>, Option<Arc<str>>) {
    let text = String::from_utf8_lossy(cgroup);
    let unified = text.lines().find_map(|line| line.strip_prefix("0::")).map(Arc::from);
    (Arc::new(Place::parse(&text)), unified)
}

fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::SRCH)
}

fn directory<P: rustix::path::Arg>(parent: impl AsFd, name: P) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}

fn numbers(directory: &OwnedFd) -> Result<Vec<u32>, Errno> {
    let mut numbers = Vec::new();
    for entry in Dir::read_from(directory)? {
        numbers.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}

fn read(directory: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    // O_NONBLOCK, because a simulated /proc may contain a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = openat(directory, name, flags, Mode::empty())?;
    let mut text = vec![0; 4096];
    let mut length = 0;
    while length < MOST {
        if length == text.len() {
            text.resize(length * 2, 0);
        }
        let room = text.get_mut(length..).unwrap_or_default();
        match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *room))? {
            0 => break,
            read => length += read,
        }
    }
    text.truncate(length);
    Ok(text)
}
