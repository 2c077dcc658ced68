//! Maps of known keys with plain values. Unknown keys, missing keys and values of a wrong type are reported
//! here, and parsing continues with the rest.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use super::fault::{Fault, Faults, quoted};
use super::grammar::Table;
use super::quantity::{self, QuantityError};
use super::tree::{Data, Entry, Node};

/// A map of known keys.
#[derive(Debug)]
pub struct Fields<'a> {
    /// Place of the map.
    pub at: &'a Range<usize>,
    /// Keys that are present.
    pub entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    /// Opens a value as a map with these keys.
    pub fn open(node: &'a Node, table: Table<'_>, faults: &mut Faults) -> Option<Self> {
        let Data::Map(entries) = &node.data else {
            expected(node, &format!("{}: a map of {}", table.what(), names(table)), faults);
            return None;
        };
        let known = table.names();
        for entry in entries {
            if !known.contains(&entry.name.as_str()) {
                faults.push(unknown(entry, table.what(), &known));
            } else if entry.value.is_null() {
                let fault = nothing_given(entry);
                let empty = table.takes_empty_map(&entry.name);
                faults.push(if empty { fault.help(format!("write `{}: {{}}`", entry.name)) } else { fault });
            }
        }
        for name in table.required().filter(|name| node.get(name).is_none()) {
            faults.error(&node.at, format!("{} needs `{name}`", table.what()), table.explained(name));
        }
        Some(Self { at: &node.at, entries })
    }

    /// Returns the value of a key.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        self.entry(name).map(|entry| &entry.value).filter(|value| !value.is_null())
    }

    /// Returns a key with its value, even if the value is empty.
    pub fn entry(&self, name: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Opens the map of a key; the result has no keys if the map is absent or invalid.
    pub fn map(&self, name: &str, table: Table<'_>, faults: &mut Faults) -> Self {
        self.given(name, |node, faults| Self::open(node, table, faults), faults)
            .unwrap_or(Self { at: self.at, entries: &[] })
    }

    /// Parses the value of a key; `None` if it is absent or invalid.
    pub fn given<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'a Node, &mut Faults) -> Option<T>,
        faults: &mut Faults,
    ) -> Option<T> {
        self.get(name).and_then(|node| read(node, faults))
    }

    /// Parses the value of a key that has a default; `None` if it is invalid.
    pub fn or<T>(
        &self,
        (name, default): (&str, T),
        read: impl FnOnce(&'a Node, &mut Faults) -> Option<T>,
        faults: &mut Faults,
    ) -> Option<T> {
        self.get(name).map_or(Some(default), |node| read(node, faults))
    }
}

fn names(table: Table<'_>) -> String {
    let names: Vec<String> = table.names().iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "no keys, `{}`".to_owned() } else { names.join(", ") }
}

/// Creates the error for an unknown key, with the closest known key.
pub fn unknown(entry: &Entry, what: &str, known: &[&str]) -> Fault {
    let fault = Fault::error(&entry.at, format!("unknown key {} in {what}", quoted(&entry.name)));
    match nearest(&entry.name, known) {
        Some(near) => fault.help(format!("did you mean `{near}`?")),
        None if known.is_empty() => fault.help("no keys are allowed here; write `{}`"),
        None => fault.help(format!("known keys: {}", known.join(", "))),
    }
}

/// Creates the error for a key without a value.
pub fn nothing_given(entry: &Entry) -> Fault {
    Fault::error(&entry.at, format!("`{}` has no value", entry.name))
        .help("write a value after the colon, or remove the key")
}

/// Reports that another value is expected.
pub fn expected(node: &Node, what: &str, faults: &mut Faults) {
    if !matches!(node.data, Data::Refused) {
        faults.push(Fault::error(&node.at, format!("expected {what}; found {}", node.found())));
    }
}

/// Returns the known word with the smallest edit distance, if it is small.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
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
pub fn list<'a>(node: &'a Node, of: &str, faults: &mut Faults) -> Option<&'a [Node]> {
    match &node.data {
        Data::List(items) if items.is_empty() => {
            faults.push(Fault::error(&node.at, format!("the list is empty; it must contain {of}")));
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
pub fn many<'a>(node: &'a Node, of: &str, faults: &mut Faults) -> Option<&'a [Node]> {
    match &node.data {
        Data::Scalar { .. } if !node.is_null() => Some(std::slice::from_ref(node)),
        _ => list(node, of, faults),
    }
}

/// Parses a non-empty text.
pub fn text<'a>(node: &'a Node, what: &str, faults: &mut Faults) -> Option<&'a str> {
    let text = node.text().filter(|text| !text.trim().is_empty() && !node.is_null());
    if text.is_none() {
        expected(node, what, faults);
    }
    text
}

/// Parses `true` or `false`, without quotes.
pub fn flag(node: &Node, faults: &mut Faults) -> Option<bool> {
    match &node.data {
        Data::Scalar { text, plain: true } if text == "true" => Some(true),
        Data::Scalar { text, plain: true } if text == "false" => Some(false),
        _ => {
            expected(node, "`true` or `false`", faults);
            None
        }
    }
}

/// Parses an integer.
pub fn count<T: FromStr>(node: &Node, faults: &mut Faults) -> Option<T> {
    let count = node.text().and_then(|text| text.parse().ok());
    if count.is_none() {
        expected(node, "a whole number without a unit, such as `3`", faults);
    }
    count
}

/// Parses one of several words.
pub fn word<T: Copy>(
    node: &Node,
    (all, name): (&[T], impl Fn(T) -> &'static str),
    faults: &mut Faults,
) -> Option<T> {
    let known: Vec<&str> = all.iter().map(|word| name(*word)).collect();
    if let Some(place) = known.iter().position(|word| node.text() == Some(word)) {
        return Some(all[place]);
    }
    let listed = known.join(", ");
    match node.text().and_then(|text| nearest(text, &known)) {
        Some(near) => {
            let message = format!("expected one of {listed}; found {}", node.found());
            faults.error(&node.at, message, format!("did you mean `{near}`?"));
        }
        None => expected(node, &format!("one of {listed}"), faults),
    }
    None
}

/// Parses a text with a given parser, and reports its error.
pub fn quantity<T>(
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
            faults.error(&node.at, wrong.message, wrong.help);
            None
        }
    }
}

/// Parses a duration such as `30m`.
pub fn time(node: &Node, faults: &mut Faults) -> Option<Duration> {
    quantity(node, "a time, such as `30m`", faults, quantity::time)
}

/// Parses a duration, and reports one of zero.
pub fn some_time(node: &Node, (message, help): (&str, &str), faults: &mut Faults) -> Option<Duration> {
    let time = time(node, faults)?;
    if time.is_zero() {
        faults.error(&node.at, message, help);
    }
    Some(time)
}

/// Checks that a name can be used in metrics, logs and commands.
pub fn name(what: &str, (name, at): (&str, &Range<usize>), faults: &mut Faults) -> bool {
    const LONGEST: usize = 64;
    let letters = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let good = name.len() <= LONGEST
        && name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(letters);
    if !good {
        let help = "a name consists of letters, digits, `_`, `.` and `-`, begins with a letter or digit, and has at most 64 characters";
        faults.error(at, format!("{} is not a valid name for {what}", quoted(name)), help);
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
