//! Messages on standard error and output on standard output.

use std::fmt::Display;
use std::io::{self, Write};

use bailiff_exposition::terminal::printable_json;
use serde::Serialize;

/// Prints a line `bailiff: …` on standard error. A write error (closed pipe, full disk) is ignored, so that
/// it does not end the monitoring of a command.
pub(crate) fn print_message(text: impl Display) {
    // One write, so that the lines of other processes do not interleave.
    write_stderr(&format!("bailiff: {}\n", printable(&text.to_string())));
}

/// Escapes characters that are not printable, except line feeds. Texts can come from other users and servers.
pub(crate) fn printable(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Escapes characters that are not printable.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if bailiff_exposition::is_unprintable(letter) {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// Joins the texts of items.
pub(crate) fn joined(items: impl IntoIterator<Item = impl Display>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

/// Serializes a report to a line of JSON without characters that are not printable.
pub(crate) fn json(report: &(impl Serialize + ?Sized)) -> io::Result<String> {
    Ok(printable_json(&serde_json::to_string(report)?) + "\n")
}

/// Writes the text unchanged to standard error; ignores write errors.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes the text to standard output; returns false if the reader has closed the pipe.
pub(crate) fn print_stdout(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_escaped() {
        let name = "Jürgen\x1b[2J\n\u{202e}";
        assert_eq!(escaped(name), "Jürgen\\u{1b}[2J\\n\\u{202e}");
        assert_eq!(printable(name), "Jürgen\\u{1b}[2J\n\\u{202e}", "a message can have several lines");
        let text = json(&[name, "\u{9b}2J\u{e0001}"]).unwrap();
        assert_eq!(text, "[\"Jürgen\\u001b[2J\\n\\u202e\",\"\\u009b2J\\udb40\\udc01\"]\n");
        assert_eq!(serde_json::from_str::<[String; 2]>(&text).unwrap()[0], name);
    }
}
