//! Parses absolute paths.

use std::path::{Path, PathBuf};

use crate::yaml::{Faults, Node, expected, text};

/// Returns an absolute path.
pub(super) fn absolute(node: &Node, faults: &mut Faults) -> Option<PathBuf> {
    let path = text(node, "an absolute path, which begins with `/`", faults)?;
    if Path::new(path).is_absolute() {
        return Some(path.into());
    }
    expected(node, "an absolute path, which begins with `/`", faults);
    None
}
