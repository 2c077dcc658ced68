#![expect(clippy::disallowed_methods, reason = "the one file that opens the audit log")]
//! File of the audit log. A line is written completely or not at all, and the file is rotated by size.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::HeldStill;
use super::status::LogStatus;
use super::{BEGUN, STOPPING};
use crate::disk;

/// Number of bytes at the end of each file that are searched for unfinished actions.
const LOOK_BACK: u64 = 16 << 20;

/// Path of the log, and its limits.
#[derive(Debug, Clone)]
pub struct AuditSettings {
    /// Path of the log file.
    pub path: PathBuf,
    /// Size in bytes at which the file is rotated.
    pub max_bytes: u64,
    /// Number of rotated files to keep.
    pub keep: u32,
    /// File that keeps unwritten lines from an orderly shutdown until the next start.
    pub kept: Option<PathBuf>,
}

/// An action that was started and has no result in the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Begun {
    /// Id of the action.
    pub id: u64,
    /// Start of the action, RFC 3339.
    pub time: String,
    /// SHA-256 of the policy file.
    pub policy: String,
    /// Name of the rule.
    pub rule: String,
    /// Name of the step.
    pub step: String,
    /// Boot id at the start of the action.
    pub boot_id: Option<String>,
    /// Processes that the action was about to stop.
    #[serde(default)]
    pub held_still: Vec<HeldStill>,
}

#[derive(Debug)]
pub(super) struct Journal {
    settings: AuditSettings,
    file: Option<File>,
    /// Whether the file ends with a partial line that could not be truncated.
    torn: bool,
    status: Arc<LogStatus>,
    /// Actions of an earlier run without a result; `None` until the files were searched.
    interrupted: Option<Vec<Begun>>,
}

impl Journal {
    /// Creates the journal without any disk access.
    pub(super) const fn new(settings: AuditSettings, status: Arc<LogStatus>) -> Self {
        Self { settings, file: None, torn: false, status, interrupted: None }
    }

    /// Opens the file for the first time, and searches it and the `kept` lines for unfinished actions.
    pub(super) fn begin(&mut self, kept: &[Vec<u8>]) {
        self.interrupted = Some(begun_without_result(&self.settings.path, kept));
        if let Err(error) = self.ready() {
            self.fail(&error);
        }
    }

    /// Returns whether [`Journal::begin`] was called.
    pub(super) const fn is_open(&self) -> bool {
        self.interrupted.is_some()
    }

    pub(super) fn interrupted(&self) -> Vec<Begun> {
        self.interrupted.clone().unwrap_or_default()
    }

    /// Writes the lines in order, and returns how many are safely on disk. If fsync fails, the number is 0,
    /// because a line that is written twice is better than a lost line.
    pub(super) fn write<'a>(&mut self, lines: impl IntoIterator<Item = &'a [u8]>) -> (usize, io::Result<()>) {
        let mut taken = 0;
        let appended = lines.into_iter().try_for_each(|line| self.append(line).inspect(|()| taken += 1));
        let synced = self.sync();
        let kept = if synced.is_ok() { taken } else { 0 };
        let written = appended.and(synced);
        match &written {
            Ok(()) => self.status.well(),
            Err(error) => self.fail(error),
        }
        (kept, written)
    }

    fn fail(&mut self, error: &io::Error) {
        if self.status.fail() {
            let path = self.settings.path.display();
            tracing::error!(%error, %path, "cannot write the audit log; destructive steps are withheld");
        }
        self.file = None;
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

    /// Returns the log file. Reopens it if the path no longer leads to the open file.
    fn ready(&mut self) -> io::Result<&mut File> {
        let path = &self.settings.path;
        let file = match self.file.take() {
            Some(file) if is_at(&file, path) => file,
            Some(moved) => {
                // The file was moved away and may contain lines that are not on disk yet.
                moved.sync_data()?;
                open(path)?
            }
            None => open(path)?,
        };
        Ok(self.file.insert(file))
    }

    /// Rotates the file. If the rename fails, the file grows beyond its limit, because no line may be lost.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        let path = &self.settings.path;
        for number in (1..self.settings.keep.max(1)).rev() {
            drop(fs::rename(aside(path, number), aside(path, number + 1)));
        }
        match fs::rename(path, aside(path, 1)) {
            Ok(()) => self.file = None,
            Err(error) => tracing::warn!(%error, "cannot rotate the audit log"),
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
        return Err(io::Error::other("not a regular file"));
    }
    // Sync the directory too, so that a new file still has its name after a crash.
    rustix::fs::fsync(disk::directory_of(path)?)?;
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

/// Returns the actions without a result in the current log, the newest rotated log and the `kept` lines. Two
/// files suffice, because an action takes minutes and a file lasts longer.
fn begun_without_result(path: &Path, kept: &[Vec<u8>]) -> Vec<Begun> {
    #[derive(Deserialize)]
    struct Head {
        id: u64,
        result: String,
        held_still: Option<HeldStill>,
    }
    let mut open: BTreeMap<u64, Begun> = BTreeMap::new();
    let files = [aside(path, 1), path.to_owned()];
    for line in files.iter().flat_map(|path| last_lines(path, LOOK_BACK)).chain(kept.to_vec()) {
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
    open.into_values().collect()
}

/// Returns the path of the file that was rotated last.
pub(super) fn rotated(path: &Path) -> PathBuf {
    aside(path, 1)
}

/// Returns the lines in this number of bytes at the end of a file. The first one may be incomplete.
pub(super) fn last_lines(path: &Path, look_back: u64) -> Vec<Vec<u8>> {
    if !fs::symlink_metadata(path).is_ok_and(|about| about.is_file()) {
        return Vec::new();
    }
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let size = file.metadata().map_or(0, |about| about.len());
    if file.seek(SeekFrom::Start(size.saturating_sub(look_back))).is_err() {
        return Vec::new();
    }
    BufReader::new(file.take(look_back)).split(b'\n').map_while(Result::ok).collect()
}
