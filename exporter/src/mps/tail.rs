#![expect(clippy::disallowed_methods, reason = "the one file that opens logs")]
//! Follows a log file through rotation and truncation. Each read is bounded, and only regular files are
//! opened.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use bailiff_snapshot::MpsFile;
use rustix::fs::OFlags;

use super::figures::Age;

/// Maximum number of bytes per read. If more were written, only the newest are read.
const MOST: u64 = 1 << 20;
/// Number of bytes at the end of an existing file that the first read evaluates, to learn the current state.
const HISTORY: u64 = 64 << 10;
/// Maximum length of a line in bytes; the rest is cut off.
const LONGEST_LINE: usize = 4096;

/// A log file and how far it was read.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    open: Option<Open>,
    /// Whether the file was already read or found absent; after that, its lines are new.
    looked: bool,
}

/// Outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) state: MpsFile,
    /// Number of bytes that were skipped.
    pub(super) skipped: u64,
}

/// A file that was opened, with its metadata.
struct Found {
    file: File,
    /// Device and inode.
    id: (u64, u64),
    uid: u32,
    size: u64,
}

#[derive(Debug)]
struct Open {
    file: File,
    id: (u64, u64),
    at: u64,
    line: Vec<u8>,
    /// Whether the beginning of the current line was skipped; then the rest of the line is skipped too.
    broken: bool,
}

impl Tail {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, open: None, looked: false }
    }

    /// Passes each new line to `take` if the file belongs to this user. The first read passes the last lines
    /// of the file, as old.
    pub(super) fn read(&mut self, uid: Option<u32>, mut take: impl FnMut(&[u8], Age)) -> Read {
        let mut skipped = 0;
        let state = match self.open() {
            Ok(Some(found)) if Some(found.uid) != uid => MpsFile::Foreign,
            Ok(Some(found)) => {
                skipped = self.go_on(found, &mut take);
                MpsFile::Read
            }
            Ok(None) => MpsFile::NoFile,
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => MpsFile::Absent,
                _ => MpsFile::Unreadable,
            },
        };
        // Lines of a file that appears later are new; lines of a file that could not be read may be old.
        self.looked |= matches!(state, MpsFile::Read | MpsFile::Absent);
        if state != MpsFile::Read {
            skipped = self.wait(&mut take);
        }
        Read { state, skipped }
    }

    fn go_on(&mut self, found: Found, take: &mut impl FnMut(&[u8], Age)) -> u64 {
        let Found { file, id, size, .. } = found;
        let mut skipped = 0;
        if self.open.as_ref().is_none_or(|open| open.id != id) {
            // The previous file was renamed or replaced; its remaining lines are read first.
            skipped = self.wait(take);
            self.open = Some(Open { file, id, at: 0, line: Vec::new(), broken: false });
        }
        if let Some(open) = &mut self.open {
            let age = if self.looked { Age::New } else { Age::Old };
            if age == Age::Old {
                open.skip_to(size.saturating_sub(HISTORY));
            }
            skipped = skipped.saturating_add(open.read(size, |line| take(line, age)));
        }
        skipped
    }

    /// Reads new lines of a file that no longer has its name. The file stays open because it may be renamed
    /// back; a deleted file is closed.
    fn wait(&mut self, take: &mut impl FnMut(&[u8], Age)) -> u64 {
        let Some(open) = &mut self.open else { return 0 };
        let about = open.file.metadata();
        let skipped = about.as_ref().map_or(0, |about| open.read(about.len(), |line| take(line, Age::New)));
        if about.is_ok_and(|about| about.nlink() == 0) {
            self.open = None;
        }
        skipped
    }

    /// Opens the file without blocking; `None` if it is not a regular file.
    fn open(&self) -> io::Result<Option<Found>> {
        if !std::fs::symlink_metadata(&self.path)?.is_file() {
            return Ok(None);
        }
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let about = file.metadata()?;
        let (id, uid) = ((about.dev(), about.ino()), about.uid());
        Ok(about.is_file().then(|| Found { file, id, uid, size: about.len() }))
    }
}

impl Open {
    /// Continues at this offset, with the next complete line.
    fn skip_to(&mut self, at: u64) {
        self.broken = at > 0;
        self.at = at;
        self.line.clear();
    }

