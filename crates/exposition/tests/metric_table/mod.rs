//! Checks of metric tables, and their rendering as Markdown.

use std::collections::BTreeSet;
use std::fmt::Write;

use bailiff_exposition::{Family, Kind};

/// Maximum length of a HELP text, in characters.
const HELP_CHARS: usize = 120;

/// Labels reserved for the scrape configuration (Prometheus guide "Writing exporters", target labels).
const TARGET_LABELS: [&str; 9] =
    ["type", "owner", "service", "env", "cluster", "region", "zone", "customer", "stage"];

/// Returns the families as rows of a Markdown table: metric, type, labels, meaning.
pub(crate) fn rows<'a>(families: impl IntoIterator<Item = &'a &'static Family>) -> String {
    let mut rows = String::new();
    for family in families {
        let kind = match family.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Info => "info",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> =
            family.labels.split_whitespace().map(|label| format!("`{label}`")).collect();
        let meaning = format!("{} {}", family.help, family.detail);
        // Writing to a String cannot fail.
        let _ =
            writeln!(rows, "| `{}` | {kind} | {} | {} |", family.name, labels.join(" "), meaning.trim_end());
    }
    rows
}

/// Returns a Markdown section that explains the values of a label of these families.
pub(crate) fn values<V: AsRef<str>>(
    families: &[&Family],
    label: &str,
    values: impl IntoIterator<Item = (&'static str, V)>,
) -> String {
    let names: Vec<String> = families.iter().map(|family| format!("`{}`", family.name)).collect();
    let mut section = format!("\n### `{label}` of {}\n\n| value | meaning |\n|---|---|\n", names.join(", "));
    for (value, meaning) in values {
        // Writing to a String cannot fail.
        let _ = writeln!(section, "| `{value}` | {} |", meaning.as_ref());
    }
    section
}

/// Returns the faults in the families of a page, each with the name of its family.
pub(crate) fn faults<'a>(families: impl IntoIterator<Item = &'a &'static Family>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for family in families {
        let stem = stem(family);
        if !seen.insert(stem.unwrap_or(family.name)) {
            faults.push(format!("{}: the name is taken", family.name));
        }
        let checks = [
            (stem.is_none(), "has a suffix of another type"),
            (!stem.unwrap_or_default().ends_with(family.unit.name()), "does not end with its unit"),
            (!is_name(family.name), "has characters that are invalid in a name"),
            (!is_sentence(family.help), "has no HELP sentence, or one that needs escapes"),
            (family.help.chars().count() > HELP_CHARS, "has a HELP text of more than 120 characters"),
            (!family.detail.is_empty() && !is_sentence(family.detail), "has details that are no sentence"),
            (!has_good_labels(family.labels), "has a duplicate or reserved label"),
        ];
        faults.extend(
            checks.iter().filter(|check| check.0).map(|check| format!("{}: {}", family.name, check.1)),
        );
    }
    faults
}

/// Returns the family's `OpenMetrics` name, without the suffix of its type; `None` if the suffix does not match
/// the type.
fn stem(family: &Family) -> Option<&'static str> {
    match family.kind {
        Kind::Gauge | Kind::Histogram => {
            Some(family.name).filter(|name| !name.ends_with("_total") && !name.ends_with("_info"))
        }
        Kind::Counter => family.name.strip_suffix("_total"),
        Kind::Info => family.name.strip_suffix("_info"),
    }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn is_sentence(text: &str) -> bool {
    text.ends_with('.') && text.len() > 20 && !text.contains(['\\', '"', '\n'])
}

fn has_good_labels(labels: &str) -> bool {
    let mut seen = BTreeSet::new();
    labels.split_ascii_whitespace().all(|label| !TARGET_LABELS.contains(&label) && seen.insert(label))
}
