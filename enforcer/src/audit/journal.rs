#![expect(clippy::disallowed_methods, reason = "the one file that opens the audit log")]
//! The file of the audit log: lines that are whole, rotation by size, and what waits while the disk takes
//! nothing.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Deserialize;

use super::{BEGUN, STOPPING};
use crate::actions::watchdog::HeldStill;
use crate::disk;

/// Lines that wait for the disk, at most.
const MOST_PENDING: usize = 256;
/// How far back begun deeds are looked for in each file.
const LOOK_BACK: u64 = 16 << 20;

/// Where the log is, and how much of it is kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The file.
    pub path: PathBuf,
    /// A longer one is set aside.
    pub max_bytes: u64,
    /// So many that were set aside are kept.
    pub keep: u32,
}

/// A deed that was begun and has no result.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Begun {
    /// Its id.
    pub id: u64,
    /// When, RFC 3339.
    pub time: String,
    /// By which policy.
    pub policy: String,
    /// By which rule.
    pub rule: String,
    /// What.
    pub step: String,
    /// On which boot.
    #[serde(default)]
    pub boot_id: Option<String>,
    /// What it was about to stop.
    #[serde(default)]
    pub held_still: Vec<HeldStill>,
}

/// How the log stands, for those who must not wait while it is written.
#[derive(Debug, Default)]
pub(super) struct Standing {
    failed: AtomicBool,
    failures: AtomicU64,
    lost: AtomicU64,
}

impl Standing {
    pub(super) fn writable(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Journal {
    settings: Settings,
    file: Option<File>,
    /// A line was cut short and could not be taken back.
    torn: bool,
    pending: VecDeque<Vec<u8>>,
    standing: Arc<Standing>,
    pub(super) interrupted: Vec<Begun>,
}

impl Journal {
    pub(super) fn open(settings: Settings, standing: Arc<Standing>) -> Self {
        let mut journal = Self {
            interrupted: begun_without_result(&settings.path),
            settings,
            file: None,
            torn: false,
            pending: VecDeque::new(),
            standing,
        };
        if let Err(error) = journal.ready() {
            journal.fail(&error);
        }
        journal
    }

    /// Writes what waits, then the line; on disk when it returns.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.write_pending().and_then(|()| self.append(line)).and_then(|()| self.sync());
        self.note(&written);
        written
    }

    /// Writes lines, or keeps them for later.
    pub(super) fn write_sometime(&mut self, lines: Vec<Vec<u8>>) {
        self.pending.extend(lines);
        let written = self.write_pending();
        self.note(&written);
        while self.pending.len() > MOST_PENDING {
            self.pending.pop_front();
            self.standing.lose();
        }
    }

    fn note(&mut self, written: &io::Result<()>) {
        match written {
            Ok(()) => self.standing.failed.store(false, Ordering::Relaxed),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.standing.failures.fetch_add(1, Ordering::Relaxed);
        if !self.standing.failed.swap(true, Ordering::Relaxed) {
            let path = self.settings.path.display();
            tracing::error!(%error, %path, "the audit log cannot be written; nothing destructive is done");
        }
        self.file = None;
    }

    /// On disk when it returns. Where the disk takes them and does not say that it has them, they are kept, and
    /// written twice rather than not.
    fn write_pending(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let lines = std::mem::take(&mut self.pending);
        let mut taken = 0;
        let appended = lines.iter().try_for_each(|line| self.append(line).inspect(|()| taken += 1));
        let synced = self.sync();
        if synced.is_ok() {
            self.pending.extend(lines.into_iter().skip(taken));
        } else {
            self.pending = lines;
        }
        appended.and(synced)
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let size = self.ready()?.metadata()?.len();
        if size > 0 && size.saturating_add(line.len() as u64) > self.settings.max_bytes {
            self.rotate()?;
        }
        let torn = self.torn;
        let file = self.ready()?;
        let size = file.metadata()?.len();
        let whole = if torn { [b"\n", line].concat() } else { line.to_vec() };
        match write_once(file, &whole)? {
            count if count == whole.len() => {
                self.torn = false;
                Ok(())
            }
            count => {
                let taken_back = file.set_len(size);
                self.torn = torn || (count > 0 && taken_back.is_err());
                Err(io::ErrorKind::StorageFull.into())
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// The file, opened anew where it is not the one at the path any more.
    fn ready(&mut self) -> io::Result<&mut File> {
        let path = &self.settings.path;
        let file = match self.file.take() {
            Some(file) if is_at(&file, path) => file,
            Some(moved) => {
                // Somebody has set it aside, with lines in it that are not on the disk yet.
                moved.sync_data()?;
                open(path)?
            }
            None => open(path)?,
        };
        Ok(self.file.insert(file))
    }

    /// Sets the file aside. Where that fails it grows on: a line too many is better than one lost.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        let path = &self.settings.path;
        for number in (1..self.settings.keep.max(1)).rev() {
            drop(fs::rename(aside(path, number), aside(path, number + 1)));
        }
        match fs::rename(path, aside(path, 1)) {
            Ok(()) => self.file = None,
            Err(error) => tracing::warn!(%error, "the audit log cannot be set aside"),
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let mut file = options.read(true).append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    // Also the name must be there after a crash.
    rustix::fs::fsync(disk::folder_of(path)?)?;
    if about.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" && write_once(&mut file, b"\n")? != 1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
    }
    Ok(file)
}

fn is_at(file: &File, path: &Path) -> bool {
    let names = |about: fs::Metadata| (about.dev(), about.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(there)) => names(held) == names(there),
        _ => false,
    }
}

fn write_once(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn aside(path: &Path, number: u32) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Reads the last two files: a deed lasts minutes, and a file longer.
fn begun_without_result(path: &Path) -> Vec<Begun> {
    #[derive(Deserialize)]
    struct Head {
        id: u64,
        result: String,
        held_still: Option<HeldStill>,
    }
    let mut open: BTreeMap<u64, Begun> = BTreeMap::new();
    for path in [aside(path, 1), path.to_owned()] {
        for line in last_lines(&path) {
            let Ok(head) = serde_json::from_slice::<Head>(&line) else { continue };
            if head.result == STOPPING {
                let begun = open.get_mut(&head.id).into_iter();
                begun.zip(head.held_still).for_each(|(begun, still)| begun.held_still.push(still));
                continue;
            }
            open.remove(&head.id);
            if head.result == BEGUN
                && let Ok(begun) = serde_json::from_slice::<Begun>(&line)
            {
                open.insert(head.id, begun);
            }
        }
    }
    open.into_values().collect()
}

fn last_lines(path: &Path) -> Vec<Vec<u8>> {
    if !fs::symlink_metadata(path).is_ok_and(|about| about.is_file()) {
        return Vec::new();
    }
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let size = file.metadata().map_or(0, |about| about.len());
    if file.seek(SeekFrom::Start(size.saturating_sub(LOOK_BACK))).is_err() {
        return Vec::new();
    }
    BufReader::new(file.take(LOOK_BACK)).split(b'\n').map_while(Result::ok).collect()
}
