//! `docs/enforcer-metrics.md` matches `metrics.rs` and the comments of its label values, `docs/rules.md` the schema,
//! and a full page its golden file: `UPDATE_GOLDEN=1` renews them.
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
use bailiff_engine::verdict::{Hold, Outcome};
use bailiff_exposition::Format;
use bailiff_exposition::own::Own;

const HEAD: &str = "# Metrics of bailiff-enforcer

Generated from `enforcer/src/metrics.rs`. A series that is absent was not observed: a rule that has evaluated nothing has
no number of matches, not 0. Counters of steps and notifications start at 0 with the enforcer, for every possible result,
so that `increase()` sees the first event; those of leases and of the stream start with their first event. `target` is
the name that `bailiff-enforcer status` and the audit log show.

| metric | kind | labels | meaning |
|---|---|---|---|
";

fn compare(file: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, page).expect("the directory is ours");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{file} is another: UPDATE_GOLDEN=1 renews it; read the difference");
}

const OF_ONE: &str = "
These are met when an action is to be done, so they have no series; `bailiff-enforcer explain` says them of
its target, and `bailiff_budget_used` tells of the node's budget:

| hold | meaning |
|---|---|
";

/// Sections of label values, generated from the enums and their comments, so that none is missing.
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
        "\n`done` and `watched` are never of kills.\n".to_owned(),
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

/// `promtool` checks this page in the end-to-end cases.
#[test]
fn full_page_matches_the_golden_file() {
    let own = Own { cpu_seconds: Some(1.5), ..Own::default() };
    let moment = Moment { boot: Duration::from_secs(3602), own };
    let mut page = Vec::new();
    page::write(&made_up::full(), &moment, Format::Text, &mut page).expect("memory takes everything");
    compare("tests/golden/full.prom", &String::from_utf8(page).expect("it is text"));
}
