//! Label blocks, rendered once and put on many lines. Values come from processes that call themselves
//! whatever they like, so they are escaped and bounded here.

use std::borrow::Cow;
use std::fmt::Write;

use crate::is_unprintable;

/// A label value has at most this many bytes; container ids have 64.
const MOST_BYTES: usize = 128;
/// A sentence has at most this many.
const MOST_PROSE_BYTES: usize = 2048;
/// Replacement for a character that is unprintable or changes the direction of text.
const UNPRINTABLE: char = '\u{fffd}';

/// `{gpu="0",pid="41"` without its closing brace, so that a last label can be added per line.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(String);

impl Labels {
    /// A copy with room for this many further bytes.
    #[must_use]
    pub fn roomy(&self, bytes: usize) -> Self {
        let mut copy = String::with_capacity(self.0.len() + bytes);
        copy.push_str(&self.0);
        Self(copy)
    }

    /// These labels and one more with a pid as its value.
    #[must_use]
    pub fn with_pid(mut self, pid: u32) -> Self {
        self.0.push_str(if self.0.is_empty() { "{pid=\"" } else { ",pid=\"" });
        // Into memory, so it does not fail.
        let _ = write!(self.0, "{pid}\"");
        self
    }

    /// These labels and one more; one without value is left out, as Prometheus takes the two for the same.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if value.is_empty() {
            return self;
        }
        self.0.push_str(if self.0.is_empty() { "{" } else { "," });
        self.0.push_str(name);
        self.0.push_str("=\"");
        if is_plain(value) {
            self.0.push_str(value);
        } else {
            escape(&bounded(value), &mut self.0);
        }
        self.0.push('"');
        self
    }

    /// As [`Self::with`], but written also where it is empty. Prometheus fills in a label that a series lacks from
    /// the target, which in Kubernetes has `pod`, `namespace` and `container` of its own: the exporter's. With
    /// `honor_labels` an empty label keeps that from happening.
    #[must_use]
    pub fn even_empty(mut self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) if !value.is_empty() => self.with(name, value),
            _ => {
                self.0.push_str(if self.0.is_empty() { "{" } else { "," });
                self.0.push_str(name);
                self.0.push_str("=\"\"");
                self
            }
        }
    }

    /// As [`Self::with`], where there is a value.
    #[must_use]
    pub fn maybe(self, name: &str, value: Option<&str>) -> Self {
        self.with(name, value.unwrap_or_default())
    }

    /// The block without its closing brace; empty if there are no labels.
    #[must_use]
    pub fn open(&self) -> &str {
        &self.0
    }
}

/// Text that is safe to show to a person: bounded, and no character that hides or moves others. The newline is kept: it has an
/// escape.
#[must_use]
pub fn bounded(value: &str) -> Cow<'_, str> {
    if is_plain(value) { Cow::Borrowed(value) } else { Cow::Owned(cut(value, MOST_BYTES)) }
}

/// As [`bounded`], for sentences: they may be longer than names are.
#[must_use]
pub fn bounded_prose(value: &str) -> String {
    cut(value, MOST_PROSE_BYTES)
}

fn cut(value: &str, most: usize) -> String {
    let mut short = String::with_capacity(value.len().min(most) + 4);
    for character in value.chars() {
        if short.len() + character.len_utf8() > most {
            short.push('…');
            break;
        }
        short.push(if is_unprintable(character) && character != '\n' { UNPRINTABLE } else { character });
    }
    short
}

/// Short, printable, and without anything that has an escape: nearly every value is.
fn is_plain(value: &str) -> bool {
    let plain = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    // Without an early exit, so that the compiler checks many bytes per step.
    value.len() <= MOST_BYTES && value.bytes().fold(true, |all, byte| all & plain(byte))
}

fn escape(value: &str, into: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => into.push_str("\\\\"),
            '"' => into.push_str("\\\""),
            '\n' => into.push_str("\\n"),
            other => into.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_bounded() {
        let long = "é".repeat(100);
        let cases = [
            ("python3", "{a=\"python3\""),
            ("", ""),
            ("a\"} 1\nb\\", "{a=\"a\\\"} 1\\nb\\\\\""),
            ("al\u{200b}ice\u{61c}", "{a=\"al\u{fffd}ice\u{fffd}\""),
            ("\u{1b}[2J\r\u{202e}x", "{a=\"\u{fffd}[2J\u{fffd}\u{fffd}x\""),
            (&long, &format!("{{a=\"{}…\"", "é".repeat(64))),
        ];
        for (value, expected) in cases {
            assert_eq!(Labels::default().with("a", value).open(), expected, "{value:?}");
        }
    }

    #[test]
    fn labels_follow_each_other() {
        let labels = Labels::default().with("gpu", "0").maybe("gpu_uuid", None).maybe("pid", Some("41"));
        assert_eq!(labels.open(), "{gpu=\"0\",pid=\"41\"");
    }
}
