//! The page that Prometheus reads: a static part, written once per snapshot, and a small tail per request.

mod gpus;
mod itself;
mod leases;
mod mps;
mod processes;
mod quotas;
mod tail;
mod users;

use std::io::{self, Write};

use bailiff_exposition::Writer;
use bailiff_snapshot::Snapshot;

use crate::selection::Selection;

pub use bailiff_exposition::Format;
pub use tail::Moment;

/// What the static part is made of.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// What was seen.
    pub snapshot: &'a Snapshot,
    /// The processes that are shown one by one.
    pub selection: &'a Selection,
    /// How many were not shown so far, over all snapshots.
    pub dropped: u64,
}

/// Writes the part without samples: what is running, and that no source answered since an outdated snapshot.
///
/// # Errors
/// If `out` does not take it.
pub fn write_outdated(snapshot: Option<&Snapshot>, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    if let Some(snapshot) = snapshot {
        itself::write_outdated(snapshot, &mut page);
    }
    itself::write_build(&mut page);
    page.finish()
}

/// Writes the static part; without a snapshot it says only what is running.
///
/// # Errors
/// If `out` does not take it.
pub fn write(content: Option<Content<'_>>, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    if let Some(content) = content {
        gpus::write(content.snapshot, &mut page);
        processes::write(content.snapshot, content.selection, &mut page);
        users::write(content.snapshot, &mut page);
        leases::write(content.snapshot, &mut page);
        quotas::write(content.snapshot, content.selection, &mut page);
        mps::write(content.snapshot, content.selection, &mut page);
        itself::write(content.snapshot, content.dropped, &mut page);
    }
    itself::write_build(&mut page);
    page.finish()
}

/// Writes the tail, and with it the end of the page.
///
/// # Errors
/// If `out` does not take it.
pub fn write_tail(moment: &Moment, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    tail::write(moment, &mut page);
    page.end()
}
