//! One-line errors in a web config, with the file, the line, the key, and the fix.

use std::path::Path;

use bailiff_lifecycle::exit::FileError;
use serde_saphyr::{Error, Location, Spanned};

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

/// Converts the YAML parser's error, without what it quotes from the file, which may contain secrets.
impl From<Error> for ConfigError {
    fn from(error: Error) -> Self {
        let line = error.location().as_ref().map_or(0, Location::line);
        let why = match error.without_snippet() {
            Error::SerdeUnknownField { field, expected, .. } => {
                let field = if is_key(field) { format!(" `{field}`") } else { String::new() };
                format!("unknown field{field}, expected one of {}", expected.join(", "))
            }
            Error::DuplicateMappingKey { key, .. } => {
                let key = key.as_deref().filter(|key| is_key(key));
                format!("duplicate mapping key{}", key.map(|key| format!(": {key}")).unwrap_or_default())
            }
            Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
                format!("expected {expected}")
            }
            Error::UnsupportedTag { .. } => "unsupported tag".to_owned(),
            error => {
                let text = error.to_string();
                let text = text.lines().next().unwrap_or_default();
                // The parser repeats the position.
                text.rsplit_once(" at line ").map_or(text, |(text, _)| text).to_owned()
            }
        };
        Self { line, key: String::new(), why }
    }
}

/// Returns whether a text can be a misspelt key: no longer than the longest one, and of the same characters. A value
/// becomes a key if the file is not indented correctly.
fn is_key(text: &str) -> bool {
    text.len() <= "prefer_server_cipher_suites".len()
        && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}
