//! `docs/metrics.md` says what `metrics.rs` and the comments of the words say: `UPDATE_GOLDEN=1` renews it.
#![expect(clippy::disallowed_methods, reason = "the page is a file")]

#[path = "../../crates/exposition/tests/metric_table/mod.rs"]
mod table;

use std::fs;
use std::path::Path;

use bailiff_exporter::metrics::{self, FAMILIES, OWN_PROCESS};
use bailiff_snapshot::{Fault, Gap, Stuck, Why};

const HEAD: &str = "# Metrics of bailiff-exporter

Generated from `exporter/src/metrics.rs`. A series that is absent was not observed; no value is an estimate, a previous
value or a 0 in place of an unknown. `gpu` is the driver's index (`0`, or `0:1` for a MIG instance), which may change at
a reboot; `gpu_uuid` does not. Join `bailiff_process_info` on `pid`, and dcgm-exporter's `UUID` with
`label_replace(X, \"UUID\", \"$1\", \"gpu_uuid\", \"(.*)\")`.

A GPU in MIG mode and its instances all have memory: to sum it up, take `gpu!~\".*:.*\"` or `gpu=~\".*:.*\"`. In
Kubernetes scrape with `honorLabels: true`: `pod`, `namespace` and `container` are those of the process that holds
memory, and are written empty where it has none, so that Prometheus does not fill in the exporter's own.

| metric | kind | labels | meaning |
|---|---|---|---|
";

/// How a 0 is distinguished from an unknown value.
const ZERO: &str = include_str!("../../crates/snapshot/src/utilization.md");

/// Sections of values, from the words and their comments: none can be forgotten.
fn values() -> String {
    let stuck =
        Stuck::ALL.map(|kind| (kind.name(), format!("{} Freed by {}.", kind.about(), kind.freed_by())));
    [
        "\n## Values of labels\n".to_owned(),
        table::values(
            &[&metrics::PROCESS_UTILIZATION_UNKNOWN],
            "reason",
            Why::ALL.map(|why| (why.name(), why.about())),
        ),
        format!("\n### How idle is distinguished from unknown\n\n{ZERO}"),
        table::values(&[&metrics::GPU_STUCK], "kind", stuck),
        table::values(
            &[&metrics::SOURCE_FAULT_INFO, &metrics::GPU_FAULT_INFO],
            "reason",
            Fault::ALL.map(|fault| (fault.name(), fault.about())),
        ),
        table::values(&[&metrics::GAPS], "gap", Gap::ALL.map(|gap| (gap.name(), gap.about()))),
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
    let page = HEAD.to_owned() + &table::rows(FAMILIES.iter().chain(OWN_PROCESS)) + &values();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/metrics.md is not what the code says: UPDATE_GOLDEN=1 renews it");
}
