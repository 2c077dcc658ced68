//! Parses YAML into a tree of values with places. Refuses anchors, tags, merge keys, duplicate keys, a second
//! document, and files that are too large or too deeply nested.

use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, options};

use super::fault::{Fault, Faults, quoted};

/// A file of rules is a few kilobytes.
const LARGEST_BYTES: usize = 1 << 20;

/// Maximum nesting of lists and maps.
pub const DEEPEST: usize = 32;

/// Maximum number of values in a file, to limit memory.
const MOST_VALUES: usize = 50_000;

/// A value with its place.
#[derive(Debug)]
pub struct Node {
    /// Place in bytes.
    pub at: Range<usize>,
    /// The value.
    pub data: Data,
}

/// A value.
#[derive(Debug)]
pub enum Data {
    /// A text.
    Scalar {
        /// The text without quotes.
        text: String,
        /// Whether it was not quoted, and may be a number, a flag or null.
        plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the file.
    Map(Vec<Entry>),
    /// A refused value, whose error was reported.
    Refused,
}

/// A key of a map and its value.
#[derive(Debug)]
pub struct Entry {
    /// Name of the key.
    pub name: String,
    /// Place of the key.
    pub at: Range<usize>,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// Returns whether the value is empty.
    pub fn is_null(&self) -> bool {
        matches!(&self.data, Data::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Returns its text.
    pub fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns the keys of a map; empty if the value is not a map.
    pub fn entries(&self) -> &[Entry] {
        match &self.data {
            Data::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the value of a key of a map.
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.name == name).map(|entry| &entry.value)
    }

    /// Returns the items of a list; empty if the value is not a list.
    pub fn items(&self) -> &[Self] {
        match &self.data {
            Data::List(items) => items,
            _ => &[],
        }
    }

    /// Describes the value for "expected …, found …".
    pub fn found(&self) -> String {
        match &self.data {
            _ if self.is_null() => "nothing".to_owned(),
            Data::Scalar { text, plain: false } => quoted(&format!("\"{text}\"")),
            Data::Scalar { text, .. } => quoted(text),
            Data::List(_) => "a list".to_owned(),
            Data::Map(_) => "a map".to_owned(),
            Data::Refused => "an invalid value".to_owned(),
        }
    }
}

/// Parses a file; `empty` is the hint for an empty file.
///
/// # Errors
/// If the file is too large or empty, is not UTF-8 text, or is not YAML from which values can be read.
pub fn read(bytes: &[u8], name: &str, empty: &str) -> Result<(Node, Faults), Faults> {
    if bytes.len() > LARGEST_BYTES {
        let fault =
            Fault::error(&(0..0), format!("the file has {} bytes; the maximum is 1 MiB", bytes.len()));
        return Err(Faults::one(name, "", fault.help("is it the right file?")));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let fault = Fault::error(&(at..at + 1), "invalid UTF-8");
        Faults::one(name, &String::from_utf8_lossy(bytes), fault.help("save the file as UTF-8"))
    })?;
    let mut faults = Faults::none(name, text);
    match parse(text, &mut faults).filter(|root| !root.is_null()) {
        Some(root) => return Ok((root, faults)),
        None if faults.is_empty() => faults.error(&(0..0), "the file is empty", empty),
        None => {}
    }
    Err(faults)
}

/// Returns the value of a document, if it has one; `None` after a syntax error, which is reported.
pub(super) fn parse(text: &str, faults: &mut Faults) -> Option<Node> {
    let options = options! {
        emit_anchor_events: true,
        emit_unresolved_aliases: true,
        flow_nesting_limit: DEEPEST,
        block_nesting_limit: DEEPEST,
    };
    let mut tree = Tree { open: Vec::new(), root: None, values: 0, documents: 0, faults };
    for event in Parser::new_from_str_with_options(text, options) {
        match event {
            Ok((event, span)) => tree.take(event, &span)?,
            Err(error) => {
                tree.faults.push(syntax(&error, text));
                return None;
            }
        }
    }
    tree.root
}

/// A list or map whose end was not read yet.
enum Open {
    List { start: usize, items: Vec<Node> },
    Map { start: usize, entries: Vec<Entry>, first: HashMap<String, usize>, key: Key },
}

/// What a map expects next.
enum Key {
    Awaited,
    Given(String, Range<usize>),
    /// The key is invalid, and its value is skipped.
    QuantityError,
}

struct Tree<'a> {
    open: Vec<Open>,
    root: Option<Node>,
    values: usize,
    documents: usize,
    faults: &'a mut Faults,
}

impl Tree<'_> {
    /// Handles an event; `None` if parsing cannot continue.
    fn take(&mut self, event: Event<'_>, span: &Span) -> Option<()> {
        let at = span.byte_range().unwrap_or(0..0);
        if event.tag().is_some() {
            let at = span.tag_span().and_then(|tag| tag.byte_range()).unwrap_or_else(|| at.clone());
            self.refuse(&at, "YAML tags are not supported", "write only the value");
        }
        match event {
            Event::DocumentStart(..) => return self.begin(&at),
            Event::Anchor(..) => self.refuse_anchor(&at),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.refuse_anchor(&at);
                self.place(Node { at: at.clone(), data: Data::Refused });
            }
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                self.place(Node { at: at.clone(), data: Data::Scalar { text: text.into_owned(), plain } });
            }
            Event::SequenceStart(..) => self.open.push(Open::List { start: at.start, items: Vec::new() }),
            Event::MappingStart(..) => {
                let (entries, first) = (Vec::new(), HashMap::new());
                self.open.push(Open::Map { start: at.start, entries, first, key: Key::Awaited });
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(at.end),
            _ => {}
        }
        self.bounded(&at)
    }

    fn begin(&mut self, at: &Range<usize>) -> Option<()> {
        self.documents += 1;
        if self.documents == 1 {
            return Some(());
        }
        self.refuse(at, "only one document is supported", "a file holds one document; remove the `---`");
        None
    }

    fn bounded(&mut self, at: &Range<usize>) -> Option<()> {
        self.values += 1;
        if self.open.len() > DEEPEST {
            self.faults.push(too_deep(at.start));
            return None;
        }
        if self.faults.full() {
            return None;
        }
        if self.values > MOST_VALUES {
            self.faults.push(Fault::error(at, format!("the file contains more than {MOST_VALUES} values")));
            return None;
        }
        Some(())
    }

    fn refuse_anchor(&mut self, at: &Range<usize>) {
        let help = "write it out; rules can `use` a condition defined under `conditions`";
        self.refuse(at, "YAML anchors and aliases are not supported", help);
    }

    fn refuse(&mut self, at: &Range<usize>, message: &str, help: &str) {
        self.faults.push(Fault::error(at, message).help(help));
    }

    /// Adds a complete value to the list or map that is open.
    fn place(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match std::mem::replace(key, Key::Awaited) {
                Key::Given(name, at) => entries.push(Entry { name, at, value: node }),
                Key::QuantityError => {}
                Key::Awaited => self.key(node),
            },
        }
    }

    fn key(&mut self, node: Node) {
        let Some(Open::Map { first, key, .. }) = self.open.last_mut() else { return };
        *key = Key::QuantityError;
        let fault = match node.data {
            Data::Refused => return,
            Data::Scalar { text, plain: true } if text == "<<" => {
                Fault::error(&node.at, "YAML merge keys are not supported")
                    .help("write the keys out; rules can `use` a condition defined under `conditions`")
            }
            Data::Scalar { text, .. } if first.contains_key(&text) => {
                let line = self.faults.line_of(first.get(&text).copied().unwrap_or_default());
                Fault::error(&node.at, format!("{} is given twice; first in line {line}", quoted(&text)))
                    .help("remove one of them")
            }
            Data::Scalar { text, .. } => {
                first.insert(text.clone(), node.at.start);
                *key = Key::Given(text, node.at);
                return;
            }
            Data::List(_) | Data::Map(_) => {
                Fault::error(&node.at, "a key must be a word").help("check for an extra bracket or brace")
            }
        };
        self.faults.push(fault);
    }

    fn close(&mut self, end: usize) {
        let node = match self.open.pop() {
            Some(Open::List { start, items }) => {
                let end = items.last().map_or(end, |last| last.at.end.max(start)).max(start);
                Node { at: start..end, data: Data::List(items) }
            }
            Some(Open::Map { start, entries, .. }) => {
                Node { at: start..end.max(start), data: Data::Map(entries) }
            }
            None => return,
        };
        self.place(node);
    }
}

