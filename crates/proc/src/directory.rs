//! Directories below `/proc` and the small files in them, opened without following links and read up to a maximum size.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::{Errno, pread, read, retry_on_intr};

use crate::denied::{self, Attributes};

/// Maximum size of a file. The largest files are environments, which the kernel limits to 6 MiB (`execve(2)`).
const MOST: usize = 8 << 20;
/// Bytes per read: more than `PID/stat` or `PID/io` contains.
pub(crate) const PIECE: usize = 4096;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// Non-blocking, because a fake `/proc` may contain a FIFO.
pub(crate) const FILE: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW);

/// Why something could not be read. Only [`Self::Gone`] says that a process has exited, and only if `/proc` shows other
/// users' processes ([`crate::Proc::proves_exit`]); after any other error it may be running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It does not exist, or the process has exited (ENOENT, ESRCH).
    #[error("cannot be read: {}", Errno::NOENT)]
    Gone,
    /// It may exist.
    #[error("cannot be read: {0}")]
    Unreadable(Errno),
    /// The content is not what the kernel writes.
    #[error("cannot be understood")]
    Malformed,
}

/// It was not read in time. The owner of a process can cause that.
pub const LATE: ReadError = ReadError::Unreadable(Errno::TIMEDOUT);

impl ReadError {
    /// Returns whether permission was denied.
    pub const fn is_denied(self) -> bool {
        matches!(self, Self::Unreadable(Errno::ACCESS | Errno::PERM))
    }
}

impl ReadError {
    /// Returns the number of the kernel's error that corresponds to it.
    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::Gone => Errno::NOENT,
            Self::Unreadable(error) => error,
            Self::Malformed => Errno::INVAL,
        }
    }
}

impl From<Errno> for ReadError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::SRCH => Self::Gone,
            error => Self::Unreadable(error),
        }
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Gone => Errno::NOENT.into(),
            ReadError::Unreadable(error) => error.into(),
            ReadError::Malformed => io::ErrorKind::InvalidData.into(),
        }
    }
}

/// Returns `None` instead of [`ReadError::Gone`].
///
/// # Errors
/// All other errors. The file or process may still exist.
pub fn unless_gone<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ReadError::Gone) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An open directory. An open `/proc/PID` never shows a new process with the same pid.
#[derive(Debug)]
pub struct Directory(OwnedFd);

/// A file of `/proc/PID`, held open: rereading costs half as much, and never shows another process.
#[derive(Debug, Clone)]
pub struct HeldFile(Arc<OwnedFd>);

