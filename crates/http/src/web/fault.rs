//! What is wrong with a web config, in one line: the file, the line, the key, and what to write instead.

use std::path::Path;

use bailiff_lifecycle::exit::FileError;
use serde_saphyr::{Location, Spanned};

/// What is wrong at one place of a file.
#[derive(Debug)]
pub(super) struct ConfigError {
    /// From 1; 0 if it is no line's.
    line: u64,
    /// With the keys that it is below.
    key: String,
    why: String,
}

/// An error of the whole file.
pub(super) fn of_file(file: &Path, why: &str) -> FileError {
    FileError(visible(&format!("{}: {why}", file.display())))
}

/// A name in the file may have a newline, or what a terminal would obey.
fn visible(text: &str) -> String {
    let shown = |letter: char| match letter {
        '"' | '\'' | '\\' => letter.to_string(),
        letter => letter.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

impl ConfigError {
    /// The error with the name of its file.
    pub(super) fn in_file(&self, file: &Path) -> FileError {
        let line = if self.line == 0 { String::new() } else { format!("{}:", self.line) };
        let key = if self.key.is_empty() { String::new() } else { format!("{}: ", self.key) };
        FileError(visible(&format!("{}:{line} {key}{}", file.display(), self.why)))
    }

    pub(super) fn new(line: u64, key: &str, why: impl Into<String>) -> Self {
        Self { line, key: key.to_owned(), why: why.into() }
    }

    /// At a value.
    pub(super) fn at<T>(value: &Spanned<T>, key: &str, why: impl Into<String>) -> Self {
        Self::new(value.referenced.line(), key, why)
    }
}

/// The YAML parser's error, without the lines of the file that it would show: they contain secrets.
impl From<serde_saphyr::Error> for ConfigError {
    fn from(error: serde_saphyr::Error) -> Self {
        let line = error.location().as_ref().map_or(0, Location::line);
        let text = error.without_snippet().to_string();
        let text = text.lines().next().unwrap_or_default();
        // It names the place once more.
        let text = text.rsplit_once(" at line ").map_or(text, |(text, _)| text);
        Self { line, key: String::new(), why: text.to_owned() }
    }
}
