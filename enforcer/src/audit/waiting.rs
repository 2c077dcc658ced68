//! Lines that wait for the disk. Adding one never blocks; lines left at an orderly shutdown are kept in a file of their
//! own (`--state`), and written at the next start.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lifecycle::file::{self, PATIENCE};

use crate::disk;

/// Lines that wait, at most.
const MOST: usize = 1024;
/// Bytes that are kept for the next start, at most: the first lines that fit.
const MOST_BYTES: usize = 16 << 20;

/// What a line is worth, where not all can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    /// What was done to a process: the last to be dropped.
    Result,
    /// A finding, a change.
    Note,
}

/// The lines.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Each with its number.
    lines: VecDeque<(u64, Worth, Vec<u8>)>,
    next: u64,
    closed: bool,
}

impl Waiting {
    /// Adds a line; false if one is lost for it.
    pub(super) fn add(&self, worth: Worth, line: Vec<u8>) -> bool {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        queue.lines.push_back((number, worth, line));
        let full = queue.lines.len() > MOST;
        if full {
            let note = queue.lines.iter().position(|(_, worth, _)| *worth == Worth::Note);
            queue.lines.remove(note.unwrap_or_default());
        }
        drop(queue);
        self.changed.notify_all();
        !full
    }

    /// All of them, with the numbers that [`Waiting::written`] wants.
    pub(super) fn all(&self) -> Vec<(u64, Vec<u8>)> {
        self.queue().lines.iter().map(|(number, _, line)| (*number, line.clone())).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue().lines.is_empty()
    }

    /// These are on the disk.
    pub(super) fn written(&self, numbers: &[(u64, Vec<u8>)]) {
        let Some((last, _)) = numbers.last() else { return };
        self.queue().lines.retain(|(number, ..)| number > last);
    }

    /// Waits for the time to be up, or unless the disk takes nothing, for lines; false once no more will come.
    pub(super) fn wait(&self, at_most: Duration, failing: bool) -> bool {
        let idle = |queue: &mut Queue| (failing || queue.lines.is_empty()) && !queue.closed;
        let waited = self.changed.wait_timeout_while(self.queue(), at_most, idle);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// No more will come.
    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_all();
    }

    /// Keeps what waits still for the next start.
    pub(super) fn keep(&self, path: &Path) -> io::Result<()> {
        let mut kept = Vec::new();
        for (_, _, line) in &self.queue().lines {
            if kept.len() + line.len() <= MOST_BYTES {
                kept.extend_from_slice(line);
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        file::within(path, PATIENCE, move |path| disk::replace(path, &kept))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an earlier run has kept.
pub(super) fn kept(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    match file::within(path, PATIENCE, |path| file::read(path, MOST_BYTES as u64)) {
        Ok((_, bytes)) => Ok(bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// It is in the log. Where this fails it is written a second time at the next start.
pub(super) fn forget(path: &Path) {
    drop(file::within(path, PATIENCE, |path| std::fs::remove_file(path)));
}
