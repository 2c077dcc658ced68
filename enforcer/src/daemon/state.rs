//! What outlives a restart, on disk.

#![expect(clippy::disallowed_methods, reason = "reads the state of an earlier run")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Daemon;
use crate::clock::now;
use crate::disk;
use crate::engine::{Engine, Saved};
use crate::verdict::Hold;

/// Streaks are saved at least this often; deeds at once.
const OFTEN: Duration = Duration::from_secs(15);

/// What is on the disk.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    /// The run had an orderly end. After any other one, streaks may have ended that the disk knows nothing of.
    orderly: bool,
    engine: Saved,
}

fn file(folder: &Path) -> PathBuf {
    folder.join("state.json")
}

/// Takes up what an earlier run has left. What cannot be understood is left alone and told: budgets begin anew then.
pub(super) fn restore(engine: &mut Engine, folder: &Path) {
    let path = file(folder);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => return tracing::warn!(%error, path = %path.display(), "the state cannot be read"),
    };
    match serde_json::from_slice::<State>(&bytes) {
        Ok(State { orderly: true, engine: saved }) => engine.restore(saved, now()),
        Ok(State { orderly: false, engine: saved }) => engine.restore(saved.without_streaks(), now()),
        Err(error) => tracing::warn!(%error, path = %path.display(), "the state cannot be understood"),
    }
}

impl Daemon {
    /// Puts the state on the disk. Where that fails, budgets would not outlive a restart, so nothing is done.
    pub(super) fn save(&mut self) -> bool {
        self.write(false)
    }

    /// The last time, in an orderly end.
    pub(super) fn save_at_the_end(&mut self) {
        self.write(true);
    }

    fn write(&mut self, orderly: bool) -> bool {
        self.saved = now().boot;
        let written = serde_json::to_vec(&State { orderly, engine: self.engine.saved() })
            .map_err(std::io::Error::from)
            .and_then(|bytes| disk::replace(&file(&self.settings.state), &bytes));
        if let Err(error) = &written
            && !self.engine.holds().contains(&Hold::State)
        {
            let folder = self.settings.state.display();
            tracing::error!(%error, %folder, "the state cannot be written; nothing destructive will be done");
        }
        self.hold_if(Hold::State, written.is_err());
        written.is_ok()
    }

    pub(super) fn save_sometimes(&mut self) {
        if now().boot.saturating_sub(self.saved) >= OFTEN {
            self.save();
        }
    }
}
