//! Text of at most 80 columns, without control characters from foreign text.

use std::time::{Duration, UNIX_EPOCH};

use bailiff_exposition::terminal::width;

/// Width of every terminal.
const COLUMNS: usize = 80;
/// Maximum length of a foreign text.
const LONGEST: usize = 64;

/// Lines of output.
#[derive(Debug, Default)]
pub(super) struct Layout(String);

impl Layout {
    /// Adds a paragraph; its further lines are indented by two more columns.
    pub(super) fn say(&mut self, indent: usize, text: &str) {
        let mut line = " ".repeat(indent);
        let mut empty = true;
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            if !empty && width(&line) + 1 + width(word) > COLUMNS {
                self.keep(&line);
                line = " ".repeat(indent + 2);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.keep(&line);
    }

    /// Adds a line without wrapping: a row of a table.
    pub(super) fn row(&mut self, text: &str) {
        self.keep(text);
    }

    /// Adds an empty line.
    pub(super) fn gap(&mut self) {
        self.keep("");
    }

    fn keep(&mut self, line: &str) {
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    /// Returns all lines.
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// Makes a foreign text safe to print: bounded, on one line, without control or bidirectional characters.
pub(super) fn foreign(text: &str) -> String {
    let mut shown = String::new();
    for (place, letter) in text.chars().enumerate() {
        if place == LONGEST {
            shown.push('…');
            break;
        }
        shown.push(match letter {
            letter if bailiff_exposition::is_unprintable(letter) => '\u{fffd}',
            letter if letter.is_whitespace() => '\u{a0}',
            letter => letter,
        });
    }
    shown
}

/// The same for text of several words.
pub(super) fn safe(text: &str) -> String {
    text.split_whitespace().map(foreign).collect::<Vec<_>>().join(" ")
}

/// Formats a time: `2026-11-20T08:00:05Z`.
pub(super) fn moment(since_epoch: Duration) -> String {
    // The formatter panics for later times.
    const YEAR_9999: u64 = 253_402_300_799;
    let whole = Duration::from_secs(since_epoch.as_secs().min(YEAR_9999));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + whole).to_string()
}

/// Formats a duration such as `1h 30m`, in whole seconds.
pub(super) fn length(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

/// Formats a share such as `3.2%`.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
pub(super) fn share(some: u64, all: u64) -> String {
    if all == 0 {
        return "-".to_owned();
    }
    match some as f64 * 100.0 / all as f64 {
        share if some > 0 && share < 0.1 => "<0.1%".to_owned(),
        share => format!("{share:.1}%").replace(".0%", "%"),
    }
}

/// Formats a number with its noun: `3 would-be kills`.
pub(super) fn count(number: u64, (one, many): (&str, &str)) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_keep_to_the_columns() {
        let mut layout = Layout::default();
        layout.say(2, &"word ".repeat(40));
        assert!(layout.text().lines().all(|line| line.chars().count() <= COLUMNS), "{}", layout.text());
        assert!(layout.text().lines().nth(1).is_some_and(|line| line.starts_with("    word")));
    }

    #[test]
    fn foreign_texts_are_harmless() {
        let cases = [
            ("python3", "python3"),
            ("\u{1b}[2J\rrm", "\u{fffd}[2J\u{fffd}rm"),
            ("a\u{202e}b", "a\u{fffd}b"),
            ("two words\n", "two\u{a0}words\u{fffd}"),
        ];
        for (text, expected) in cases {
            assert_eq!(foreign(text), expected, "{text:?}");
        }
        assert_eq!(foreign(&"é".repeat(100)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn figures() {
        assert_eq!(share(1, 8), "12.5%");
        assert_eq!(share(1, 100_000), "<0.1%");
        assert_eq!(share(0, 0), "-");
        assert_eq!(moment(Duration::from_hours(490_896)), "2026-01-01T00:00:00Z");
        assert_eq!(moment(Duration::from_secs(u64::MAX)), "9999-12-31T23:59:59Z");
    }
}