    /// Reads up to this file size; returns the number of bytes skipped.
    fn read(&mut self, size: u64, mut take: impl FnMut(&[u8])) -> u64 {
        if size < self.at {
            // The file was truncated, so it is read from its beginning.
            self.skip_to(0);
        }
        let skipped = (size - self.at).saturating_sub(MOST);
        if skipped > 0 {
            self.skip_to(self.at + skipped);
        }
        let mut piece = [0; 16 << 10];
        while self.at < size {
            let Ok(read @ 1..) = self.file.read_at(&mut piece, self.at) else { break };
            self.at += read as u64;
            for part in piece.get(..read).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
                self.part(part, &mut take);
            }
        }
        skipped
    }

    /// Appends a part of a line; at the end of the line, passes it to `take`.
    fn part(&mut self, part: &[u8], take: &mut impl FnMut(&[u8])) {
        let (text, whole) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
        let room = LONGEST_LINE.saturating_sub(self.line.len()).min(text.len());
        self.line.extend_from_slice(text.get(..room).unwrap_or_default());
        if whole {
            if !std::mem::take(&mut self.broken) {
                take(&self.line);
            }
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    struct Log {
        directory: tempfile::TempDir,
        tail: Tail,
    }

    impl Log {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let tail = Tail::new(directory.path().join("control.log"));
            Self { directory, tail }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("control.log")
        }

        fn write(&self, text: &str) {
            let mut file = OpenOptions::new().create(true).append(true).open(self.path()).expect("a file");
            file.write_all(text.as_bytes()).expect("it is written");
        }

        /// Returns the new lines and the number of skipped bytes.
        fn new_lines(&mut self) -> (Vec<String>, u64) {
            let mut lines = Vec::new();
            let own = self.own();
            let read = self.tail.read(Some(own), |line, age| {
                if age == Age::New {
                    lines.push(String::from_utf8_lossy(line).into_owned());
                }
            });
            assert_eq!(read.state, MpsFile::Read);
            (lines, read.skipped)
        }

        fn own(&self) -> u32 {
            fs::metadata(self.directory.path()).expect("a directory").uid()
        }

        /// Reads the file, fails if there is a line, and returns the file's state.
        fn state(&mut self) -> MpsFile {
            let own = self.own();
            self.tail.read(Some(own), |_, _| panic!("there is no line")).state
        }
    }

    #[test]
    fn lines_are_given_once_and_whole() {
        let mut log = Log::new();
        log.write("before\n");
        assert_eq!(log.new_lines().0, [""; 0], "what was there before is not new");
        log.write("one\ntw");
        assert_eq!(log.new_lines().0, ["one"]);
        log.write("o\n\n");
        assert_eq!(log.new_lines().0, ["two", ""]);
        assert_eq!(log.new_lines().0, [""; 0]);
    }

    #[test]
    fn one_that_comes_later_is_read_from_its_begin() {
        let mut log = Log::new();
        assert_eq!(log.state(), MpsFile::Absent);
        log.write("one\n");
        assert_eq!(log.new_lines().0, ["one"]);
    }

    #[test]
    fn what_was_moved_away_is_read_to_its_end_and_the_next_from_its_begin() {
        let mut log = Log::new();
        log.write("zero\n");
        log.new_lines();
        log.write("one\n");
        fs::rename(log.path(), log.directory.path().join("control.log.1")).expect("it is moved");
        log.write("two\n");
        assert_eq!(log.new_lines().0, ["one", "two"]);
    }

    #[test]
    fn what_was_cut_short_is_read_from_its_begin() {
        let mut log = Log::new();
        log.write("zero, and half a li");
        log.new_lines();
        fs::write(log.path(), "one\n").expect("it is cut short");
        assert_eq!(log.new_lines().0, ["one"]);
    }

    #[test]
    fn of_what_is_too_long_the_newest_is_read() {
        let mut log = Log::new();
        log.write("zero\n");
        log.new_lines();
        let file = OpenOptions::new().write(true).open(log.path()).expect("it is there");
        file.set_len(1 << 30).expect("it has a hole");
        log.write("\nlast\n");
        let (lines, skipped) = log.new_lines();
        assert_eq!(lines, ["last"], "a line without its beginning is skipped");
        assert_eq!(skipped, (1 << 30) + 6 - 5 - MOST);
        log.write(&"x".repeat(100_000));
        log.write("\n");
        assert_eq!(log.new_lines().0[0].len(), LONGEST_LINE);
    }

    #[test]
    fn nothing_but_a_file_is_opened() {
        let mut log = Log::new();
        let other = log.directory.path().join("other");
        fs::write(&other, "secret\n").expect("a file");
        std::os::unix::fs::symlink(&other, log.path()).expect("a link");
        assert_eq!(log.state(), MpsFile::NoFile);
        fs::remove_file(log.directory.path().join("control.log")).expect("it is there");
        fs::create_dir(log.directory.path().join("control.log")).expect("a directory");
        assert_eq!(log.state(), MpsFile::NoFile);
    }

    #[test]
    fn what_comes_back_goes_on_where_it_was() {
        let mut log = Log::new();
        let aside = log.directory.path().join("aside");
        log.write("zero\n");
        log.new_lines();
        for line in ["one\n", "two\n"] {
            fs::rename(log.path(), &aside).expect("it is moved");
            assert_eq!(log.state(), MpsFile::Absent);
            fs::rename(&aside, log.path()).expect("it is moved back");
            log.write(line);
            assert_eq!(log.new_lines().0, [line.trim()]);
        }
        // A replaced file is read from its beginning, and a deleted file is not kept open.
        fs::remove_file(log.path()).expect("it is there");
        assert_eq!(log.state(), MpsFile::Absent);
        assert!(log.tail.open.is_none());
        log.write("a longer one than before, and all of it is new\n");
        assert_eq!(log.new_lines().0.len(), 1);
    }

    #[test]
    fn what_could_not_be_read_at_first_is_old() {
        let mut log = Log::new();
        log.write("zero\n");
        fs::create_dir(log.directory.path().join("aside")).expect("a directory");
        let aside = log.directory.path().join("aside/control.log");
        fs::rename(log.path(), &aside).expect("it is moved");
        std::os::unix::fs::symlink(&aside, log.path()).expect("a link");
        assert_eq!(log.state(), MpsFile::NoFile);
        fs::rename(&aside, log.path()).expect("it is moved back");
        assert_eq!(log.new_lines().0, [""; 0]);
        log.write("one\n");
        assert_eq!(log.new_lines().0, ["one"]);
    }

    #[test]
    fn what_is_of_another_user_is_not_read() {
        let mut log = Log::new();
        log.write("zero\n");
        let other = Some(log.own() + 1);
        let state = log.tail.read(other, |_, _| panic!("there is no line")).state;
        assert_eq!(state, MpsFile::Foreign);
        assert_eq!(log.new_lines().0, [""; 0], "what was there before is not new");
    }
}
