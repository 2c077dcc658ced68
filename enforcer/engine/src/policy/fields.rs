//! Maps of known keys with plain values. Unknown keys, missing keys and values of a wrong type are reported
//! here, and parsing continues with the rest.

use std::ops::Range;
use std::time::Duration;

use super::Span;
use super::fault::{Fault, Faults, quoted};
use super::keys::{KeyTable, Need, SAMPLES, Shape};
use super::quantity::{self, QuantityError};
use super::tree::{Data, Entry, Node};

/// A map of known keys.
pub(super) struct Fields<'a> {
    /// Place of the map.
    pub(super) at: &'a Range<usize>,
    entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    /// Opens a value as a map with these keys.
    pub(super) fn open(node: &'a Node, table: &KeyTable, faults: &mut Faults) -> Option<Self> {
        let Data::Map(entries) = &node.data else {
            expected(node, &format!("{}: a map of {}", table.what, names(table)), faults);
            return None;
        };
        let known: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
        for entry in entries {
            match table.keys.iter().find(|key| key.name == entry.name) {
                None => faults.push(unknown(entry, table.what, &known)),
                Some(key) if entry.value.is_null() => faults.push(match key.shape {
                    Shape::Map(inner) if inner.keys.iter().all(|key| key.need == Need::May) => {
                        nothing_given(entry).help(format!("write `{}: {{}}`", key.name))
                    }
                    _ => nothing_given(entry),
                }),
                Some(_) => {}
            }
        }
        for key in table.keys.iter().filter(|key| key.need == Need::Must) {
            if !entries.iter().any(|entry| entry.name == key.name) {
                let fault = Fault::error(&node.at, format!("{} needs `{}`", table.what, key.name));
                faults.push(fault.help(key.explained()));
            }
        }
        Some(Self { at: &node.at, entries })
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, name: &str) -> Option<&'a Node> {
        self.entry(name).map(|entry| &entry.value).filter(|value| !value.is_null())
    }

    /// Returns a key with its value, also if the value is empty.
    pub(super) fn entry(&self, name: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns the keys that are present.
    pub(super) fn entries(&self) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter()
    }
}

fn names(table: &KeyTable) -> String {
    let names: Vec<String> = table.keys.iter().map(|key| format!("`{}`", key.name)).collect();
    if names.is_empty() { "no keys, `{}`".to_owned() } else { names.join(", ") }
}

/// Creates the error for an unknown key, with the closest known key.
pub(super) fn unknown(entry: &Entry, what: &str, known: &[&str]) -> Fault {
    let fault = Fault::error(&entry.at, format!("unknown key {} in {what}", quoted(&entry.name)));
    match nearest(&entry.name, known) {
        Some(near) => fault.help(format!("did you mean `{near}`?")),
        None if known.is_empty() => fault.help("it has no keys; write `{}`"),
        None => fault.help(format!("known keys: {}", known.join(", "))),
    }
}

/// Creates the error for a key without a value.
pub(super) fn nothing_given(entry: &Entry) -> Fault {
    Fault::error(&entry.at, format!("`{}` has no value", entry.name))
        .help("write a value after the colon, or remove the key")
}

/// Reports that another value is expected.
pub(super) fn expected(node: &Node, what: &str, faults: &mut Faults) {
    if !matches!(node.data, Data::Refused) {
        faults.push(Fault::error(&node.at, format!("expected {what}; found {}", node.found())));
    }
}

/// Returns the known word with the smallest edit distance, if it is small.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let limit = (word.chars().count() / 3).max(1);
    let word = word.to_lowercase();
    let distances = known.iter().map(|known| (strsim::osa_distance(&word, &known.to_lowercase()), *known));
    distances
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Returns the items of a list.
pub(super) fn list<'a>(node: &'a Node, of: &str, faults: &mut Faults) -> Option<&'a [Node]> {
    match &node.data {
        Data::List(items) if items.is_empty() => {
            faults.push(Fault::error(&node.at, format!("the list is empty; expected at least one of: {of}")));
            None
        }
        Data::List(items) => Some(items),
        _ => {
            expected(node, &format!("a list of {of}"), faults);
            None
        }
    }
}

/// Returns the items of a list, or a single item in place of a list.
pub(super) fn many<'a>(node: &'a Node, of: &str, faults: &mut Faults) -> Option<&'a [Node]> {
    match &node.data {
        Data::Scalar { .. } if !node.is_null() => Some(std::slice::from_ref(node)),
        _ => list(node, of, faults),
    }
}

/// Parses a non-empty text.
pub(super) fn text<'a>(node: &'a Node, what: &str, faults: &mut Faults) -> Option<&'a str> {
    let text = node.text().filter(|text| !text.trim().is_empty() && !node.is_null());
    if text.is_none() {
        expected(node, what, faults);
    }
    text
}

