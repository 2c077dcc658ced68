//! The record: every snapshot is appended to a file as a line of JSON. A full or slow disk only causes
//! missing lines.

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

/// Number of snapshots that could not be written.
#[derive(Debug, Clone, Default)]
pub struct Failures(Arc<AtomicU64>);

impl Failures {
    /// Returns the number of snapshots that could not be written.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The record file, open for appending.
#[derive(Debug)]
pub struct Record {
    file: File,
    failures: Failures,
    /// Whether the last write failed, perhaps in the middle of a line.
    torn: bool,
}

impl Record {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let cannot =
            |error: io::Error| anyhow!("cannot open the recording {}: {}", path.display(), plain(&error));
        Ok(Self { file: opened.map_err(cannot)?, failures: Failures::default(), torn: false })
    }

    /// Returns the shared count of failures, which is published while the record runs.
    pub fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Writes every snapshot until sampling ends. A write may wait for the disk, so it runs on a blocking
    /// thread.
    pub async fn run(mut self, mut latest: Latest) {
        while latest.changed().await.is_ok() {
            let Some(published) = latest.borrow_and_update().clone() else { continue };
            match spawn_blocking(move || self.append(&published)).await {
                Ok(record) => self = record,
                Err(_) => return,
            }
        }
    }

    /// Appends a snapshot in one write, so that the lines of two writers do not mix. After a failed write, a
    /// newline is written first to end the incomplete line, which readers do not accept as a snapshot.
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
            tracing::error!(%error, "cannot record a snapshot; further failures are counted, but not logged");
        }
        self
    }
}
