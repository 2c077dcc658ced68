//! Terminal output: colours if supported, and text from other programs without control characters.

#![expect(clippy::disallowed_methods, reason = "NO_COLOR and TERM say what the user wants")]

mod table;

use std::env;
use std::io::{self, IsTerminal};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub use table::{Cell, Column, Table, Tone};

use crate::{bounded_prose, is_unprintable};

/// Whether to write colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// Text without colours.
    Plain,
    /// Text with ANSI colours.
    Colour,
}

impl Colors {
    /// Returns `Colour` if standard output is a terminal with colours and `NO_COLOR` is not set.
    pub fn of_stdout() -> Self {
        let says_no = env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty());
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        if io::stdout().is_terminal() && !says_no && !dumb { Self::Colour } else { Self::Plain }
    }

    /// Formats a title (bold).
    pub fn title(self, text: &str) -> String {
        self.dress("1", text)
    }

    /// Formats text about a good state (green).
    pub fn good(self, text: &str) -> String {
        self.dress("32", text)
    }

    /// Formats text that needs attention (yellow).
    pub fn odd(self, text: &str) -> String {
        self.dress("33", text)
    }

    /// Formats text about a fault (red).
    pub fn bad(self, text: &str) -> String {
        self.dress("31", text)
    }

    fn dress(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Colour => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }
}

/// Returns text from another program as one line without control characters.
pub fn line(text: &str) -> String {
    bounded_prose(text).replace('\n', " ")
}

/// Escapes what is not printable in a JSON text, except line feeds. JSON requires that only of some control characters, but
/// terminals act on others too, and any user can write them into names.
pub fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter == '\n' || !is_unprintable(letter) {
            text.push(letter);
        } else {
            // Outside strings, JSON has no such characters.
            text.extend(letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

/// Returns the number of columns that a text takes on a terminal. A CJK character takes two.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Shortens a text to at most this many columns, with `…` at the end.
pub fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let mut left = most.saturating_sub(1);
    let fits = |letter: &char| {
        let width = letter.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Breaks text into lines of at most `width` characters at spaces. Longer words are broken anywhere.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(width.max(1)) {
            let last = lines.last().map_or(0, |last| last.chars().count());
            if last > 0 && last + 1 + piece.len() > width {
                lines.push(String::new());
            }
            if let Some(last) = lines.last_mut() {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.extend(piece);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(line("a\u{1b}[2J\nb\r\u{202e}c"), "a\u{fffd}[2J b\u{fffd}\u{fffd}c");
        assert_eq!((cut("abcdef", 4), cut("abcd", 4)), ("abc…".to_owned(), "abcd".to_owned()));
        assert_eq!((width("名前"), cut("名前前", 4)), (4, "名…".to_owned()));
    }

    #[test]
    fn plain_text_is_plain() {
        assert_eq!(Colors::Plain.bad("x"), "x");
        assert_eq!(Colors::Colour.bad("x"), "\u{1b}[31mx\u{1b}[0m");
    }

    #[test]
    fn lines_are_broken_at_spaces_where_there_are_any() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
