//! The record: the lines of the stream, appended to a file. A disk that is full or slow loses lines and
//! nothing else.

#![expect(clippy::disallowed_methods, reason = "the one file that opens the record")]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, anyhow};
use bailiff_lifecycle::exit::plain;
use tokio::task::spawn_blocking;

use crate::published::Published;
use crate::schedule::Latest;

/// How many lines could not be written.
#[derive(Debug, Clone, Default)]
pub struct Failures(Arc<AtomicU64>);

impl Failures {
    /// The number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The file, open at its end.
#[derive(Debug)]
pub struct Record {
    file: File,
    failures: Failures,
    /// The last write failed, maybe in the middle of a line.
    torn: bool,
}

impl Record {
    /// Opens it; it is made where there is none.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let cannot =
            |error: io::Error| anyhow!("cannot open the record {}: {}", path.display(), plain(&error));
        Ok(Self { file: opened.map_err(cannot)?, failures: Failures::default(), torn: false })
    }

    /// Count of its failures, to be published while it works.
    #[must_use]
    pub fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Writes every snapshot until the interval ends. Writing may wait for a disk, so it has a thread of its own
    /// while it lasts.
    pub async fn run(mut self, mut latest: Latest) {
        while latest.changed().await.is_ok() {
            let Some(published) = latest.borrow_and_update().clone() else { continue };
            match spawn_blocking(move || self.append(&published)).await {
                Ok(record) => self = record,
                Err(_) => return,
            }
        }
    }

    /// One write a line, so that lines of two writers do not mix. What is left of a write that failed becomes a
    /// line of its own, which no reader takes for a snapshot.
    fn append(mut self, published: &Published) -> Self {
        let line = published.line();
        let written = if self.torn {
            self.file.write_all(&[b"\n", line.as_ref()].concat())
        } else {
            self.file.write_all(&line)
        };
        self.torn = written.is_err();
        if let Err(error) = written
            && self.failures.0.fetch_add(1, Relaxed) == 0
        {
            tracing::error!(%error, "a snapshot could not be recorded; further failures are only counted");
        }
        self
    }
}
