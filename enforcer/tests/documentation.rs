//! Tests that `docs/enforcer-metrics.md` matches `metrics.rs` and the comments on its label values, that
//! `docs/rules.md` matches the schema, and that a full page matches its golden file. `UPDATE_GOLDEN=1` renews them.
#![expect(clippy::disallowed_methods, clippy::expect_used, reason = "the pages are files")]

#[path = "made_up/mod.rs"]
mod made_up;
mod reference;
#[path = "../../crates/exposition/tests/metric_table/mod.rs"]
mod table;

use std::fs;
use std::path::Path;
use std::time::Duration;

use bailiff_enforcer::metrics::{self, FAMILIES, OWN_PROCESS};
use bailiff_enforcer::stream::Reason;
use bailiff_enforcer::web::page::{self, Moment};
use bailiff_engine::engine::Now;
use bailiff_engine::verdict::{Hold, Outcome};
use bailiff_exposition::Format;
use bailiff_exposition::own::Own;

const HEAD: &str = "# Metrics of bailiff-enforcer

Generated from `enforcer/src/metrics.rs`. A series is absent if its value was not observed; for example, the number of
matches of a rule that has not been evaluated yet is absent, not 0. Counters of steps and notifications start at 0 when
the enforcer starts, for every possible result, so that `increase()` includes the first event. Counters about leases and
the connection to the exporter's stream appear with their first event. `target` is the name that
`bailiff-enforcer status` and the audit log show.

| metric | kind | labels | meaning |
|---|---|---|---|
";

fn compare(file: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, page).expect("the directory is writable");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{file} differs: UPDATE_GOLDEN=1 renews it; review the difference");
}

const OF_ONE: &str = "
The following holds apply to single actions, so they have no series. `bailiff-enforcer explain` shows them for a
target, and `bailiff_budget_used` reports the use of the node's budget:

| hold | meaning |
|---|---|
";

/// Returns the sections about label values, generated from the enums and their comments, so that no value is
/// missing.
fn values() -> String {
    let (node, one): (Vec<_>, Vec<_>) = Hold::ALL.into_iter().partition(|hold| hold.node_wide());
    let of_one = one.iter().map(|hold| format!("| `{}` | {} |\n", hold.name(), hold.about()));
    let outcomes = Outcome::ALL.map(|outcome| (outcome.name(), outcome.about()));
    [
        "\n## Values of labels\n".to_owned(),
        table::values(&[&metrics::HOLD_ACTIVE], "hold", node.iter().map(|hold| (hold.name(), hold.about()))),
        OF_ONE.to_owned(),
        of_one.collect(),
        table::values(&[&metrics::STEPS, &metrics::KILLS], "result", outcomes),
        "\n`done` and `dry_run` do not occur in `bailiff_kills_total`.\n".to_owned(),
        table::values(
            &[&metrics::STREAM_REFUSED],
            "reason",
            Reason::ALL.map(|why| (why.name(), why.about())),
        ),
    ]
    .concat()
}

#[test]
fn the_table_is_in_order() {
    assert_eq!(table::faults(FAMILIES.iter().chain(OWN_PROCESS)), [""; 0]);
    assert!(FAMILIES.iter().all(|family| family.name.starts_with("bailiff_")));
}

#[test]
fn every_metric_is_documented() {
    let rows = table::rows(FAMILIES.iter().chain(OWN_PROCESS));
    compare("../docs/enforcer-metrics.md", &(HEAD.to_owned() + &rows + &values()));
}

#[test]
fn every_rules_key_is_documented() {
    compare("../docs/rules.md", &reference::page(&bailiff_engine::policy::schema()));
}

/// The end-to-end tests check this page with `promtool`.
#[test]
fn full_page_matches_the_golden_file() {
    let own = Own { cpu_seconds: Some(1.5), ..Own::default() };
    let moment = Moment { now: Now { boot: Duration::from_secs(3602), ..Now::default() }, own };
    let mut page = Vec::new();
    page::write(&made_up::full(), &moment, Format::Text, &mut page).expect("writing to memory cannot fail");
    compare("tests/golden/full.prom", &String::from_utf8(page).expect("the text is UTF-8"));
}
