//! State file, which survives a restart. A separate task writes it, so that the daemon never waits for a
//! disk. An action that requires saved state is held until the state is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::file::{self, PATIENCE};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::clock::now;
use crate::disk;
use bailiff_engine::engine::{Engine, Saved};

/// Maximum interval between saves, for changes that do not trigger one, such as an opened breaker.
const OFTEN: Duration = Duration::from_secs(15);
/// Time limit for a response that waits for the disk; a `pause` must not wait longer.
const SOON: Duration = Duration::from_millis(60);
/// Maximum size of the state file, in bytes.
const MOST: u64 = 1 << 30;

fn state_file(directory: &Path) -> PathBuf {
    directory.join("state.json")
}

/// Restores the state of an earlier run. If it is unreadable, used budgets and an administrator's pause are
/// unknown, so the engine is paused until an administrator runs `resume`.
pub(super) fn restore(engine: &mut Engine, directory: &Path) {
    let path = state_file(directory);
    let read = match file::within(&path, PATIENCE, |path| file::read(path, MOST)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        read => read.map(|(_, bytes)| bytes),
    };
    let hangs = read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
    let saved = read.map_err(|error| error.to_string()).and_then(|bytes| understand(&bytes));
    match saved {
        Ok(saved) => engine.restore(once(saved, &path), now()),
        Err(why) => {
            tracing::error!(why, path = %path.display(), "the state of an earlier run cannot be read; paused");
            if !hangs {
                let aside = path.with_extension("json.unread");
                drop(file::within(&path, PATIENCE, move |path| std::fs::rename(path, aside)));
            }
            engine.pause(now(), None, format!("the state of an earlier run cannot be read: {why}"));
        }
    }
}

fn understand(bytes: &[u8]) -> Result<Saved, String> {
    let saved: Saved = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if saved.understood() { Ok(saved) } else { Err("unsupported version".to_owned()) }
}

/// Removes the streaks from the file before they are used, so that a crash does not restore them twice.
fn once(saved: Saved, path: &Path) -> Saved {
    let rest = saved.clone().without_streaks();
    let forgotten = serde_json::to_vec(&rest).map_err(io::Error::from);
    let forgotten =
        forgotten.and_then(|bytes| file::within(path, PATIENCE, move |path| disk::replace(path, &bytes)));
    if forgotten.is_ok() { saved } else { rest }
}

/// A version of the state to be written; a later version replaces all earlier ones.
#[derive(Debug, Clone, Default)]
struct Sheet {
    number: u64,
    bytes: Arc<[u8]>,
}

/// Last version that the writer has handled.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    number: u64,
    failed: bool,
}

/// Receiver of the versions that the writer has handled.
#[derive(Debug, Clone)]
pub(super) struct Acks(watch::Receiver<Kept>);

impl Acks {
    /// Waits until the writer has handled another version.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a short time until a version is on disk; returns whether it is.
    pub(super) async fn has(&self, number: u64) -> bool {
        let mut kept = self.0.clone();
        let reached = timeout(SOON, kept.wait_for(|kept| kept.number >= number)).await;
        matches!(reached, Ok(Ok(kept)) if !kept.failed)
    }
}

/// Handle of the task that writes the state.
#[derive(Debug)]
pub(super) struct StateWriter {
    sheets: watch::Sender<Sheet>,
    kept: watch::Receiver<Kept>,
    /// Version that must be on disk before an action may start.
    needed: u64,
    /// Time of the last periodic save, since boot.
    periodic: Duration,
    task: JoinHandle<()>,
}

impl StateWriter {
    pub(super) fn start(directory: &Path) -> Self {
        let (sheets, next) = watch::channel(Sheet::default());
        let (sender, kept) = watch::channel(Kept::default());
        let task = tokio::spawn(keep(state_file(directory), next, sender));
        Self { sheets, kept, needed: 0, periodic: Duration::ZERO, task }
    }

    pub(super) fn acks(&self) -> Acks {
        Acks(self.kept.clone())
    }

    /// Queues the state for writing and returns its version. No action starts before it is on disk, because a
    /// crash would lose the used budgets.
    pub(super) fn save(&mut self, engine: &Engine) -> u64 {
        self.needed = self.write(&engine.saved_for_a_crash());
        self.needed
    }

    /// Queues the state for writing and returns its version. Actions do not wait for it.
    pub(super) fn save_later(&self, engine: &Engine) -> u64 {
        self.write(&engine.saved_for_a_crash())
    }

    /// Queues the complete state, including streaks, at an orderly shutdown.
    pub(super) fn save_at_the_end(&self, engine: &Engine) {
        self.write(&engine.saved());
    }

    /// Queues the state if the last periodic save was long ago; `now` is the time since boot.
    pub(super) fn save_sometimes(&mut self, engine: &Engine, now: Duration) {
        if now.saturating_sub(self.periodic) >= OFTEN {
            self.periodic = now;
            // What actions require was saved before.
            self.save_later(engine);
        }
    }

    fn write(&self, saved: &Saved) -> u64 {
        let bytes = match serde_json::to_vec(saved) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "cannot serialize the state");
                return u64::MAX;
            }
        };
        let mut number = 0;
        self.sheets.send_modify(|sheet| {
            *sheet = Sheet { number: sheet.number + 1, bytes: bytes.into() };
            number = sheet.number;
        });
        number
    }

    /// Returns whether the required version is on disk.
    pub(super) fn well(&self) -> bool {
        let kept = *self.kept.borrow();
        !kept.failed && kept.number >= self.needed
    }

    /// Waits until the last version was written.
    pub(super) async fn finish(self) {
        drop(self.sheets);
        if timeout(PATIENCE * 2, self.task).await.is_err() {
            tracing::error!("the disk does not respond; the state of this run may be lost");
        }
    }
}

async fn keep(path: PathBuf, mut sheets: watch::Receiver<Sheet>, sender: watch::Sender<Kept>) {
    let mut written = None;
    let mut failed = false;
    while sheets.changed().await.is_ok() {
        let Sheet { number, bytes } = sheets.borrow_and_update().clone();
        if written.as_ref() != Some(&bytes) {
            let (file, theirs) = (path.clone(), Arc::clone(&bytes));
            let write = move |path: &Path| disk::replace(path, &theirs);
            let done = spawn_blocking(move || file::within(&file, PATIENCE, write)).await;
            let result = done.map_err(io::Error::from).flatten();
            if let Err(error) = &result
                && !failed
            {
                let path = path.display();
                tracing::error!(%error, %path, "cannot write the state; destructive steps are withheld");
            }
            failed = result.is_err();
            written = result.is_ok().then_some(bytes);
        }
        sender.send_replace(Kept { number, failed });
    }
}
