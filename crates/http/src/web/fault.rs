//! One-line errors in a web config, with the file, the line, the key, and the fix.

use std::path::Path;

use bailiff_lifecycle::exit::FileError;
use serde_saphyr::{Location, Spanned};

/// An error at one place in the file.
#[derive(Debug)]
pub(super) struct ConfigError {
    /// Line, starting at 1; 0 for the whole file.
    line: u64,
    /// Key, including its parents.
    key: String,
    why: String,
}

/// Returns an error about the whole file.
pub(super) fn of_file(file: &Path, why: &str) -> FileError {
    FileError(visible(&format!("{}: {why}", file.display())))
}

/// Escapes line breaks and control characters, which a name can contain.
fn visible(text: &str) -> String {
    let shown = |letter: char| match letter {
        '"' | '\'' | '\\' => letter.to_string(),
        letter => letter.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

impl ConfigError {
    /// Returns the error with the name of its file.
    pub(super) fn in_file(&self, file: &Path) -> FileError {
        let line = if self.line == 0 { String::new() } else { format!("{}:", self.line) };
        let key = if self.key.is_empty() { String::new() } else { format!("{}: ", self.key) };
        FileError(visible(&format!("{}:{line} {key}{}", file.display(), self.why)))
    }

    pub(super) fn new(line: u64, key: &str, why: impl Into<String>) -> Self {
        Self { line, key: key.to_owned(), why: why.into() }
    }

    /// Creates an error about a value.
    pub(super) fn at<T>(value: &Spanned<T>, key: &str, why: impl Into<String>) -> Self {
        Self::new(value.referenced.line(), key, why)
    }
}

/// Converts the YAML parser's error, without the excerpt from the file, which may contain secrets.
impl From<serde_saphyr::Error> for ConfigError {
    fn from(error: serde_saphyr::Error) -> Self {
        let line = error.location().as_ref().map_or(0, Location::line);
        let text = error.without_snippet().to_string();
        let text = text.lines().next().unwrap_or_default();
        // The parser repeats the position.
        let text = text.rsplit_once(" at line ").map_or(text, |(text, _)| text);
        Self { line, key: String::new(), why: text.to_owned() }
    }
}
