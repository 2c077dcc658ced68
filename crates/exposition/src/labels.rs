//! Label blocks: each is rendered once and used on many lines. Processes choose the values themselves, so the
//! values are escaped and bounded here.

use std::borrow::Cow;
use std::fmt::Write;

use crate::is_unprintable;

/// Maximum length of a label value, in bytes. Container ids have 64.
const MOST_BYTES: usize = 128;
/// Maximum length of a path, in bytes. The cgroup of a container in a pod has about 200.
const MOST_PATH_BYTES: usize = 512;
/// Maximum length of a sentence, in bytes.
const MOST_PROSE_BYTES: usize = 2048;
/// Replacement for a character that is unprintable or changes the direction of text.
const UNPRINTABLE: char = '\u{fffd}';

/// Rendered labels such as `{gpu="0",pid="41"`. The closing brace is missing, so that a line can add a label.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(String);

impl Labels {
    /// Returns a copy with capacity for this many more bytes.
    pub fn roomy(&self, bytes: usize) -> Self {
        let mut copy = String::with_capacity(self.0.len() + bytes);
        copy.push_str(&self.0);
        Self(copy)
    }

    /// Appends a `pid` label.
    pub fn with_pid(mut self, pid: u32) -> Self {
        self.0.push_str(if self.0.is_empty() { "{pid=\"" } else { ",pid=\"" });
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{pid}\"");
        self
    }

    /// Appends a label, unless its value is empty, because Prometheus treats empty and absent labels alike.
    pub fn with(self, name: &str, value: &str) -> Self {
        self.within(MOST_BYTES, name, value)
    }

    /// Likewise, with the higher limit for paths.
    pub fn with_path(self, name: &str, value: &str) -> Self {
        self.within(MOST_PATH_BYTES, name, value)
    }

    fn within(mut self, most: usize, name: &str, value: &str) -> Self {
        if value.is_empty() {
            return self;
        }
        self.0.push_str(if self.0.is_empty() { "{" } else { "," });
        self.0.push_str(name);
        self.0.push_str("=\"");
        if is_plain(value) {
            self.0.push_str(value);
        } else {
            escape(&cut(value, most), &mut self.0);
        }
        self.0.push('"');
        self
    }

    /// Appends a label even if its value is empty. Prometheus fills a missing label from the scrape target,
    /// whose `pod`, `namespace` and `container` in Kubernetes are those of the exporter. With `honor_labels`,
    /// an empty label prevents that.
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

    /// Appends a label if there is a value.
    pub fn maybe(self, name: &str, value: Option<&str>) -> Self {
        self.with(name, value.unwrap_or_default())
    }

    /// Returns the block without its closing brace; empty if there are no labels.
    pub fn open(&self) -> &str {
        &self.0
    }
}

/// Returns text that is safe to display: bounded, and without characters that hide or reorder other
/// characters.
/// Newlines are kept, because label values can escape them.
pub fn bounded(value: &str) -> Cow<'_, str> {
    if is_plain(value) { Cow::Borrowed(value) } else { Cow::Owned(cut(value, MOST_BYTES)) }
}

/// Like [`bounded`], but with the higher limit for sentences.
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

/// Returns whether the value is short printable ASCII that needs no escapes, as nearly all values are.
pub(crate) fn is_plain(value: &str) -> bool {
    let plain = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    // No early exit, so that the compiler can check many bytes per step.
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
    fn paths_may_be_longer() {
        let path = format!("/{}", "a".repeat(300));
        assert_eq!(Labels::default().with_path("cgroup", &path).open(), format!("{{cgroup=\"{path}\""));
        assert!(Labels::default().with("comm", &path).open().ends_with("aa…\""));
        let longer = Labels::default().with_path("cgroup", &"a".repeat(600));
        assert_eq!(longer.open().len(), "{cgroup=\"\"".len() + MOST_PATH_BYTES + '…'.len_utf8());
    }

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
