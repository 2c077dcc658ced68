//! The pool's directory and its files. All files are opened relative to the directory. Symbolic links are not
//! followed, and only regular files that belong to the pool's owner are used.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::open_below;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::fs::{fchmod, fchown, flock, fstat, mkdirat, openat, renameat, statat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::path::{self, DIRECTORY};
use super::processes::{Inode, Locks};
use super::token::TokenClock;
use crate::LeaseError;

/// Longer files are not read. A record with the longest values has at most 26 KiB ([`Record`](super::record::Record)).
const LONGEST: usize = 1 << 15;
/// Maximum wait for the gate lock. The holder needs less time, unless it was stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of mounts over a file that are removed. A user can have 1,000 (`mount_max` in `fuse.conf`).
const MOST_MOUNTS: usize = 4096;
/// Pauses between attempts to take the gate lock, which is held for about 50 µs.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A GPU of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManagedGpu {
    pub(super) id: u32,
    pub(super) uuid: Option<String>,
}

/// The GPUs of the pool, and the file that lists them.
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) gpus: Vec<ManagedGpu>,
    pub(super) tokens: TokenClock,
    file: Stat,
}

#[derive(Serialize, Deserialize)]
struct Description {
    version: u32,
    gpus: Vec<ManagedGpu>,
    #[serde(flatten)]
    tokens: TokenClock,
}

/// The opened directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    top: OwnedFd,
    gpus: OwnedFd,
    records: OwnedFd,
    pub(super) queue: OwnedFd,
    gate: File,
    owner: u32,
}

impl Directory {
    /// Opens the directory of an existing pool.
    pub(super) fn open(path: &Path) -> Result<Self, LeaseError> {
        let top = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(|error| absent(path, error))?;
        Self::within(path, top)
    }

    fn within(path: &Path, top: OwnedFd) -> Result<Self, LeaseError> {
        let absent = |error| absent(path, error);
        let below = |name: &str| openat(&top, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        let (gpus, queue) = (below("gpu").map_err(absent)?, below("queue").map_err(absent)?);
        let records = below("record").map_err(absent)?;
        let gate = File::from(open_below(&top, "gate", READ).map_err(|error| match error {
            Errno::NOENT => absent(error),
            error => lease_error(&path.join("gate"), error),
        })?);
        let owner = fstat(&top).map_err(|error| lease_error(path, error))?.st_uid;
        check(&gate, owner).map_err(|error| LeaseError::file(&path.join("gate"), &error))?;
        Ok(Self { path: path.to_owned(), top, gpus, records, queue, gate, owner })
    }

    /// Creates missing files. The mode of an existing directory decides whether the pool is for all users or for a
    /// group.
    pub(super) fn make(path: &Path) -> Result<Self, LeaseError> {
        let top = path::create(path)?;
        let wrong = |error| lease_error(path, error);
        let found = fstat(&top).map_err(wrong)?;
        let rights = Rights::of(&found);
        file(&top, "gate", (rights, rights.read), found.st_uid)
            .map_err(|error| LeaseError::file(&path.join("gate"), &error))?;
        for (name, mode) in [("gpu", rights.directory), ("record", rights.directory), ("queue", rights.queue)]
        {
            match mkdirat(&top, name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(lease_error(&path.join(name), error)),
            }
        }
        let directory = Self::within(path, top)?;
        rights.apply(&directory.gpus, rights.directory).map_err(wrong)?;
        rights.apply(&directory.records, rights.directory).map_err(wrong)?;
        rights.apply(&directory.queue, rights.queue).map_err(wrong)?;
        Ok(directory)
    }

    /// Reads the GPUs of the pool.
    pub(super) fn managed(&self) -> Result<Managed, LeaseError> {
        let path = self.path.join("pool");
        let file = match open_below(&self.top, "pool", READ) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(LeaseError::Absent(self.path.display().to_string())),
            Err(error) => return Err(lease_error(&path, error)),
        };
        let found = check(&file, self.owner).map_err(|error| LeaseError::file(&path, &error))?;
        let mut text = Vec::with_capacity(4096);
        file.take(1 << 24).read_to_end(&mut text).map_err(|error| LeaseError::file(&path, &error))?;
        match serde_json::from_slice(&text) {
            Ok(Description { version: 1, gpus, tokens }) => Ok(Managed { gpus, tokens, file: found }),
            _ => Err(LeaseError::file(
                &path,
                &io::Error::other("invalid content; `bailiff lease init --force` rewrites it"),
            )),
        }
    }

