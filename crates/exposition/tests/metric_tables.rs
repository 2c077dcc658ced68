//! Tests the checks and the Markdown rendering of metric tables, which the tests of both daemons use.

mod metric_table;

use bailiff_exposition::{Family, Kind, Unit};
use metric_table::{faults, rows, values};

const LONG: &str = "A sentence that is a little too long for the line of HELP, because it also says when the value is absent, and why that is so.";
const GOOD: Family = Family {
    name: "a_used_seconds_total",
    kind: Kind::Counter,
    unit: Unit::Seconds,
    labels: "gpu pid",
    help: "Seconds of use by a process.",
    detail: "Absent if it was not observed.",
};

#[test]
fn faulty_family_is_reported_with_its_fault() {
    static CASES: [(&Family, &str); 11] = [
        (&GOOD, ""),
        (&Family { name: "a_used_seconds", ..GOOD }, "a_used_seconds: has a suffix"),
        (&Family { kind: Kind::Gauge, ..GOOD }, "a_used_seconds_total: has a suffix"),
        (&Family { kind: Kind::Info, ..GOOD }, "a_used_seconds_total: has a suffix"),
        (&Family { unit: Unit::Bytes, ..GOOD }, "a_used_seconds_total: does not end with its unit"),
        (&Family { name: "a_Used_seconds_total", ..GOOD }, "a_Used_seconds_total: has characters"),
        (
            &Family { help: "Seconds of use by a process", ..GOOD },
            "a_used_seconds_total: has no HELP sentence",
        ),
        (&Family { help: LONG, ..GOOD }, "a_used_seconds_total: has a HELP text of more than 120"),
        (&Family { detail: "no sentence", ..GOOD }, "a_used_seconds_total: has details that"),
        (&Family { labels: "gpu gpu", ..GOOD }, "a_used_seconds_total: has a duplicate"),
        (&Family { labels: "zone", ..GOOD }, "a_used_seconds_total: has a duplicate or reserved"),
    ];
    for (family, why) in &CASES {
        let faults = faults([family]);
        assert!(faults.first().map_or(why.is_empty(), |fault| fault.starts_with(why)), "{why}: {faults:?}");
    }
    let twice: [&'static Family; 2] = [&GOOD, &GOOD];
    assert_eq!(faults(&twice), ["a_used_seconds_total: the name is taken"]);
}

#[test]
fn family_is_rendered_as_a_row() {
    let one: [&'static Family; 1] = [&GOOD];
    let row = "| `a_used_seconds_total` | counter | `gpu` `pid` | Seconds of use by a process. \
               Absent if it was not observed. |\n";
    assert_eq!(rows(&one), row);
}

#[test]
fn label_value_is_rendered_as_a_row() {
    let section = values(&[&GOOD], "gpu", [("0", "The first.")]);
    let row = "| `0` | The first. |\n";
    assert_eq!(
        section,
        format!("\n### `gpu` of `a_used_seconds_total`\n\n| value | meaning |\n|---|---|\n{row}")
    );
}
