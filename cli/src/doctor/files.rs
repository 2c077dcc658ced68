//! Reading small files of `/proc` and of the system; an unreadable file is `None`.

#![expect(clippy::disallowed_methods, reason = "reads files")]

use std::fs;
use std::path::{Path, PathBuf};

pub(super) fn text(path: &Path) -> Option<String> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn bytes(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

pub(super) fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}
