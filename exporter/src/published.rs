//! A snapshot and everything rendered from it. Each form is rendered at most once.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use bailiff_http::negotiate::Encoding;
use bailiff_http::{Body, Bytes};
use bailiff_snapshot::{Snapshot, wire};

use crate::gzip::{Packed, Packer};
use crate::page::{self, Content, Format, Moment};
use crate::selection::Selection;

/// Format and encoding of the metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Exposition format.
    pub format: Format,
    /// Content encoding.
    pub encoding: Encoding,
}

impl Form {
    const ALL: [Self; 4] = [
        Self { format: Format::Text, encoding: Encoding::Identity },
        Self { format: Format::Text, encoding: Encoding::Gzip },
        Self { format: Format::OpenMetrics, encoding: Encoding::Identity },
        Self { format: Format::OpenMetrics, encoding: Encoding::Gzip },
    ];

    fn index(self) -> usize {
        usize::from(self.encoding == Encoding::Gzip) + 2 * usize::from(self.format == Format::OpenMetrics)
    }
}

/// Static part of a page in one form.
#[derive(Debug)]
enum Rendered {
    Plain(Pieces),
    Packed(Packed),
}

/// A page as the list of pieces in which it was written. A single buffer would be copied as it grows, and its
/// memory could rarely be reused for the next page.
#[derive(Debug, Default)]
struct Pieces(Vec<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(Bytes::copy_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A requested form is rendered in advance for this many further snapshots. At the default interval that is a
/// minute, which is longer than the time between two scrapes.
const READY_FOR: u8 = 12;

/// A published snapshot.
#[derive(Debug)]
pub struct Published {
    /// The snapshot itself.
    pub snapshot: Snapshot,
    /// Processes with series of their own.
    pub selection: Selection,
    /// Processes without series of their own, summed over all snapshots.
    dropped: u64,
    began: Duration,
    forms: [OnceLock<io::Result<Rendered>>; Form::ALL.len()],
    /// Number of further snapshots for which each form is rendered in advance.
    wanted: [AtomicU8; Form::ALL.len()],
    line: OnceLock<Bytes>,
}

impl Published {
    /// Prepares a snapshot for publication. `began` is the start of the sample since boot, and `most` the
    /// maximum number of processes with series of their own.
    pub fn new(snapshot: Snapshot, began: Duration, most: usize, previous: Option<&Self>) -> Self {
        let selection = Selection::of(&snapshot, most);
        let left_out = selection.left_out_of(snapshot.processes.len());
        let published = Self {
            dropped: previous.map_or(0, |previous| previous.dropped) + left_out,
            snapshot,
            selection,
            began,
            forms: [const { OnceLock::new() }; Form::ALL.len()],
            wanted: [const { AtomicU8::new(0) }; Form::ALL.len()],
            line: OnceLock::new(),
        };
        if let Some(previous) = previous {
            published.prepare(previous);
        }
        published
    }

    /// Returns the age of the snapshot; `now` is the time since boot, including suspend.
    pub const fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began)
    }

    /// Returns the page in this form, with the tail for this request.
    ///
    /// # Errors
    /// If the page cannot be rendered.
    pub fn page(&self, form: Form, moment: &Moment) -> io::Result<Body> {
        self.wanted[form.index()].store(READY_FOR, Relaxed);
        let mut tail = Vec::new();
        page::write_tail(moment, form.format, &mut tail)?;
        let rendered = self.forms[form.index()].get_or_init(|| self.render(form));
        match rendered {
            Ok(Rendered::Plain(pieces)) => Ok(pieces.0.iter().cloned().chain([tail.into()]).collect()),
            Ok(Rendered::Packed(packed)) => Ok(Body::from_iter(packed.with_tail(&tail))),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    /// Returns the content of the static part.
    pub fn content(&self) -> Content<'_> {
        Content { snapshot: &self.snapshot, selection: &self.selection, dropped: self.dropped }
    }

    /// Returns the snapshot as a line of JSON, for the stream and the record.
    pub fn line(&self) -> Bytes {
        let line = || {
            wire::write(&self.snapshot)
                .inspect_err(|error| tracing::error!(%error, "cannot serialize the snapshot"))
        };
        self.line.get_or_init(|| line().unwrap_or_default().into()).clone()
    }

    /// Renders the forms that were requested recently, because the same clients will request them again.
    fn prepare(&self, previous: &Self) {
        for form in Form::ALL {
            let left = previous.wanted[form.index()].load(Relaxed);
            if left > 0 {
                self.wanted[form.index()].store(left - 1, Relaxed);
                let _ = self.forms[form.index()].set(self.render(form));
            }
        }
    }

    fn render(&self, form: Form) -> io::Result<Rendered> {
        match form.encoding {
            Encoding::Identity => {
                let mut pieces = Pieces::default();
                page::write(Some(self.content()), form.format, &mut pieces)?;
                Ok(Rendered::Plain(pieces))
            }
            Encoding::Gzip => {
                let mut packer = Packer::default();
                page::write(Some(self.content()), form.format, &mut packer)?;
                packer.finish().map(Rendered::Packed)
            }
        }
    }
}
