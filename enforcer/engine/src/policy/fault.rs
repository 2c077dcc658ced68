//! Faults of a file: each with its place and its fix, and how they are shown to users and programs.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Element, Level, Origin, Renderer, Snippet};
use serde::Serialize;

/// Faults beyond this number are counted and not kept, because showing them takes time.
const KEPT: usize = 100;

/// Longer lines are shortened in excerpts.
const LONGEST_EXCERPT: usize = 1000;

/// How bad a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultSeverity {
    /// The file is refused.
    Error,
    /// The file is taken, and may not mean what was meant.
    Warning,
}

impl FaultSeverity {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// How bad it is.
    #[serde(rename = "severity")]
    pub severity: FaultSeverity,
    /// What is wrong, in small letters and without a full stop.
    pub message: String,
    /// Counted from one.
    pub line: usize,
    /// In characters, counted from one.
    pub column: usize,
    /// The place in bytes.
    pub bytes: Range<usize>,
    /// The fix.
    pub help: Option<String>,
}

impl Fault {
    /// Something that refuses the file; its line is known once it is among the others.
    pub(super) fn error(at: &Range<usize>, message: impl Into<String>) -> Self {
        let message = visible(&message.into());
        Self { severity: FaultSeverity::Error, message, line: 0, column: 0, bytes: at.clone(), help: None }
    }

    /// A warning.
    pub(super) fn warning(at: &Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: FaultSeverity::Warning, ..Self::error(at, message) }
    }

    /// With a fix.
    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(visible(&help.into())), ..self }
    }
}

/// Whether text is to have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultStyle {
    /// For files and pipes.
    Plain,
    /// For terminals.
    Coloured,
}

/// All that is wrong with a file, sorted by place.
#[derive(Debug, Clone)]
pub struct Faults {
    name: String,
    text: String,
    starts: Vec<usize>,
    kept: Vec<Fault>,
    errors: usize,
    warnings: usize,
}

impl Faults {
    /// None yet, of a file of this name with this text.
    pub(super) fn none(name: &str, text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect();
        let (name, text) = (visible(name), text.to_owned());
        Self { name, text, starts, kept: Vec::new(), errors: 0, warnings: 0 }
    }

    /// One more.
    pub(super) fn push(&mut self, mut fault: Fault) {
        match fault.severity {
            FaultSeverity::Error => self.errors += 1,
            FaultSeverity::Warning => self.warnings += 1,
        }
        if self.kept.len() >= KEPT {
            return;
        }
        fault.bytes.start = self.boundary(fault.bytes.start);
        fault.bytes.end = self.boundary(fault.bytes.end.max(fault.bytes.start));
        fault.line = self.line_of(fault.bytes.start);
        let before =
            self.starts.get(fault.line - 1).and_then(|start| self.text.get(*start..fault.bytes.start));
        fault.column = before.map_or(0, |before| before.chars().count()) + 1;
        let place = self.kept.partition_point(|other| order(other) <= order(&fault));
        self.kept.insert(place, fault);
    }

    /// The line of a place, counted from one.
    pub(super) fn line_of(&self, byte: usize) -> usize {
        self.starts.partition_point(|start| *start <= byte)
    }

    fn boundary(&self, byte: usize) -> usize {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        byte
    }

    /// How many refuse the file.
    #[must_use]
    pub const fn errors(&self) -> usize {
        self.errors
    }

    /// How many do not.
    #[must_use]
    pub const fn warnings(&self) -> usize {
        self.warnings
    }

    /// More would not be kept.
    pub(super) const fn full(&self) -> bool {
        self.errors >= KEPT
    }

    /// Nothing is wrong.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.errors + self.warnings == 0
    }

    /// The first hundred of them.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.kept.iter()
    }

    /// As a compiler shows them: message, place, excerpt and the fix; then how many there are.
    #[must_use]
    pub fn render(&self, style: FaultStyle) -> String {
        let renderer = match style {
            FaultStyle::Plain => Renderer::plain(),
            FaultStyle::Coloured => Renderer::styled(),
        };
        let mut page = String::new();
        for fault in &self.kept {
            page.push_str(&renderer.render(&[self.shown(fault)]));
            page.push_str("\n\n");
        }
        if !self.is_empty() {
            page.push_str(&self.sum());
            page.push('\n');
        }
        page
    }

    fn shown<'a>(&'a self, fault: &'a Fault) -> annotate_snippets::Group<'a> {
        let level = match fault.severity {
            FaultSeverity::Error => Level::ERROR,
            FaultSeverity::Warning => Level::WARNING,
        };
        let help = fault.help.as_deref().map(|help| Level::HELP.message(help).into());
        let elements: Vec<Element<'a>> = std::iter::once(self.place(fault)).chain(help).collect();
        level.primary_title(fault.message.as_str()).elements(elements)
    }

    /// The fault's first line alone is given to the renderer, which is slow in long texts.
    fn place<'a>(&'a self, fault: &'a Fault) -> Element<'a> {
        let start = self.starts.get(fault.line - 1).copied().unwrap_or_default();
        let line = self.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
        if line.is_empty() || line.len() > LONGEST_EXCERPT {
            return Origin::path(&self.name).line(fault.line).char_column(fault.column).into();
        }
        let end = fault.bytes.end.min(start + line.len()).max(fault.bytes.start);
        let marked = fault.bytes.start.min(start + line.len()) - start..end - start;
        let excerpt = Snippet::source(line).line_start(fault.line).path(&self.name);
        excerpt.annotation(AnnotationKind::Primary.span(marked)).into()
    }

    /// `rules.yaml: 3 errors, 1 warning`, and how many of them are not shown.
    #[must_use]
    pub fn sum(&self) -> String {
        let count = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let counts: Vec<String> =
            [count(self.errors, "error"), count(self.warnings, "warning")].into_iter().flatten().collect();
        let hidden = self.errors + self.warnings - self.kept.len();
        let hidden = if hidden == 0 { String::new() } else { format!("; {hidden} of them are not shown") };
        format!("{}: {}{hidden}", self.name, counts.join(", "))
    }

    /// Each in one line, for logs and HTTP: `rules.yaml:4:31: error: what is wrong; the fix`.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.kept.iter().map(|fault| {
            let help = fault.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
            let Fault { line, column, message, .. } = fault;
            format!("{}:{line}:{column}: {}: {message}{help}", self.name, fault.severity.name())
        })
    }
}

/// A line each.
impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.lines().collect();
        out.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Faults {}

fn order(fault: &Fault) -> (usize, FaultSeverity) {
    (fault.bytes.start, fault.severity)
}

/// A text of the file, short enough for a message.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() > LONGEST {
        return format!("`{}…`", text.chars().take(LONGEST).collect::<String>());
    }
    format!("`{text}`")
}

/// What a terminal would obey, and what would break the line, is written out.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if bailiff_snapshot::is_unprintable(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}
