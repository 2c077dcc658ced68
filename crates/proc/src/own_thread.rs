//! For how long the kernel delays a thread because the machine is busy.

use std::path::Path;
use std::time::Duration;

use crate::directory::Directory;

/// The thread that runs this.
pub(crate) struct OwnThread {
    directory: Option<Directory>,
    /// Time for which it was ready to run, but other threads ran, at the last call of [`Self::delay`].
    delayed: Option<Duration>,
}

impl OwnThread {
    pub(crate) fn open() -> Self {
        let directory = Directory::open(Path::new("/proc/thread-self")).ok();
        let mut own = Self { directory, delayed: None };
        own.delay();
        own
    }

    /// Returns another handle of its directory in `/proc`, for [`delayed`].
    pub(crate) fn handle(&self) -> Option<Directory> {
        self.directory.as_ref()?.again().ok()
    }

    /// Returns for how long other threads have delayed this one since the last call, as far as that is known.
    pub(crate) fn delay(&mut self) -> Duration {
        let now = self.directory.as_ref().and_then(delayed);
        let before = std::mem::replace(&mut self.delayed, now);
        now.zip(before).map(|(now, before)| now.saturating_sub(before)).unwrap_or_default()
    }
}

/// Returns for how long a thread was ready to run, but other threads ran (Linux, Documentation/scheduler/sched-stats.rst).
pub(crate) fn delayed(thread: &Directory) -> Option<Duration> {
    let text = thread.text("schedstat").ok()?;
    Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
}
