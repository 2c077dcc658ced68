//! Errors and warnings of a file: each with its place and its fix, and how they are printed.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Element, Level, Origin, Renderer, Snippet};
use serde::Serialize;

/// Errors beyond this number are counted and not kept, because rendering them takes time.
const KEPT: usize = 100;

/// Longer lines are shortened in excerpts.
const LONGEST_EXCERPT: usize = 1000;

bailiff_snapshot::label_values! {
/// Severity of a fault.
pub enum FaultSeverity {
    /// The file is refused.
    Error = "error",
    /// The file is accepted, but may not mean what its author intended.
    Warning = "warning",
}
}

/// An error or warning of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Severity.
    #[serde(rename = "severity")]
    pub severity: FaultSeverity,
    /// Message in lower case without a full stop.
    pub message: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Place in bytes.
    pub bytes: Range<usize>,
    /// The fix.
    pub help: Option<String>,
}

impl Fault {
    /// Creates an error; its line is filled in when it is added to the others.
    pub fn error(at: &Range<usize>, message: impl Into<String>) -> Self {
        let message = visible(&message.into());
        Self { severity: FaultSeverity::Error, message, line: 0, column: 0, bytes: at.clone(), help: None }
    }

    /// Creates a warning.
    pub fn warning(at: &Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: FaultSeverity::Warning, ..Self::error(at, message) }
    }

    /// Adds the fix.
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(visible(&help.into())), ..self }
    }
}

/// Whether the output has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultStyle {
    /// Without colours, for files and pipes.
    Plain,
    /// With colours, for terminals.
    Coloured,
}

/// All faults of a file, sorted by place.
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
    /// Creates an empty list for a file with this name and text.
    pub fn none(name: &str, text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect();
        let (name, text) = (visible(name), text.to_owned());
        Self { name, text, starts, kept: Vec::new(), errors: 0, warnings: 0 }
    }

    /// Creates a list of one fault.
    pub(super) fn one(name: &str, text: &str, fault: Fault) -> Self {
        let mut faults = Self::none(name, text);
        faults.push(fault);
        faults
    }

    /// Adds a fault.
    pub fn push(&mut self, mut fault: Fault) {
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

    /// Adds an error with its fix.
    pub fn error(&mut self, at: &Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.push(Fault::error(at, message).help(help));
    }

    /// Adds a warning with its fix.
    pub fn warn(&mut self, at: &Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.push(Fault::warning(at, message).help(help));
    }

    /// Returns the line of a byte, from 1.
    pub fn line_of(&self, byte: usize) -> usize {
        self.starts.partition_point(|start| *start <= byte)
    }

    fn boundary(&self, byte: usize) -> usize {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        byte
    }

    /// Number of errors.
    pub const fn errors(&self) -> usize {
        self.errors
    }

    /// Number of warnings.
    pub const fn warnings(&self) -> usize {
        self.warnings
    }

    /// Returns whether further faults would not be kept.
    pub(super) const fn full(&self) -> bool {
        self.errors >= KEPT
    }

    /// Returns whether there are no faults.
    pub const fn is_empty(&self) -> bool {
        self.errors + self.warnings == 0
    }

    /// Returns the kept faults.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.kept.iter()
    }

    /// Renders the faults like a compiler: message, place, excerpt and fix; then their number.
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

    /// Only the first line is passed to the renderer, which is slow in long texts.
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

    /// Returns a summary such as `rules.yaml: 3 errors, 1 warning`, with the number of those not shown.
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

    /// Returns one line per fault, for logs and HTTP: `rules.yaml:4:31: error: message; fix`.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.kept.iter().map(|fault| {
            let help = fault.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
            let Fault { line, column, message, .. } = fault;
            format!("{}:{line}:{column}: {}: {message}{help}", self.name, fault.severity.name())
        })
    }
}

/// One line per fault.
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

/// Quotes a text of the file, shortened for a message.
pub fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() > LONGEST {
        return format!("`{}…`", text.chars().take(LONGEST).collect::<String>());
    }
    format!("`{text}`")
}

/// Escapes control characters and line breaks.
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