/// Parses `true` or `false`, without quotes.
pub(super) fn flag(node: &Node, faults: &mut Faults) -> Option<bool> {
    match &node.data {
        Data::Scalar { text, plain: true } if text == "true" => Some(true),
        Data::Scalar { text, plain: true } if text == "false" => Some(false),
        _ => {
            expected(node, "`true` or `false`", faults);
            None
        }
    }
}

/// Parses a non-negative integer.
pub(super) fn count(node: &Node, faults: &mut Faults) -> Option<u32> {
    let count = node.text().and_then(|text| text.parse().ok());
    if count.is_none() {
        expected(node, "a whole number without a unit, such as `3`", faults);
    }
    count
}

/// Parses one of several words.
pub(super) fn word<T>(
    node: &Node,
    words: impl Iterator<Item = (&'static str, T)>,
    faults: &mut Faults,
) -> Option<T> {
    let mut known = Vec::new();
    for (name, meaning) in words {
        if node.text() == Some(name) {
            return Some(meaning);
        }
        known.push(name);
    }
    let listed = known.join(", ");
    match node.text().and_then(|text| nearest(text, &known)) {
        Some(near) => faults.push(
            Fault::error(&node.at, format!("expected one of {listed}; found {}", node.found()))
                .help(format!("did you mean `{near}`?")),
        ),
        None => expected(node, &format!("one of {listed}"), faults),
    }
    None
}

/// Parses a text with a given parser, and reports its error.
pub(super) fn quantity<T>(
    node: &Node,
    what: &str,
    faults: &mut Faults,
    read: impl FnOnce(&str) -> Result<T, QuantityError>,
) -> Option<T> {
    const LONGEST: usize = 64;
    let text = text(node, what, faults)?;
    if text.len() > LONGEST {
        expected(node, what, faults);
        return None;
    }
    match read(text) {
        Ok(value) => Some(value),
        Err(wrong) => {
            faults.push(Fault::error(&node.at, wrong.message).help(wrong.help));
            None
        }
    }
}

/// Parses a duration such as `30m`.
pub(super) fn time(node: &Node, faults: &mut Faults) -> Option<Duration> {
    quantity(node, "a time, such as `30m`", faults, quantity::time)
}

/// Parses `30m` or `{samples: 60}`.
pub(super) fn span(node: &Node, faults: &mut Faults) -> Option<Span> {
    match &node.data {
        Data::Map(_) => {
            let samples = Fields::open(node, &SAMPLES, faults)?.get("samples")?;
            count(samples, faults).map(Span::Samples)
        }
        _ => quantity(node, "a time or samples, such as `30m` or `{samples: 60}`", faults, |text| {
            quantity::time(text).map(Span::Time).map_err(|wrong| match text.parse::<u32>() {
                Ok(samples) if samples > 0 => QuantityError {
                    help: format!("write `{samples}s`, `{samples}m` or `{{samples: {samples}}}`"),
                    ..wrong
                },
                _ => wrong,
            })
        }),
    }
}

/// Parses a duration above zero.
pub(super) fn positive(node: &Node, faults: &mut Faults) -> Option<Span> {
    let span = span(node, faults)?;
    if span.samples(Duration::from_nanos(1)) > 0 {
        return Some(span);
    }
    let fault = Fault::error(&node.at, "the value must be above 0");
    faults.push(fault.help("a single sample can be an outlier; a rule needs several consecutive samples"));
    None
}

/// Checks that a name can be used in metrics, logs and commands.
pub(super) fn name(what: &str, (name, at): (&str, &Range<usize>), faults: &mut Faults) -> bool {
    const LONGEST: usize = 64;
    let letters = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let good = name.len() <= LONGEST
        && name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(letters);
    if !good {
        let fault = Fault::error(at, format!("{} is not a valid name for {what}", quoted(name)));
        faults.push(fault.help(
            "a name consists of letters, digits, `_`, `.` and `-`, begins with a letter or digit, and has at most 64 characters",
        ));
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_the_one_that_was_meant() {
        let known = ["when", "select", "startup_grace", "for", "gpu_util", "vram"];
        for (word, wanted) in [
            ("whne", Some("when")),
            ("When", Some("when")),
            ("selekt", Some("select")),
            ("startupgrace", Some("startup_grace")),
            ("gpu_utilisation", None),
            ("gpuutil", Some("gpu_util")),
            ("ram", Some("vram")),
            ("xyzzy", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), wanted, "{word}");
        }
        assert_eq!(nearest(&"x".repeat(100_000), &known), None);
    }
}
