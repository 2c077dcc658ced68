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

/// Which lines of the kernel log are attributed to a process.
const KERNEL_LOG: &str = "
With `--kernel-log`, the exporter reads the kernel log, in which NVIDIA's driver writes a line for each Xid error. A line
is counted at a process only if all of this holds; otherwise the error is only in `bailiff_gpu_xid_errors_total`:

* The kernel wrote the record (facility 0).
* The class of the Xid is `application` or `cleanup`, and the error does not follow from another one (`caused by previous
  Xid`, from driver 580).
* The line names a channel. Without one, drivers from 570 name the process that was in a call of the driver, which need not
  have caused the error.
* The latest process list has the pid on the GPU or MIG instance of the line, and the process has the name in the line.
  A process that was renamed since it opened the GPU is not counted.
* The process started before the previous sample, when all earlier records had been read, so the pid was not reused. The
  timestamp of the record is not used, because its clock stops during suspend and drifts.
* The process is neither a client nor a server of MPS, and the driver's pids are those of the host.
* The driver has reported at least as many errors of this number on the GPU (`bailiff_gpu_xid_errors_total`) as lines are
  counted.
* The record is not a fragment of a line within 10 s of a record that ends with `,cpuset=`. The kernel prints the name of
  a cgroup after this text, and users can choose such names. A line that is skipped for this reason counts as a gap.

Counts start at 0 with the exporter and with the process; a process that has exited has none. Old records, and records
that were written while the sampling worker was replaced, are not read. `bailiff_gaps_total{gap=\"kernel_log\"}` counts
lost records.

`/dev/kmsg` needs `CAP_SYSLOG`, unless the sysctl `kernel.dmesg_restrict` is 0. For the shipped unit, use a drop-in
(`systemctl edit bailiff-exporter`), and add the flag to `BAILIFF_EXPORTER_FLAGS`:

```ini
[Service]
AmbientCapabilities=CAP_SYSLOG
CapabilityBoundingSet=CAP_SYSLOG
ProtectKernelLogs=no
# Only if the unit has a DevicePolicy:
DeviceAllow=/dev/kmsg r
```

In Kubernetes, add the capability `SYSLOG` and mount the host's `/dev/kmsg`, and permit the device.
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
        format!("\n### Xid errors of processes\n{KERNEL_LOG}"),
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
