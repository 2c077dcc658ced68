//! A snapshot and everything that is rendered from it: each form once, when it is first asked for.

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

/// One form of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// What it is written in.
    pub format: Format,
    /// Its content encoding.
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

/// The static part of a page in one form.
#[derive(Debug)]
enum Rendered {
    Plain(Pieces),
    Packed(Packed),
}

/// A page in the pieces that it was written in. As one piece it would be grown and copied as it is written,
/// and its place could hardly be used again for the next one.
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

/// A form that was requested is rendered for this many further snapshots: a minute of them at the default interval,
/// which is longer than between two scrapes.
const READY_FOR: u8 = 12;

/// A snapshot as it is shown.
#[derive(Debug)]
pub struct Published {
    /// What was seen.
    pub snapshot: Snapshot,
    /// The processes that are shown one by one.
    pub selection: Selection,
    /// How many were not shown so far, over all snapshots.
    dropped: u64,
    began: Duration,
    forms: [OnceLock<io::Result<Rendered>>; Form::ALL.len()],
    /// For how many more snapshots each form is made ready.
    wanted: [AtomicU8; Form::ALL.len()],
    line: OnceLock<Bytes>,
}

impl Published {
    /// Prepares a snapshot for publication; it was begun at `began`, since boot.
    #[must_use]
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

    /// Age of the snapshot; `now` is since boot, including suspend.
    #[must_use]
    pub const fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began)
    }

    /// The page in this form, with this tail.
    ///
    /// # Errors
    /// If it cannot be packed.
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

    /// What the static part is made of.
    #[must_use]
    pub fn content(&self) -> Content<'_> {
        Content { snapshot: &self.snapshot, selection: &self.selection, dropped: self.dropped }
    }

    /// The line of the stream.
    #[must_use]
    pub fn line(&self) -> Bytes {
        let line = || wire::write(&self.snapshot).inspect_err(|error| tracing::error!(%error, "no line"));
        self.line.get_or_init(|| line().unwrap_or_default().into()).clone()
    }

    /// Renders the forms that were requested lately, because the same clients will request them again.
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
