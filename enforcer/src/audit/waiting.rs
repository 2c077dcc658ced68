//! Queue of lines that wait for the disk. Adding a line never blocks. Lines that are left at an orderly
//! shutdown are saved in a file in the `--state` directory and written at the next start.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lifecycle::file::{self, PATIENCE};

use crate::disk;

/// Maximum number of queued lines.
const MOST: usize = 1024;
/// Maximum size of the queued lines, and of the lines that are saved for the next start, in bytes. Lines that exceed it are
/// dropped.
const MOST_BYTES: usize = 16 << 20;

/// Priority of a line: decides which line is dropped if the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    /// Result of an action against a process; dropped last.
    Result,
    /// A finding or a change.
    Note,
}

/// Queue of lines.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Queued lines with their sequence numbers.
    lines: VecDeque<(u64, Worth, Vec<u8>)>,
    next: u64,
    /// Size of the lines.
    bytes: usize,
    closed: bool,
}

impl Waiting {
    /// Adds a line. If the queue is full, drops lines for it; returns their number.
    pub(super) fn add(&self, worth: Worth, line: Vec<u8>) -> u64 {
        let mut dropped_lines = 0;
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        queue.bytes += line.len();
        queue.lines.push_back((number, worth, line));
        while queue.lines.len() > MOST || (queue.bytes > MOST_BYTES && queue.lines.len() > 1) {
            let note = queue.lines.iter().position(|(_, worth, _)| *worth == Worth::Note);
            let dropped = queue.lines.remove(note.unwrap_or_default());
            queue.bytes -= dropped.map_or(0, |(_, _, line)| line.len());
            dropped_lines += 1;
        }
        drop(queue);
        self.changed.notify_all();
        dropped_lines
    }

    /// Returns all queued lines with the sequence numbers that [`Waiting::written`] expects.
    pub(super) fn all(&self) -> Vec<(u64, Vec<u8>)> {
        self.queue().lines.iter().map(|(number, _, line)| (*number, line.clone())).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue().lines.is_empty()
    }

    /// Removes these lines from the queue, because they are on disk.
    pub(super) fn written(&self, numbers: &[(u64, Vec<u8>)]) {
        let Some((last, _)) = numbers.last() else { return };
        let mut queue = self.queue();
        queue.lines.retain(|(number, ..)| number > last);
        queue.bytes = queue.lines.iter().map(|(_, _, line)| line.len()).sum();
    }

    /// Waits for a queued line, or for `at_most` while writes are `failing`. Returns false once closed.
    pub(super) fn wait(&self, at_most: Duration, failing: bool) -> bool {
        let idle = |queue: &mut Queue| (failing || queue.lines.is_empty()) && !queue.closed;
        let waited = self.changed.wait_timeout_while(self.queue(), at_most, idle);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// Closes the queue and wakes the writing thread.
    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_all();
    }

    /// Saves the queued lines in a file for the next start.
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

/// Returns the lines that an earlier run saved.
pub(super) fn kept(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    match file::within(path, PATIENCE, |path| file::read(path, MOST_BYTES as u64)) {
        Ok((_, bytes)) => Ok(bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Deletes the file of saved lines once they are in the log. If that fails, the next start writes them again.
pub(super) fn forget(path: &Path) {
    drop(file::within(path, PATIENCE, |path| std::fs::remove_file(path)));
}
