//! The pool's directory and its files, which are opened one by one below it: no symbolic link is followed, and what is not
//! an ordinary file of the pool's owner is not used.

use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::fs::{fchmod, fchown, flock, fstat, mkdirat, openat, renameat, statat};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use crate::LeaseError;

/// Longer files are not ours.
const LONGEST: usize = 1 << 16;
/// Whoever is at the gate is out again in less, unless he was stopped there.
const PATIENCE: Duration = Duration::from_secs(1);

/// A GPU that is handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpu {
    pub(super) id: u32,
    pub(super) uuid: Option<String>,
}

/// Which GPUs are handed out, and the file that said so.
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) gpus: Vec<Gpu>,
    file: Stat,
}

#[derive(Serialize, Deserialize)]
struct Description {
    version: u32,
    gpus: Vec<Gpu>,
}

/// The directory, opened.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    top: OwnedFd,
    gpus: OwnedFd,
    pub(super) queue: OwnedFd,
    gate: File,
    owner: u32,
}

impl Directory {
    /// The directory of a pool that was begun.
    pub(super) fn open(path: &Path) -> Result<Self, LeaseError> {
        let absent = |error| match error {
            Errno::NOENT => LeaseError::Absent(path.display().to_string()),
            error => lease_error(path, error),
        };
        let top = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(absent)?;
        let below = |name: &str| openat(&top, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        let (gpus, queue) = (below("gpu").map_err(absent)?, below("queue").map_err(absent)?);
        let gate = openat(&top, "gate", WRITE, Mode::empty());
        let gate = File::from(gate.map_err(|error| match error {
            Errno::NOENT => absent(error),
            error => lease_error(&path.join("gate"), error),
        })?);
        let owner = fstat(&top).map_err(|error| lease_error(path, error))?.st_uid;
        check(&gate, owner).map_err(|error| LeaseError::file(&path.join("gate"), &error))?;
        Ok(Self { path: path.to_owned(), top, gpus, queue, gate, owner })
    }

    /// Makes what is missing. A directory that was there says by its own rights whether the pool is everybody's or a
    /// group's.
    pub(super) fn make(path: &Path) -> Result<Self, LeaseError> {
        missing(path).map_err(|error| LeaseError::file(path, &error))?;
        let wrong = |error| lease_error(path, error);
        let top = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(wrong)?;
        let found = fstat(&top).map_err(wrong)?;
        let rights = Rights::of(&found);
        file(&top, "gate", (rights, found.st_uid))
            .map_err(|error| LeaseError::file(&path.join("gate"), &error))?;
        for (name, mode) in [("gpu", rights.directory), ("queue", rights.queue)] {
            match mkdirat(&top, name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(lease_error(&path.join(name), error)),
            }
        }
        let directory = Self::open(path)?;
        rights.give(&directory.gpus, rights.directory).map_err(wrong)?;
        rights.give(&directory.queue, rights.queue).map_err(wrong)?;
        Ok(directory)
    }

    /// Which GPUs are handed out; none where nobody has said so yet.
    pub(super) fn managed(&self) -> Result<Managed, LeaseError> {
        let path = self.path.join("pool");
        let file = match openat(&self.top, "pool", READ, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(LeaseError::Absent(self.path.display().to_string())),
            Err(error) => return Err(lease_error(&path, error)),
        };
        let found = check(&file, self.owner).map_err(|error| LeaseError::file(&path, &error))?;
        let mut text = Vec::with_capacity(4096);
        file.take(1 << 24).read_to_end(&mut text).map_err(|error| LeaseError::file(&path, &error))?;
        match serde_json::from_slice(&text) {
            Ok(Description { version: 1, gpus }) => Ok(Managed { gpus, file: found }),
            _ => Err(LeaseError::file(
                &path,
                &io::Error::other("not understood; `bailiff lease init --force` writes it again"),
            )),
        }
    }

    /// Whether they are still handed out.
    pub(super) fn is_current(&self, managed: &Managed) -> bool {
        let found = statat(&self.top, "pool", AtFlags::SYMLINK_NOFOLLOW);
        let stamp = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
        found.is_ok_and(|found| same(&found, &managed.file) && stamp(&found) == stamp(&managed.file))
    }

    /// Says which GPUs are handed out, all at once.
    pub(super) fn describe(&self, gpus: Vec<Gpu>) -> Result<(), LeaseError> {
        let rights = Rights::of(&fstat(&self.top).map_err(|error| lease_error(&self.path, error))?);
        for gpu in &gpus {
            let name = gpu.id.to_string();
            let made = file(&self.gpus, &name, (rights, self.owner));
            made.map_err(|error| LeaseError::file(&self.path.join("gpu").join(name), &error))?;
        }
        let path = self.path.join("pool");
        let text = serde_json::to_vec(&Description { version: 1, gpus });
        let text = text.map_err(|error| LeaseError::file(&path, &error.into()))?;
        let write = || {
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = File::from(openat(&self.top, "pool.new", flags, rights.read)?);
            rights.give(&file, rights.read)?;
            file.write_all_at(&text, 0)?;
            Ok(renameat(&self.top, "pool.new", &self.top, "pool")?)
        };
        write().map_err(|error: io::Error| LeaseError::file(&path, &error))
    }

    /// The file of a GPU.
    pub(super) fn gpu(&self, id: u32, how: OFlags) -> io::Result<(File, Stat)> {
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.gpus, id.to_string(), flags, Mode::empty())?);
        let found = check(&file, self.owner)?;
        Ok((file, found))
    }

    /// Whether this is still the file of that GPU.
    pub(super) fn is_gpu(&self, id: u32, file: &Stat) -> bool {
        let found = statat(&self.gpus, id.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| same(&found, file))
    }

    /// One at a time comes to the queue, takes GPUs or looks who has them. Nobody is safe by that, only in order: whoever
    /// was stopped at the gate is not waited for.
    pub(super) fn enter(&self) -> Gate<'_> {
        let free = flock(&self.gate, FlockOperation::NonBlockingLockExclusive).is_ok();
        let own = if free { None } else { self.at_the_gate() };
        Gate { file: &self.gate, alone: free || own.is_some(), own }
    }

    /// Waits in the kernel's line, in a thread that stays there should we go on without.
    fn at_the_gate(&self) -> Option<File> {
        let file = File::from(openat(&self.top, "gate", WRITE, Mode::empty()).ok()?);
        let (tell, told) = channel();
        let stand = move || {
            if retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).is_ok() {
                let _ = tell.send(file);
            }
        };
        std::thread::Builder::new().name("gate".to_owned()).spawn(stand).ok()?;
        told.recv_timeout(PATIENCE).ok()
    }

    pub(super) fn lease_error(&self, name: &str, error: Errno) -> LeaseError {
        self.wrong(name, &error.into())
    }

    pub(super) fn wrong(&self, name: &str, error: &io::Error) -> LeaseError {
        LeaseError::file(&self.path.join(name), error)
    }
}