impl HeldFile {
    /// Reads the file from its start, in one piece, and parses it.
    ///
    /// # Errors
    /// If it cannot be read or parsed.
    pub fn parse<T>(&self, parse: impl FnOnce(&[u8]) -> Option<T>) -> Result<T, ReadError> {
        let mut piece = [0; PIECE];
        let read = retry_on_intr(|| pread(&self.0, &mut piece, 0))?;
        parse(&piece[..read]).ok_or(ReadError::Malformed)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[allow(clippy::missing_errors_doc, reason = "each fails if it cannot read")]
impl Directory {
    /// Opens a directory; the path may be a link.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Ok(Self(openat(CWD, path, DIRECTORY, Mode::empty())?))
    }

    /// Returns another handle of this directory.
    pub(crate) fn again(&self) -> Result<Self, ReadError> {
        Ok(Self(rustix::io::fcntl_dupfd_cloexec(&self.0, 0)?))
    }

    /// Opens a directory in this one.
    pub fn directory(&self, name: &str) -> Result<Self, ReadError> {
        let opened = openat(&self.0, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        Ok(Self(or_ask(opened, |denied| denied::open(self, name, denied))?))
    }

    /// Opens a file that the kernel returns in one read, to read it repeatedly.
    pub fn hold(&self, name: &str) -> Result<HeldFile, ReadError> {
        Ok(HeldFile(Arc::new(self.file(name)?)))
    }

    fn file(&self, name: &str) -> Result<OwnedFd, Errno> {
        or_ask(openat(&self.0, name, FILE, Mode::empty()), |denied| denied::open(self, name, denied))
    }

    /// Reads a file that the kernel returns in one read, such as `PID/stat`, and parses it.
    pub fn parse<T>(&self, name: &str, parse: impl FnOnce(&[u8]) -> Option<T>) -> Result<T, ReadError> {
        self.hold(name)?.parse(parse)
    }

    /// Reads a whole file into `buffer`, whose content is replaced.
    pub fn read<'a>(&self, name: &str, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], ReadError> {
        self.read_within(MOST, name, buffer)
    }

    /// Reads a whole file that has at most `most` bytes.
    pub fn read_within<'a>(
        &self,
        most: usize,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ReadError> {
        self.read_pieces(most, name, buffer)?;
        if buffer.len() > most { Err(ReadError::Unreadable(Errno::FBIG)) } else { Ok(buffer) }
    }

    /// Reads the first `most` bytes of a file.
    pub fn read_start<'a>(
        &self,
        most: usize,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ReadError> {
        self.read_pieces(most, name, buffer)?;
        buffer.truncate(most);
        Ok(buffer)
    }

    fn read_pieces(&self, most: usize, name: &str, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        let file = self.file(name)?;
        buffer.clear();
        while buffer.len() <= most {
            buffer.reserve(PIECE);
            if retry_on_intr(|| read(&file, spare_capacity(buffer)))? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads a whole file.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, ReadError> {
        let mut buffer = Vec::new();
        self.read(name, &mut buffer)?;
        // Callers may keep the content for tens of thousands of processes.
        buffer.shrink_to_fit();
        Ok(buffer)
    }

    /// Reads a whole file as text; invalid UTF-8 is replaced.
    pub fn text(&self, name: &str) -> Result<String, ReadError> {
        Ok(String::from_utf8_lossy(&self.bytes(name)?).into_owned())
    }

    /// Reads a file of any size line by line, such as `maps`. A line longer than four pieces is split.
    pub fn each_line(&self, name: &str, mut line: impl FnMut(&[u8])) -> Result<(), ReadError> {
        let file = self.file(name)?;
        let mut piece = vec![0; 4 * PIECE];
        let mut kept = 0;
        loop {
            let read = retry_on_intr(|| read(&file, &mut piece[kept..]))?;
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

    /// Returns the target of a link; invalid UTF-8 is replaced.
    pub fn link(&self, name: &str) -> Result<String, ReadError> {
        let target =
            readlinkat(&self.0, name, Vec::new()).map(|target| target.to_string_lossy().into_owned());
        Ok(or_ask(target, |denied| denied::link(self, name, denied))?)
    }

    /// Returns the attributes of a file; a link is followed.
    pub fn attributes(&self, name: &str) -> Result<Attributes, ReadError> {
        let found = statat(&self.0, name, AtFlags::empty()).map(|found| {
            Attributes::new((found.st_dev, found.st_ino, found.st_uid), found.st_mode, found.st_rdev)
        });
        Ok(or_ask(found, |denied| denied::attributes(self, name, denied))?)
    }

    /// Like [`Self::attributes`], as far as the kernel has them cached: a query may hang on a user's file system.
    pub fn cached_attributes(&self, name: &str) -> Result<Attributes, ReadError> {
        let found = Attributes::cached(self, name);
        Ok(or_ask(found, |denied| denied::attributes(self, name, denied))?)
    }

    /// Returns whether a descriptor in `/proc/PID/fd` can be used for reading or writing, or that cannot be determined. The
    /// link of one with `O_PATH` has no permissions.
    pub fn is_open_for_use(&self, descriptor: &str) -> bool {
        let link = statat(&self.0, descriptor, AtFlags::SYMLINK_NOFOLLOW);
        link.map_or(true, |link| link.st_mode & (Mode::RUSR | Mode::WUSR).bits() != 0)
    }

    /// Returns whether a file certainly exists.
    pub fn exists(&self, name: &str) -> bool {
        self.attributes(name).is_ok()
    }

    /// Calls `wants_more` with each entry name until it returns false.
    pub fn each_name(&self, mut wants_more: impl FnMut(&str) -> bool) -> Result<(), ReadError> {
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().filter(|name| !matches!(*name, "." | ".."));
            if name.is_some_and(|name| !wants_more(name)) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the entry names that are numbers.
    pub fn numbers(&self) -> Result<Vec<u32>, ReadError> {
        let mut numbers = Vec::new();
        self.each_name(|name| {
            numbers.extend(name.parse::<u32>().ok());
            true
        })?;
        Ok(numbers)
    }
}

impl From<OwnedFd> for Directory {
    fn from(directory: OwnedFd) -> Self {
        Self(directory)
    }
}

/// Asks the helper if the kernel denies permission.
fn or_ask<T>(own: Result<T, Errno>, ask: impl FnOnce(Errno) -> Result<T, Errno>) -> Result<T, Errno> {
    own.or_else(|error| if matches!(error, Errno::ACCESS | Errno::PERM) { ask(error) } else { Err(error) })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files to read are written")]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn file_longer_than_its_limit_is_not_taken_for_whole() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("long"), vec![b'x'; 10_000]).unwrap();
        let (directory, mut buffer) = (Directory::open(home.path()).unwrap(), Vec::new());
        let too_long = Err(ReadError::Unreadable(Errno::FBIG));
        assert_eq!(directory.read_within(9_999, "long", &mut buffer), too_long);
        assert_eq!(directory.read_within(10_000, "long", &mut buffer).map(<[u8]>::len), Ok(10_000));
        assert_eq!(directory.read_start(5_000, "long", &mut buffer).map(<[u8]>::len), Ok(5_000));
        assert_eq!(directory.read("none", &mut buffer), Err(ReadError::Gone));
    }

    #[test]
    fn descriptor_with_o_path_is_not_open_for_use() {
        let opened = |flags| openat(CWD, "/dev/null", flags, Mode::empty()).unwrap();
        let descriptors = Directory::open(Path::new("/proc/self/fd")).unwrap();
        for (flags, expected) in
            [(OFlags::PATH, false), (OFlags::RDONLY, true), (OFlags::WRONLY, true), (OFlags::RDWR, true)]
        {
            let file = opened(flags);
            assert_eq!(descriptors.is_open_for_use(&file.as_raw_fd().to_string()), expected, "{flags:?}");
        }
    }

    #[test]
    fn lines_are_read_whole_across_pieces() {
        let home = tempfile::tempdir().unwrap();
        let lines: Vec<String> = (0..2_000).map(|number| format!("line {number}")).collect();
        fs::write(home.path().join("maps"), lines.join("\n")).unwrap();
        let mut found = Vec::new();
        let directory = Directory::open(home.path()).unwrap();
        directory.each_line("maps", |line| found.push(String::from_utf8(line.to_vec()).unwrap())).unwrap();
        assert_eq!(found, lines);
    }
}