    /// Whether the list of GPUs is unchanged.
    pub(super) fn is_current(&self, managed: &Managed) -> bool {
        let found = statat(&self.top, "pool", AtFlags::SYMLINK_NOFOLLOW);
        let stamp = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
        found.is_ok_and(|found| same(&found, &managed.file) && stamp(&found) == stamp(&managed.file))
    }

    /// Locks the existing files of GPUs, so that no client is granted one of these GPUs until the files are
    /// replaced. A shared lock of another process does not prevent this, because leases use exclusive locks, and neither does
    /// a lock that no process has. If other processes have exclusive locks, returns the number of GPUs with such a lock. These
    /// GPUs may be leased even if their records do not show a lease, because every user can overwrite the records.
    pub(super) fn lock_gpus<'a>(&self, ids: impl Iterator<Item = &'a u32>) -> Result<Vec<File>, u64> {
        let (mut locked, mut held) = (Vec::new(), 0);
        for id in ids {
            let file = match self.gpu(*id) {
                Ok((file, _)) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // Someone may hold a file that cannot be opened.
                Err(_) => {
                    held += 1;
                    continue;
                }
            };
            let kinds = [FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingLockShared];
            let is_locked = kinds.into_iter().any(|kind| flock(&file, kind).is_ok());
            if is_locked || Inode::of(&file).is_some_and(|inode| Locks::read().is_in_no_process(inode)) {
                locked.push(file);
            } else {
                held += 1;
            }
        }
        if held > 0 { Err(held) } else { Ok(locked) }
    }

    /// Replaces the list of GPUs atomically. With `replace`, each GPU gets a new file, so that locks on its old file
    /// lose their meaning.
    pub(super) fn write_pool(
        &self,
        (gpus, tokens): (Vec<ManagedGpu>, TokenClock),
        replace: bool,
    ) -> Result<(), LeaseError> {
        let rights = self.make_gpu_files(&gpus, replace)?;
        let path = self.path.join("pool");
        let text = serde_json::to_vec(&Description { version: 1, gpus, tokens });
        let text = text.map_err(|error| LeaseError::file(&path, &error.into()))?;
        let write = || {
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = File::from(openat(&self.top, "pool.new", flags, rights.read)?);
            rights.apply(&file, rights.read)?;
            file.write_all_at(&text, 0)?;
            Ok(renameat(&self.top, "pool.new", &self.top, "pool")?)
        };
        write().map_err(|error: io::Error| LeaseError::file(&path, &error))
    }

    /// Creates the missing files of GPUs. With `replace`, each GPU gets a new lock file and an empty record.
    pub(super) fn make_gpu_files(&self, gpus: &[ManagedGpu], replace: bool) -> Result<Rights, LeaseError> {
        let rights = Rights::of(&fstat(&self.top).map_err(|error| lease_error(&self.path, error))?);
        for gpu in gpus {
            let name = gpu.id.to_string();
            let make = || {
                if !replace {
                    return file(&self.gpus, &name, (rights, rights.read), self.owner).map(drop);
                }
                let new = format!("{name}.new");
                file(&self.gpus, &new, (rights, rights.read), self.owner)?;
                Ok(renameat(&self.gpus, new, &self.gpus, &name)?)
            };
            let record = || {
                let record = file(&self.records, &name, (rights, rights.record), self.owner)?;
                if replace { record.set_len(0) } else { Ok(()) }
            };
            // Leases do not need it, and a user can mount a file system over it again and again.
            let _: io::Result<()> = record();
            make()
                .map_err(|error: io::Error| LeaseError::file(&self.path.join("gpu").join(&name), &error))?;
        }
        Ok(rights)
    }

    /// Opens the lock file of a GPU.
    pub(super) fn gpu(&self, id: u32) -> io::Result<(File, Stat)> {
        let file = File::from(open_below(&self.gpus, id.to_string(), READ)?);
        let found = check(&file, self.owner)?;
        Ok((file, found))
    }

    /// Opens the record of a GPU, which every user can write to.
    pub(super) fn record(&self, id: u32, access: OFlags) -> io::Result<File> {
        let file = File::from(open_below(&self.records, id.to_string(), access | OFlags::NONBLOCK)?);
        check(&file, self.owner)?;
        Ok(file)
    }

    /// Returns when the record of a GPU was last written, which is when the GPU was last granted.
    pub(super) fn last_granted(&self, id: u32) -> Option<(i64, u64)> {
        let found = fstat(self.record(id, OFlags::RDONLY).ok()?).ok()?;
        Some((found.st_mtime, found.st_mtime_nsec))
    }

    /// Whether the opened file is still the file of this GPU.
    pub(super) fn is_gpu(&self, id: u32, file: &Stat) -> bool {
        let found = statat(&self.gpus, id.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| same(&found, file))
    }

    /// Takes the gate lock, which serializes clients that enter the queue, take GPUs or read their holders. It only
    /// keeps order and is not needed for safety, so the wait for a client that was stopped while it held the lock
    /// is limited.
    pub(super) fn enter(&self) -> Gate<'_> {
        let deadline = Deadline::after(PATIENCE);
        let mut pause = FIRST_PAUSE;
        // Polling needs neither a thread nor a descriptor, which a blocked `flock` would keep after the deadline.
        while flock(&self.gate, FlockOperation::NonBlockingLockExclusive).is_err() {
            if deadline.passed() {
                return Gate { file: &self.gate, alone: false };
            }
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Gate { file: &self.gate, alone: true }
    }

    /// The error for a gate lock that another process keeps.
    pub(super) fn gate_error(&self) -> LeaseError {
        let holders = Inode::of(&self.gate).map(|inode| Locks::read().describe(inode)).unwrap_or_default();
        let gate = self.path.join("gate");
        LeaseError::Blocked(format!(
            "{} is locked by {holders}; end that process, or try again later",
            gate.display()
        ))
    }

    pub(super) fn lease_error(&self, name: &str, error: Errno) -> LeaseError {
        self.file_error(name, &error.into())
    }

    pub(super) fn file_error(&self, name: &str, error: &io::Error) -> LeaseError {
        LeaseError::file(&self.path.join(name), error)
    }
}

