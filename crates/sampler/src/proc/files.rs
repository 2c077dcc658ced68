//! Reads small files below `/proc`, up to a maximum size. Only this module opens them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bailiff_snapshot::status;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, openat, readlinkat, statat};
use rustix::io::Errno;

/// Default maximum number of bytes read of a file; known files are far shorter.
const MOST: usize = 16 << 10;
/// Size of one read: more than any `PID/stat` or `PID/io` contains.
const PIECE: usize = 4096;
/// Maximum number of bytes read of an environment.
pub(crate) const MOST_OF_ENVIRON: usize = 128 << 10;
/// Maximum number of bytes read of `stat`. In `/proc/stat`, `btime` follows a counter for every interrupt.
const MOST_OF_STAT: usize = 1 << 20;

/// An open directory of `/proc`. An open `/proc/PID` never shows a new process with the same pid.
pub(crate) struct Directory(OwnedFd);

/// An open file of `/proc/PID`: rereading it costs half as much, and it never shows another process.
pub(crate) struct Kept(OwnedFd);

impl Kept {
    /// Reads the file from its start. Returns `Gone` if its process has exited.
    pub(crate) fn read<'a>(&self, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], ReadError> {
        buffer.resize(buffer.len().max(PIECE), 0);
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut buffer[..PIECE], 0))?;
        Ok(&buffer[..read])
    }
}

/// Why a file could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The process has exited (ENOENT, ESRCH).
    Gone,
    /// Permission denied (EACCES, EPERM).
    Denied,
    /// Another error.
    Failed,
}

impl From<Errno> for ReadError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::SRCH => Self::Gone,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            _ => Self::Failed,
        }
    }
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        Ok(Self(openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    pub(crate) fn directory(&self, name: &str) -> Result<Self, ReadError> {
        Ok(Self(openat(&self.0, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Reads a file into `buffer`, whose content is replaced.
    pub(crate) fn read<'a>(&self, name: &str, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], ReadError> {
        // Non-blocking, because a fake `/proc` may contain a FIFO.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.0, name, flags, Mode::empty())?;
        let most = match name {
            "stat" => MOST_OF_STAT,
            "status" => status::LONGEST,
            "environ" => MOST_OF_ENVIRON,
            _ => MOST,
        };
        read_bounded(file.as_fd(), buffer, most)?;
        Ok(buffer)
    }

    /// Reads a file that the kernel returns in one read: `PID/stat` or `PID/io`.
    pub(crate) fn read_piece<'a>(&self, name: &str, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], ReadError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.0, name, flags, Mode::empty())?;
        // Never shrunk, because each growth fills it with zeros.
        buffer.resize(buffer.len().max(PIECE), 0);
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer[..PIECE]))?;
        Ok(&buffer[..read])
    }

    /// Opens a file that the kernel returns in one read, to read it repeatedly.
    pub(crate) fn keep(&self, name: &str) -> Option<Kept> {
        openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Kept).ok()
    }

    /// Returns whether this is the kernel's `/proc`: reading an open file fails after its process exits.
    pub(crate) fn is_proc(&self) -> bool {
        rustix::fs::fstatfs(&self.0).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
    }

    /// Returns the uid of the directory's owner.
    pub(crate) fn owner(&self) -> Result<u32, ReadError> {
        Ok(rustix::fs::fstat(&self.0)?.st_uid)
    }

    pub(crate) fn exists(&self, name: &str) -> Result<(), ReadError> {
        statat(&self.0, name, AtFlags::empty())?;
        Ok(())
    }

    /// Checks that this is a `/proc` and not an empty directory. A `/proc` with `subset=pid` contains no
    /// `stat`, and a `/proc` of another PID namespace contains no `self`.
    pub(crate) fn answers(&self) -> Result<(), ReadError> {
        self.exists("stat").or_else(|_| self.exists("self")).or_else(|_| self.exists("1"))
    }

    /// Returns whether other users' processes are visible. With `hidepid=2` they appear to be gone, and so
    /// does pid 1.
    pub(crate) fn shows_others(&self) -> bool {
        self.exists("1").is_ok()
    }

    /// Reads a file line by line, in pieces, because `maps` may be long. A line longer than a piece is split.
    pub(crate) fn each_line(&self, name: &str, mut line: impl FnMut(&[u8])) -> Result<(), ReadError> {
        let file = openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let mut piece = vec![0; 4 * PIECE];
        let mut kept = 0;
        loop {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut piece[kept..]))?;
            let end = kept + read;
            let whole = match piece[..end].iter().rposition(|byte| *byte == b'\n') {
                Some(last) => last + 1,
                None => end,
            };
            piece[..whole].split(|byte| *byte == b'\n').filter(|text| !text.is_empty()).for_each(&mut line);
            if read == 0 {
                return Ok(());
            }
            piece.copy_within(whole..end, 0);
            kept = end - whole;
        }
    }

    /// Returns the target of a link.
    pub(crate) fn link(&self, name: &str) -> Result<String, ReadError> {
        let target = readlinkat(&self.0, name, Vec::new())?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Adds each pid with the inode number of its directory. The number stays the same while the process is
    /// running and the kernel caches the directory. Another process gets another number.
    pub(crate) fn processes(&self, found: &mut Vec<(u32, u64)>) -> Result<(), ReadError> {
        let mut space = [MaybeUninit::uninit(); 2 * PIECE];
        let again = openat(&self.0, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut entries = RawDir::new(again, &mut space);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let pid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            found.extend(pid.map(|pid| (pid, entry.ino())));
        }
        Ok(())
    }

    /// Returns the entry names that are numbers.
    pub(crate) fn numbers(&self) -> Result<Vec<u32>, ReadError> {
        let names = self.names()?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Calls `wants_more` with each entry name until it returns false.
    pub(crate) fn each_name(&self, mut wants_more: impl FnMut(&str) -> bool) -> Result<(), ReadError> {
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().filter(|name| !matches!(*name, "." | ".."));
            if name.is_some_and(|name| !wants_more(name)) {
                break;
            }
        }
        Ok(())
    }

    /// Returns all entry names.
    pub(crate) fn names(&self) -> Result<Vec<String>, ReadError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }
}

fn read_bounded(file: BorrowedFd<'_>, buffer: &mut Vec<u8>, most: usize) -> Result<(), ReadError> {
    buffer.clear();
    while buffer.len() < most {
        let start = buffer.len();
        buffer.resize(start + PIECE, 0);
        let read = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut buffer[start..]));
        buffer.truncate(start + read.unwrap_or_default());
        if read.map_err(io_missing)? == 0 {
            break;
        }
    }
    Ok(())
}

fn io_missing(error: Errno) -> ReadError {
    ReadError::from(error)
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Errno::from_io_error(&error).map_or(Self::Failed, Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_empty_directory_is_no_proc() {
        for (made, answers) in [(None, false), (Some("stat"), true), (Some("self"), true), (Some("1"), true)]
        {
            let home = tempfile::tempdir().unwrap();
            if let Some(name) = made {
                fs::create_dir(home.path().join(name)).unwrap();
            }
            assert_eq!(Directory::open(home.path()).unwrap().answers().is_ok(), answers, "{made:?}");
        }
        assert_eq!(Directory::open(Path::new("/proc")).unwrap().answers(), Ok(()));
    }
}
