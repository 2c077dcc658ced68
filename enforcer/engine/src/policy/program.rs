//! Parses programs and absolute paths.

use std::path::Path;

use crate::yaml::{Faults, Node, expected, list, text};

/// Parses a program and its arguments.
pub(super) fn program(node: &Node, faults: &mut Faults) -> Option<Vec<String>> {
    let items = list(node, "strings: the absolute path of a program, and its arguments", faults)?;
    let (first, _) = items.split_first()?;
    full_path(text(first, "the absolute path of a program", faults)?, first, faults)?;
    let words: Vec<String> = items.iter().filter_map(|item| argument(item, faults)).collect();
    (words.len() == items.len()).then_some(words)
}

/// Parses an argument, which may be empty if it is quoted.
fn argument(node: &Node, faults: &mut Faults) -> Option<String> {
    let text = node.text().filter(|text| !node.is_null() && !text.contains('\0'));
    if text.is_none() {
        expected(node, "text", faults);
    }
    text.map(str::to_owned)
}

pub(super) fn full_path<'a>(path: &'a str, node: &Node, faults: &mut Faults) -> Option<&'a str> {
    if Path::new(path).is_absolute() {
        return Some(path);
    }
    let help = "begin it with `/`; PATH and the working directory are not used";
    faults.error(&node.at, format!("expected an absolute path; found {}", node.found()), help);
    None
}