fn too_deep(at: usize) -> Fault {
    Fault::error(&(at..at + 1), format!("lists and maps are nested more than {DEEPEST} levels deep here"))
        .help("move parts of the rule to named conditions under `conditions`")
}

/// Returns the error for a syntax error, with the parser's words if they help.
fn syntax(error: &ScanError, text: &str) -> Fault {
    const OPEN: &str =
        "check for an unclosed bracket above, wrong indentation, or unquoted text that contains `: `";
    let at = error.marker().byte_offset().unwrap_or(text.len()).min(text.len());
    let local_host = at..at + 1;
    let (message, help) = match error.kind() {
        ErrorKind::RecursionLimitExceeded => return too_deep(at),
        ErrorKind::MappingValueNotAllowed | ErrorKind::InvalidColonPlacement => {
            ("unexpected `:`".to_owned(), OPEN)
        }
        ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation | ErrorKind::TabNotAllowed => {
            ("tabs are not allowed in indentation".to_owned(), "use spaces")
        }
        ErrorKind::UnclosedFlowCollection { open } => {
            (format!("`{open}` is never closed"), "close it, or write one value per line")
        }
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => (
            "a quote that was opened above is never closed".to_owned(),
            "close it on the line where it was opened",
        ),
        ErrorKind::UnexpectedCharacter { character } => {
            (format!("text cannot begin with `{character}`"), "put it in quotes")
        }
        ErrorKind::ExpectedFlowMappingSeparator | ErrorKind::ExpectedFlowSequenceSeparator => {
            ("a comma or a closing bracket is missing before this".to_owned(), OPEN)
        }
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => {
            (format!("this `{open}` is closed by `{close}`"), "close the innermost bracket first")
        }
        ErrorKind::MisplacedFlowCollectionEnd => ("this bracket was never opened".to_owned(), "remove it"),
        ErrorKind::ExpectedBlockSequenceEntry => {
            ("expected a list item, which begins with `-`".to_owned(), "check the indentation of this line")
        }
        _ => (error.kind().to_string(), "this is not valid YAML; check the previous line"),
    };
    Fault::error(&local_host, message).help(help)
}
