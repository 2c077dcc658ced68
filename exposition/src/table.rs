//! What holds of every table of metrics, and how one reads as a page of documentation.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::{Family, Kind};

/// Prometheus asks exporters to leave these to the scrape configuration (`writing_exporters`).
const TARGET_LABELS: [&str; 9] =
    ["type", "owner", "service", "env", "cluster", "region", "zone", "customer", "stage"];

/// The families as rows of a table in Markdown: metric, kind, labels, meaning.
#[must_use]
pub fn rows<'a>(families: impl IntoIterator<Item = &'a &'static Family>) -> String {
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
        // Into memory, so it does not fail.
        let _ = writeln!(rows, "| `{}` | {kind} | {} | {} |", family.name, labels.join(" "), family.help);
    }
    rows
}

/// Values of a label of these families, as a section in Markdown: value, meaning.
#[must_use]
pub fn values<V: AsRef<str>>(
    families: &[&Family],
    label: &str,
    values: impl IntoIterator<Item = (&'static str, V)>,
) -> String {
    let names: Vec<String> = families.iter().map(|family| format!("`{}`", family.name)).collect();
    let mut section = format!("\n### `{label}` of {}\n\n| value | meaning |\n|---|---|\n", names.join(", "));
    for (value, meaning) in values {
        // Into memory, so it does not fail.
        let _ = writeln!(section, "| `{value}` | {} |", meaning.as_ref());
    }
    section
}

/// What is wrong with the families of one page, by name; nothing, if all is well.
#[must_use]
pub fn faults<'a>(families: impl IntoIterator<Item = &'a &'static Family>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for family in families {
        let stem = stem(family);
        if !seen.insert(stem.unwrap_or(family.name)) {
            faults.push(format!("{}: the name is taken", family.name));
        }
        let of_one = [
            (stem.is_none(), "ends otherwise than its kind does"),
            (!stem.unwrap_or_default().ends_with(family.unit.name()), "does not name its unit"),
            (!is_name(family.name), "has characters that no name has"),
            (!is_explained(family.help), "is not explained, or in characters that need an escape"),
            (!has_good_labels(family.labels), "has a label twice, or one that is the target's"),
        ];
        faults.extend(of_one.iter().filter(|of| of.0).map(|of| format!("{}: {}", family.name, of.1)));
    }
    faults
}

/// What `OpenMetrics` calls the family.
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

fn is_explained(help: &str) -> bool {
    help.ends_with('.') && help.len() > 20 && !help.contains(['\\', '"', '\n'])
}

fn has_good_labels(labels: &str) -> bool {
    let mut seen = BTreeSet::new();
    labels.split_ascii_whitespace().all(|label| !TARGET_LABELS.contains(&label) && seen.insert(label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    const GOOD: Family = Family {
        name: "a_used_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        labels: "gpu pid",
        help: "Seconds that somebody used.",
    };

    #[test]
    fn each_fault_is_named() {
        static CASES: [(&Family, &str); 9] = [
            (&GOOD, ""),
            (&Family { name: "a_used_seconds", ..GOOD }, "a_used_seconds: ends otherwise"),
            (&Family { kind: Kind::Gauge, ..GOOD }, "a_used_seconds_total: ends otherwise"),
            (&Family { kind: Kind::Info, ..GOOD }, "a_used_seconds_total: ends otherwise"),
            (&Family { unit: Unit::Bytes, ..GOOD }, "a_used_seconds_total: does not name its unit"),
            (&Family { name: "a_Used_seconds_total", ..GOOD }, "a_Used_seconds_total: has characters"),
            (
                &Family { help: "Seconds that somebody used", ..GOOD },
                "a_used_seconds_total: is not explained",
            ),
            (&Family { labels: "gpu gpu", ..GOOD }, "a_used_seconds_total: has a label twice"),
            (&Family { labels: "zone", ..GOOD }, "a_used_seconds_total: has a label twice, or one"),
        ];
        for (family, why) in &CASES {
            let faults = faults([family]);
            assert!(
                faults.first().map_or(why.is_empty(), |fault| fault.starts_with(why)),
                "{why}: {faults:?}"
            );
        }
        let twice: [&'static Family; 2] = [&GOOD, &GOOD];
        assert_eq!(faults(&twice), ["a_used_seconds_total: the name is taken"]);
    }

    #[test]
    fn a_row_a_family() {
        let one: [&'static Family; 1] = [&GOOD];
        let row = "| `a_used_seconds_total` | counter | `gpu` `pid` | Seconds that somebody used. |\n";
        assert_eq!(rows(&one), row);
    }

    #[test]
    fn a_row_a_value() {
        let section = values(&[&GOOD], "gpu", [("0", "The first.")]);
        let row = "| `0` | The first. |\n";
        assert_eq!(
            section,
            format!("\n### `gpu` of `a_used_seconds_total`\n\n| value | meaning |\n|---|---|\n{row}")
        );
    }
}