/// Makes a file, or gives one that is there the rights it should have.
fn file(below: &OwnedFd, name: &str, (rights, owner): (Rights, u32)) -> io::Result<()> {
    let file = match openat(below, name, WRITE, Mode::empty()) {
        Err(Errno::NOENT) => openat(below, name, WRITE | OFlags::CREATE | OFlags::EXCL, rights.file),
        opened => opened,
    };
    let file = File::from(file?);
    check(&file, owner)?;
    Ok(rights.give(&file, rights.file)?)
}

fn check(file: &File, owner: u32) -> io::Result<Stat> {
    let found = fstat(file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("no ordinary file"));
    }
    if found.st_uid != owner && found.st_uid != 0 {
        return Err(io::Error::other(format!("belongs to user {}, not to the pool's", found.st_uid)));
    }
    Ok(found)
}

fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

const WRITE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// What others may do.
#[derive(Clone, Copy)]
struct Rights {
    directory: Mode,
    queue: Mode,
    file: Mode,
    read: Mode,
    group: u32,
}

impl Rights {
    /// As the directory itself has it: where others may not look into it, its group has what others would have.
    fn of(directory: &Stat) -> Self {
        let everybody = directory.st_mode & 0o001 != 0;
        let mode = |all, group| Mode::from_raw_mode(if everybody { all } else { group });
        Self {
            directory: mode(0o755, 0o750),
            queue: mode(0o1777, 0o1770),
            file: mode(0o666, 0o660),
            read: mode(0o644, 0o640),
            group: directory.st_gid,
        }
    }

    fn give(self, file: &impl std::os::fd::AsFd, mode: Mode) -> rustix::io::Result<()> {
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

/// Makes a directory and those above it, for everybody to look into whatever our umask says.
fn missing(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    path.parent().filter(|above| !above.as_os_str().is_empty()).map_or(Ok(()), missing)?;
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Whoever has it is alone, unless somebody was stopped who had it.
#[derive(Debug)]
pub(super) struct Gate<'a> {
    file: &'a File,
    /// The one that was waited with: its lock ends when it is closed.
    own: Option<File>,
    pub(super) alone: bool,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if self.alone && self.own.is_none() {
            let _ = flock(self.file, FlockOperation::Unlock);
        }
    }
}

/// All that is in a file.
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

pub(super) fn lease_error(path: &Path, error: Errno) -> LeaseError {
    LeaseError::file(path, &error.into())
}
