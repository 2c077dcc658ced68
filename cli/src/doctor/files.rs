//! Small files of `/proc` and of the system, read whole or not at all.

#![expect(clippy::disallowed_methods, reason = "reads files")]

use std::fs;
use std::path::{Path, PathBuf};

/// A file's text.
pub(super) fn text(path: &Path) -> Option<String> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A file's bytes.
pub(super) fn bytes(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

/// Where a link points.
pub(super) fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}
