//! Tests that `docs/metrics.md` matches `metrics.rs` and the comments on its label values.
//! `UPDATE_GOLDEN=1` renews it.
#![expect(clippy::disallowed_methods, reason = "the page is a file")]

#[path = "../../crates/exposition/tests/metric_table/mod.rs"]
mod table;

use std::fs;
use std::path::Path;

use bailiff_exporter::metrics::{self, FAMILIES, OWN_PROCESS};
use bailiff_snapshot::{Fault, Gap, Stuck, Why};

const HEAD: &str = "# Metrics of bailiff-exporter

Generated from `exporter/src/metrics.rs`. A series is absent if its value was not observed. The exporter never publishes
an estimate, a previous value, or 0 for an unknown value. `gpu` is the driver's index (`0`, or `0:1` for a MIG
instance), which can change at a reboot; `gpu_uuid` does not change. Join series with `bailiff_process_info` on `pid`,
and with dcgm-exporter's `UUID` by `label_replace(X, \"UUID\", \"$1\", \"gpu_uuid\", \"(.*)\")`.

Memory is reported for a GPU in MIG mode and for each of its instances. To avoid counting it twice in sums, select GPUs
with `gpu!~\".*:.*\"` or instances with `gpu=~\".*:.*\"`. In Kubernetes, scrape with `honorLabels: true`, because `pod`,
`namespace` and `container` describe the process that holds memory. If the process has no such value, the label is
empty, so that Prometheus does not add the values of the exporter's own pod.

| metric | kind | labels | meaning |
|---|---|---|---|
";

/// How a 0 is distinguished from an unknown value.
const ZERO: &str = include_str!("../../crates/snapshot/src/utilization.md");

/// How energy is split.
const ENERGY: &str = include_str!("../../crates/snapshot/src/energy.md");

const ENERGY_LIMITS: &str = "
The sum of the parts is exact. The split among users follows the rule above and is not a measurement: equal SM
utilization does not mean equal power, and the highest sample of the window is not its average: a process that is busy
for a moment counts like one that is busy all the time. On A100 and H100, the power sensor measures only about a quarter
of the time. A process that starts and exits between two samples, and of which the driver has no sample, is not
detected. A user can make the energy of a shared GPU `unattributed` ([security.md](security.md)).
";

/// Returns the sections about label values, generated from the enums and their comments, so that no value
/// is missing.
fn values() -> String {
    let stuck = Stuck::ALL
        .map(|kind| (kind.name(), format!("{} Memory is freed by {}.", kind.about(), kind.freed_by())));
    [
        "\n## Values of labels\n".to_owned(),
        table::values(
            &[&metrics::PROCESS_UTILIZATION_UNKNOWN],
            "reason",
            Why::ALL.map(|why| (why.name(), why.about())),
        ),
        format!("\n### How idle is distinguished from unknown\n\n{ZERO}"),
        format!("\n### How the energy of a GPU is split\n\n{ENERGY}{ENERGY_LIMITS}"),
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
    assert!(found == page, "docs/metrics.md differs from the code: UPDATE_GOLDEN=1 renews it");
}
