//! The metrics page: a static part, rendered once per snapshot, and a small tail, rendered per request.

mod gpus;
mod itself;
mod leases;
mod mps;
mod pods;
mod processes;
mod quotas;
mod slurm;
mod users;

use std::io::{self, Write};

use bailiff_exposition::Writer;
use bailiff_snapshot::Snapshot;

use crate::selection::Selection;

pub use bailiff_exposition::Format;
pub use itself::Moment;

/// Content of the static part.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// The snapshot to render.
    pub snapshot: &'a Snapshot,
    /// Processes with series of their own.
    pub selection: &'a Selection,
    /// Processes without series of their own, summed over all snapshots.
    pub dropped: u64,
}

/// Writes a static part without samples: the exporter's version, and all sources of an outdated snapshot as
/// down.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_outdated(snapshot: Option<&Snapshot>, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    if let Some(snapshot) = snapshot {
        itself::write_outdated(snapshot, &mut page);
    }
    itself::write_build(&mut page);
    page.finish()
}

/// Writes the static part; without a snapshot, only the exporter's version.
///
/// # Errors
/// If writing to `out` fails.
pub fn write(content: Option<Content<'_>>, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    if let Some(content) = content {
        gpus::write(content.snapshot, &mut page);
        processes::write(content.snapshot, content.selection, &mut page);
        users::write(content.snapshot, &mut page);
        leases::write(content.snapshot, &mut page);
        quotas::write(content.snapshot, content.selection, &mut page);
        slurm::write(content.snapshot, &mut page);
        pods::write(content.snapshot, &mut page);
        mps::write(content.snapshot, content.selection, &mut page);
        itself::write(content.snapshot, content.dropped, &mut page);
    }
    itself::write_build(&mut page);
    page.finish()
}

/// Writes the tail and the end of the page.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_tail(moment: &Moment, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    itself::write_moment(moment, &mut page);
    page.end()
}
