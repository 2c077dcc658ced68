//! Status of the audit log, readable while a write is in progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lifecycle::file::PATIENCE;

use crate::clock;

/// Status of the audit log.
#[derive(Debug, Default)]
pub struct LogStatus {
    failed: AtomicBool,
    failures: AtomicU64,
    /// Start of the disk access in progress, as time since boot.
    busy: Mutex<Option<Duration>>,
}

impl LogStatus {
    /// Returns whether the last write failed.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns whether the last write succeeded and no write hangs. A failed write is retried every second.
    pub fn writable(&self) -> bool {
        !self.failed() && !self.hangs()
    }

    /// Returns whether a disk access has been in progress for longer than [`PATIENCE`]. A call of
    /// [`AuditLog::record`](super::AuditLog::record) would block.
    pub fn hangs(&self) -> bool {
        self.busy().is_some_and(|since| clock::since_boot().saturating_sub(since) > PATIENCE)
    }

    /// Runs `act` and marks it as a disk access in progress.
    pub(super) fn during<T>(&self, act: impl FnOnce() -> T) -> T {
        *self.busy() = Some(clock::since_boot());
        let done = act();
        *self.busy() = None;
        done
    }

    pub(super) fn well(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Counts a failure. Returns whether the previous write had succeeded.
    pub(super) fn fail(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        !self.failed.swap(true, Ordering::Relaxed)
    }

    /// Counts lines that were dropped, because too many waited.
    pub(super) fn dropped(&self, lines: u64) {
        self.failures.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of failed writes and dropped lines.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn busy(&self) -> MutexGuard<'_, Option<Duration>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
