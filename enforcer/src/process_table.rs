//! The processes of the node at this moment, from `/proc`: identity, owner, and cgroup.
//! Every file is read bounded, through a directory that is held open and therefore stays that of the process.

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

/// More of a process's file than this is not understood.
const MOST: usize = 256 << 10;
/// The major number of `/dev/nvidia0` and its like (Linux, Documentation/admin-guide/devices.txt).
const NVIDIA: u32 = 195;
/// More processes than this are not evaluated one by one.
const MOST_PROCESSES: usize = 1 << 18;

/// Why the processes could not all be read: then none is touched.
#[derive(Debug, thiserror::Error)]
pub enum ProcessTableError {
    /// `/proc` cannot be read.
    #[error("/proc cannot be read: {0}")]
    Unreadable(Errno),
    /// It shows us our own processes only.
    #[error("/proc hides the processes of others (hidepid)")]
    Hides,
    /// The pids in it are not those that we would signal.
    #[error("/proc is of another PID namespace than this program")]
    Foreign,
    /// One process could not be read, and so might belong to anybody.
    #[error("process {0} cannot be read: {1}")]
    Process(u32, Errno),
    /// A line that is none.
    #[error("process {0} cannot be understood")]
    Malformed(u32),
    /// Too many processes.
    #[error("there are more than {MOST_PROCESSES} processes")]
    TooMany,
}

/// Places that were met, by the text of their `cgroup`.
type Places = HashMap<Vec<u8>, (Arc<Place>, Option<Arc<str>>)>;

/// A `/proc` to read.
#[derive(Debug)]
pub struct Processes {
    root: OwnedFd,
    /// Device files begin so.
    devices: String,
}

impl Processes {
    /// Opens `/proc`; `devices` is what the paths of device files begin with.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(procfs: &Path, devices: &str) -> Result<Self, ProcessTableError> {
        let root = directory(CWD, procfs).map_err(ProcessTableError::Unreadable)?;
        Ok(Self { root, devices: devices.to_owned() })
    }

    /// Everybody.
    ///
    /// # Errors
    /// If one cannot be read, or not everybody is shown.
    pub fn everybody(&self) -> Result<Table, ProcessTableError> {
        self.since(Table::default(), &BTreeSet::new())
    }

    /// All processes; those that were there before are not read again, except these: a quick answer.
    /// A process that is to be touched must be read again in any case, once its pidfd is open.
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

    /// The pids, if all processes are visible.
    fn pids(&self) -> Result<Vec<u32>, ProcessTableError> {
        self.own()?;
        let pids = numbers(&self.root).map_err(ProcessTableError::Unreadable)?;
        match pids.len() {
            _ if !pids.contains(&1) => Err(ProcessTableError::Hides),
            0..=MOST_PROCESSES => Ok(pids),
            _ => Err(ProcessTableError::TooMany),
        }
    }

    /// Pids of another namespace would name other processes here.
    fn own(&self) -> Result<(), ProcessTableError> {
        let ours = readlinkat(&self.root, "self", Vec::new()).map_err(|_| ProcessTableError::Foreign)?;
        let same = ours.to_str().is_ok_and(|pid| pid.parse() == Ok(std::process::id()));
        if same { Ok(()) } else { Err(ProcessTableError::Foreign) }
    }

    /// A process that is named by a pid of this program's own namespace; none if it cannot be read, or pids here are of
    /// another one.
    #[must_use]
    pub fn own_person(&self, pid: u32) -> Option<ProcessInfo> {
        self.own().ok()?;
        self.person(pid).ok()?
    }

    /// One process, read again; none if it has ended.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn person(&self, pid: u32) -> Result<Option<ProcessInfo>, ProcessTableError> {
        Ok(self.read_process(pid, &mut Places::new())?.map(|(person, _)| person))
    }

    /// One process and whether it has a device file open, all read through one held directory.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn holder(&self, pid: u32) -> Result<Option<(ProcessInfo, Devices)>, ProcessTableError> {
        let Some((person, directory)) = self.read_process(pid, &mut Places::new())? else { return Ok(None) };
        match self.devices(&directory, pid) {
            Ok(devices) => Ok(Some((person, devices))),
            Err(error) if is_gone(error) => Ok(None),
            Err(error) => Err(ProcessTableError::Process(pid, error)),
        }
    }

    /// What each thread of a process is doing: the first one may have ended, or stand still before the others do. None where
    /// it has ended.
    ///
    /// # Errors
    /// If it is there and cannot be read.
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

    /// A process's `/proc/PID/cgroup`, where it can be read.
    #[must_use]
    pub fn cgroup(&self, pid: u32) -> Option<String> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "cgroup").ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether a process sees the mounts that we see; none if that may not be read.
    #[must_use]
    pub fn same_mounts(&self, pid: u32) -> Option<bool> {
        let of = |pid: &str| readlinkat(directory(&self.root, pid).ok()?, "ns/mnt", Vec::new()).ok();
        Some(of(&pid.to_string())? == of("self")?)
    }

    /// Whether a process would not end by a signal itself: it catches or ignores it. None if that cannot be read.
    #[must_use]
    pub fn heeds(&self, pid: u32, signal: i32) -> Option<bool> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "status").ok()?;
        let status = Status::new(&text);
        let bit = 1_u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
        Some((status.mask("SigCgt:")? | status.mask("SigIgn:")?) & bit != 0)
    }

    /// Whether a process is in a PID namespace below ours; none if it has ended, or the kernel does not show it.
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
        // A process whose path is unreadable (longer than PATH_MAX) belongs to no group; the others are not refused because of it.
        let cgroup = match read(&held, "cgroup") {
            Err(error) if !is_gone(error) => Vec::new(),
            other => other?,
        };
        let (place, unified) = places.entry(cgroup).or_insert_with_key(|text| located(text)).clone();
        let stat = stat::parse(&read(&held, "stat")?).filter(|stat| stat.key.pid == pid);
        Ok((stat.map(|stat| ProcessInfo { stat, uid, place, unified }), held))
    }

    /// An exited thread-group leader has no descriptors; they are visible at its running threads.
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
                // A descriptor that was closed meanwhile.
                Ok(_) | Err(_) => {}
            }
        }
        // Behind mounts of its own a path reads otherwise; the device is the same.
        let is_device = |number: &u32| is_nvidia(&descriptors, *number);
        Ok(if numbers.iter().any(is_device) { Devices::Open } else { Devices::None })
    }
}

/// Whether a descriptor is a character device of NVIDIA's driver. Cached attributes suffice, so that a user's file system or
/// an unreachable server is not queried.
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
    // Not blocking: a made-up /proc may hold a FIFO.
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
