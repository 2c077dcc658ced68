//! State that survives a restart, on disk. A task of its own writes it, so that nothing waits for a disk; an action that
//! requires saved state is held until it is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::file::{self, PATIENCE};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::Daemon;
use crate::clock::now;
use crate::disk;
use bailiff_engine::engine::{Engine, Saved};
use bailiff_engine::verdict::Hold;

/// Breakers, which open with no action, are saved at least this often.
const OFTEN: Duration = Duration::from_secs(15);
/// A request that waits for the disk is answered after this time at the latest: a pause must not wait for it.
const SOON: Duration = Duration::from_millis(60);
/// A state is never longer.
const MOST: u64 = 1 << 30;

/// Where lines are kept that the audit log did not take.
pub(super) fn unwritten(directory: &Path) -> PathBuf {
    directory.join("audit.unwritten.jsonl")
}

fn state_file(directory: &Path) -> PathBuf {
    directory.join("state.json")
}

/// Restores the state of an earlier run. If it is unreadable, used budgets and an administrator's pause are
/// unknown: an administrator has to check and run `resume`.
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
            tracing::error!(why, path = %path.display(), "the state of an earlier run cannot be taken up; paused");
            if !hangs {
                let aside = path.with_extension("json.unread");
                drop(file::within(&path, PATIENCE, move |path| std::fs::rename(path, aside)));
            }
            engine.pause(now(), None, format!("the state of an earlier run cannot be taken up: {why}"));
        }
    }
}

fn understand(bytes: &[u8]) -> Result<Saved, String> {
    let saved: Saved = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if saved.understood() { Ok(saved) } else { Err("it has an unsupported version".to_owned()) }
}

/// Streaks are restored once: the file is cleared of them first, so that they are not restored again after a crash.
fn once(saved: Saved, path: &Path) -> Saved {
    let rest = saved.clone().without_streaks();
    let forgotten = serde_json::to_vec(&rest).map_err(io::Error::from);
    let forgotten =
        forgotten.and_then(|bytes| file::within(path, PATIENCE, move |path| disk::replace(path, &bytes)));
    if forgotten.is_ok() { saved } else { rest }
}

/// What is to be on the disk; a later one holds all that matters of those before.
#[derive(Debug, Clone, Default)]
struct Sheet {
    number: u64,
    bytes: Arc<[u8]>,
}

/// How far the disk has come.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    number: u64,
    failed: bool,
}

/// Reports whether a version of the state is on the disk.
#[derive(Debug, Clone)]
pub(super) struct Acks(watch::Receiver<Kept>);

impl Acks {
    /// Waits until the disk has come further.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the disk, not for long.
    pub(super) async fn has(&self, number: u64) -> bool {
        let mut kept = self.0.clone();
        let reached = timeout(SOON, kept.wait_for(|kept| kept.number >= number)).await;
        matches!(reached, Ok(Ok(kept)) if !kept.failed)
    }
}

/// The task that writes.
#[derive(Debug)]
pub(super) struct StateWriter {
    sheets: watch::Sender<Sheet>,
    kept: watch::Receiver<Kept>,
    /// What must be on the disk before anything is done.
    needed: u64,
    task: JoinHandle<()>,
}

impl StateWriter {
    pub(super) fn start(directory: &Path) -> Self {
        let (sheets, next) = watch::channel(Sheet::default());
        let (sender, kept) = watch::channel(Kept::default());
        Self { sheets, kept, needed: 0, task: tokio::spawn(keep(state_file(directory), next, sender)) }
    }

    pub(super) fn acks(&self) -> Acks {
        Acks(self.kept.clone())
    }

    fn put(&self, bytes: Vec<u8>) -> u64 {
        let mut number = 0;
        self.sheets.send_modify(|sheet| {
            *sheet = Sheet { number: sheet.number + 1, bytes: bytes.into() };
            number = sheet.number;
        });
        number
    }

    /// All that must be on the disk is.
    fn well(&self) -> bool {
        let kept = *self.kept.borrow();
        !kept.failed && kept.number >= self.needed
    }

    /// Ends once the last sheet was written.
    pub(super) async fn finish(self) {
        drop(self.sheets);
        if timeout(PATIENCE * 2, self.task).await.is_err() {
            tracing::error!("the disk does not answer; the state of this run may be lost");
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
                tracing::error!(%error, %path, "the state cannot be written; nothing destructive will be done");
            }
            failed = result.is_err();
            written = result.is_ok().then_some(bytes);
        }
        sender.send_replace(Kept { number, failed });
    }
}

impl Daemon {
    /// Has the state written. Until it is, and where that fails, nothing is done: budgets would not outlive a crash.
    pub(super) fn save(&mut self) -> u64 {
        self.state_writer.needed = self.write(&self.engine.saved_for_a_crash());
        self.check_state();
        self.state_writer.needed
    }

    /// The last time, in an orderly end.
    pub(super) fn save_at_the_end(&mut self) {
        self.write(&self.engine.saved());
    }

    fn write(&self, saved: &Saved) -> u64 {
        match serde_json::to_vec(saved) {
            Ok(bytes) => self.state_writer.put(bytes),
            Err(error) => {
                tracing::error!(%error, "the state has no form");
                u64::MAX
            }
        }
    }

    pub(super) fn save_sometimes(&mut self) {
        if now().boot.saturating_sub(self.saved) >= OFTEN {
            self.saved = now().boot;
            // What it must outlive is there already.
            self.write(&self.engine.saved_for_a_crash());
        }
    }

    pub(super) fn check_state(&mut self) {
        let well = self.state_writer.well();
        self.hold_if(Hold::State, !well);
    }
}
