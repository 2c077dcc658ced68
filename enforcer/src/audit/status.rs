//! Status of the log, readable without waiting for a write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lifecycle::file::PATIENCE;

use crate::clock;

#[derive(Debug, Default)]
pub(super) struct LogStatus {
    failed: AtomicBool,
    failures: AtomicU64,
    lost: AtomicU64,
    /// Since when a thread is at the disk.
    busy: Mutex<Option<Duration>>,
}

impl LogStatus {
    /// The last try to write failed.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The last try to write succeeded, and none hangs.
    pub(super) fn writable(&self) -> bool {
        !self.failed() && !self.hangs()
    }

    /// A thread is at the disk, and does not come back.
    pub(super) fn hangs(&self) -> bool {
        self.busy().is_some_and(|since| clock::since_boot().saturating_sub(since) > PATIENCE)
    }

    /// Does something with the disk.
    pub(super) fn during<T>(&self, act: impl FnOnce() -> T) -> T {
        *self.busy() = Some(clock::since_boot());
        let done = act();
        *self.busy() = None;
        done
    }

    pub(super) fn well(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Records a failure; returns whether it is the first.
    pub(super) fn fail(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        !self.failed.swap(true, Ordering::Relaxed)
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

    fn busy(&self) -> MutexGuard<'_, Option<Duration>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
