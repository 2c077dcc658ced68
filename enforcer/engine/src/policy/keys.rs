//! The keys of a rules file, except attributes and selectors: parser and schema read them from `grammar.json`.

use std::sync::LazyLock;

use crate::yaml::{Grammar, Table};

/// The schema of a rules file without attributes and selectors.
pub(super) const SCHEMA: &str = include_str!("grammar.json");

static GRAMMAR: LazyLock<Grammar> = LazyLock::new(|| Grammar::parse(SCHEMA));

/// Returns the keys of the file.
pub(super) fn file() -> Table<'static> {
    GRAMMAR.file()
}

/// Returns the keys of a map within the file.
pub(super) fn table(name: &str) -> Table<'static> {
    GRAMMAR.table(name)
}