/// Creates a file, or sets the mode of an existing file.
fn file(below: &OwnedFd, name: &str, (rights, mode): (Rights, Mode), owner: u32) -> io::Result<File> {
    let write = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open_below(below, name, write) {
        Err(Errno::NOENT) => openat(below, name, write | OFlags::CREATE | OFlags::EXCL, mode),
        // Users can mount a file system over a file that they can write to, and it outlives them.
        Err(Errno::XDEV) => {
            let path = format!("/proc/self/fd/{}/{name}", below.as_raw_fd());
            let unmount = || unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok();
            (0..MOST_MOUNTS).take_while(|_| unmount()).for_each(drop);
            open_below(below, name, write)
        }
        opened => opened,
    };
    let file = File::from(file?);
    check(&file, owner)?;
    rights.apply(&file, mode)?;
    Ok(file)
}

fn check(file: &File, owner: u32) -> io::Result<Stat> {
    let found = fstat(file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    if found.st_uid != owner && found.st_uid != 0 {
        return Err(io::Error::other(format!("owned by user {}, not by the pool's owner", found.st_uid)));
    }
    Ok(found)
}

fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// The modes and the group of the pool's files.
#[derive(Clone, Copy)]
pub(super) struct Rights {
    directory: Mode,
    queue: Mode,
    record: Mode,
    read: Mode,
    group: u32,
}

impl Rights {
    /// Derives the modes from the directory: if other users cannot enter it, its group gets their permissions.
    fn of(directory: &Stat) -> Self {
        let for_all = directory.st_mode & 0o001 != 0;
        let mode = |all, group| Mode::from_raw_mode(if for_all { all } else { group });
        Self {
            directory: mode(0o755, 0o750),
            queue: mode(0o1777, 0o1770),
            record: mode(0o666, 0o660),
            read: mode(0o644, 0o640),
            group: directory.st_gid,
        }
    }

    fn apply(self, file: &impl std::os::fd::AsFd, mode: Mode) -> rustix::io::Result<()> {
        let found = fstat(file)?;
        if found.st_gid != self.group {
            fchown(file, None::<Uid>, Some(Gid::from_raw(self.group)))?;
        }
        if found.st_mode & 0o7777 != mode.as_raw_mode() {
            fchmod(file, mode)?;
        }
        Ok(())
    }
}

/// The held gate lock. `alone` is false if the wait for it timed out.
#[derive(Debug)]
pub(super) struct Gate<'a> {
    file: &'a File,
    pub(super) alone: bool,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if self.alone {
            let _ = flock(self.file, FlockOperation::Unlock);
        }
    }
}

/// Returns the content of a file.
pub(super) fn text(file: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; 2048];
    let mut read = file.read_at(&mut text, 0)?;
    if read == text.len() {
        text.resize(LONGEST, 0);
        read = file.read_at(&mut text, 0)?;
    }
    text.truncate(read);
    Ok(text)
}

fn absent(path: &Path, error: Errno) -> LeaseError {
    match error {
        Errno::NOENT => LeaseError::Absent(path.display().to_string()),
        error => lease_error(path, error),
    }
}

pub(super) fn lease_error(path: &Path, error: Errno) -> LeaseError {
    LeaseError::file(path, &error.into())
}
