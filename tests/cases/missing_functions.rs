//! Tests drivers whose library does not export a function. The exporter publishes the rest, counts no gap, and publishes no
//! value in its place. Needs root, to set the owners of made-up processes.
#![allow(
    clippy::disallowed_methods,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::path::PathBuf;

use end_to_end::exporter::{self, Exporter, TICKS};
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;
use tempfile::TempDir;

/// A GPU with a busy process, which accounting remembers, and an idle one.
const GPU: &str = "sampling_period: 20ms
gpus:
- gpm: {1: 50}
  recovery_action: 1
  remapped_rows: {corrected: 1, uncorrected: 8}
  ecc: {corrected: 3, uncorrected: 2}
  throttle_reasons: 4
  memory: {total: 64GiB, reserved: 1GiB}
  accounting: {enabled: true, processes: [{pid: 4100, running: true, max_memory: 12GiB}]}
  processes: [{pid: 4100, used: 10GiB, sm: 60}, {pid: 4101, used: 1GiB}]
";

const GIB: f64 = 1_073_741_824.0;

type Labels = [(&'static str, &'static str)];

/// Series of this GPU by name: the family, labels and the value.
const SERIES: [(&str, &str, &Labels, f64); 10] = [
    ("activity", "bailiff_gpu_activity_ratio", &[("engine", "graphics")], 0.5),
    ("action", "bailiff_gpu_recovery_action", &[("action", "gpu_reset")], 1.0),
    ("rows", "bailiff_gpu_remapped_rows", &[("kind", "uncorrected")], 8.0),
    ("ecc", "bailiff_gpu_ecc_errors_total", &[("kind", "uncorrected")], 2.0),
    ("clock", "bailiff_gpu_clock_event", &[("reason", "sw_power_cap")], 1.0),
    ("reserved", "bailiff_gpu_memory_reserved_bytes", &[], GIB),
    ("energy", "bailiff_gpu_energy_joules_total", &[], 1000.0),
    ("peak", "bailiff_process_gpu_memory_peak_bytes", &[("pid", "4100")], 12.0 * GIB),
    ("busy", "bailiff_process_gpu_utilization_ratio", &[("pid", "4100"), ("engine", "sm")], 0.6),
    ("idle", "bailiff_process_gpu_utilization_ratio", &[("pid", "4101"), ("engine", "sm")], 0.0),
];

/// A node with a fake driver and processes 4100 and 4101.
struct Node {
    directory: TempDir,
    procfs: Procfs,
}

impl Node {
    /// Creates a node whose driver does not export these functions: in a copy of the fake driver, their names are changed in
    /// the table of symbols, so that the dynamic linker does not find them.
    fn without(names: &[&str]) -> Self {
        let procfs = Procfs::new().with(&Process::new(4100)).with(&Process::new(4101));
        procfs.write("self/cgroup", "0::/\n");
        procfs.write("cgroup/cgroup.controllers", "");
        let node = Self { directory: tempfile::tempdir().unwrap(), procfs };
        let mut bytes = fs::read(programs::fake_nvml()).unwrap();
        for name in names {
            let entry = [b"\0", name.as_bytes(), b"\0"].concat();
            let at = bytes.windows(entry.len()).position(|bytes| bytes == entry);
            bytes[at.unwrap_or_else(|| panic!("no function {name}")) + 1] = b'_';
        }
        fs::write(node.library(), bytes).unwrap();
        node
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("libnvidia-ml.so.1")
    }

    /// Returns a page after several samples. The GPU is up, and no call of the driver left a gap.
    fn page(&self, scenario: &str) -> Page {
        let scenario = Scenario::new(scenario);
        let mut command = exporter::command(&scenario);
        command.arg("--nvml-library").arg(self.library()).args(TICKS).args(["--interval", "150ms", "--gpm"]);
        command
            .arg("--procfs")
            .arg(self.procfs.path())
            .arg("--cgroupfs")
            .arg(self.procfs.path().join("cgroup"));
        let exporter = Exporter::spawn(command);
        exporter.next();
        let page = exporter.next();
        assert_eq!(page.value("bailiff_gpu_up", &[("gpu", "0")]), Some(1.0), "{}", exporter.log());
        for gap in ["telemetry", "utilization", "memory", "process_list", "implausible"] {
            assert_eq!(page.value("bailiff_gaps_total", &[("gap", gap)]), Some(0.0), "{gap}");
        }
        page
    }
}

/// Asserts which series are absent without these functions. All others have the values of a complete driver.
fn expect(functions: &[&str], absent: &[&str]) -> Page {
    let page = Node::without(functions).page(GPU);
    for (name, family, labels, value) in SERIES {
        let expected = (!absent.contains(&name)).then_some(value);
        assert_eq!(page.value(family, labels), expected, "{name} without {functions:?}");
    }
    page
}

fn reason(page: &Page, family: &str, labels: &[(&str, &str)]) -> Option<String> {
    page.label(&format!("bailiff_{family}_unknown_info"), labels, "reason")
}

#[test]
fn activity_is_unknown_without_a_function_of_it() {
    let unknown = |page: &Page| reason(page, "gpu_activity", &[("gpu", "0")]);
    assert_eq!(unknown(&expect(&[], &[])), None);
    for function in [
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
        "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet",
    ] {
        assert_eq!(
            unknown(&expect(&[function], &["activity"])).as_deref(),
            Some("not_supported"),
            "{function}"
        );
    }
}

#[test]
fn activity_of_instances_is_unknown_without_their_function() {
    let mig =
        "gpus: [{gpm: {1: 30}, mig: [{gi: 1, profile: 1g.18gb, memory: {total: 16GiB}, gpm: {1: 90}}]}]";
    for (functions, expected, why) in
        [(&[][..], Some(0.9), None), (&["nvmlGpmMigSampleGet"], None, Some("not_supported"))]
    {
        let page = Node::without(functions).page(mig);
        let ratio = |gpu| page.value("bailiff_gpu_activity_ratio", &[("gpu", gpu)]);
        assert_eq!((ratio("0"), ratio("0:0")), (Some(0.3), expected), "{functions:?}");
        assert_eq!(reason(&page, "gpu_activity", &[("gpu", "0:0")]).as_deref(), why, "{functions:?}");
    }
}

#[test]
fn utilization_is_unknown_without_both_of_its_functions() {
    let [newer, older] = ["nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"];
    let of = |page: &Page, pid| reason(page, "process_gpu_utilization", &[("pid", pid)]);
    for function in [newer, older] {
        assert_eq!(of(&expect(&[function], &[]), "4101"), None, "{function}");
    }
    let page = expect(&[newer, older], &["busy", "idle"]);
    for pid in ["4100", "4101"] {
        assert_eq!(of(&page, pid).as_deref(), Some("not_supported"), "{pid}");
        assert_eq!(page.value("bailiff_process_gpu_idle_seconds", &[("pid", pid)]), None, "{pid}");
    }
}

#[test]
fn health_and_energy_are_absent_without_their_functions() {
    let clocks = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"];
    // Remapped rows are read as fields.
    expect(&["nvmlDeviceGetRemappedRows"], &[]);
    expect(&["nvmlDeviceGetFieldValues"], &["action", "rows", "ecc"]);
    expect(&clocks[..1], &[]);
    expect(&clocks, &["clock"]);
    let page = expect(&["nvmlDeviceGetTotalEnergyConsumption"], &["energy"]);
    assert_eq!(page.all("bailiff_energy_joules_total", &[]).count(), 0);
}

#[test]
fn memory_is_read_by_the_functions_that_exist() {
    let total = |page: &Page| page.value("bailiff_gpu_memory_total_bytes", &[("gpu", "0")]);
    let whole = Some(64.0 * GIB);
    assert_eq!(total(&expect(&["nvmlDeviceGetMemoryInfo_v2"], &["reserved"])), whole);
    // A driver without limits cannot have changed the memory.
    let limited = format!("{GPU}  memory_limits: {{/: {{hard: 4GiB}}}}\n");
    assert_eq!(total(&Node::without(&[]).page(&limited)), None);
    let page = Node::without(&["nvmlDeviceGetMemoryLimits_v1"]).page(&limited);
    assert_eq!((total(&page), reason(&page, "gpu_memory", &[])), (whole, None));
    let rows = ["limit", "effective_limit", "used"]
        .map(|value| page.all(&format!("bailiff_cgroup_gpu_memory_{value}_bytes"), &[]).count());
    assert_eq!(rows, [0; 3]);
}

#[test]
fn peak_is_that_of_the_first_version_of_accounting_without_the_second() {
    let [first, second] = ["nvmlDeviceGetAccountingStats", "nvmlDeviceGetAccountingStats_v2"];
    expect(&[second], &[]);
    expect(&[first], &[]);
    expect(&[first, second], &["peak"]);
    expect(&["nvmlDeviceGetAccountingMode"], &["peak"]);
}

#[test]
fn first_version_of_accounting_gives_peaks_and_no_evidence_of_work() {
    let remembered =
        |pid: u32, memory: &str| format!("{{pid: {pid}, running: true, gpu: 9, max_memory: {memory}}}");
    let with = |missing: &str, processes: &str| {
        let gpu = GPU.replace("{pid: 4100, running: true, max_memory: 12GiB}", processes);
        Node::without(&[]).page(&format!("missing: [{missing}]\n{gpu}"))
    };
    let peak = |page: &Page, pid| page.value("bailiff_process_gpu_memory_peak_bytes", &[("pid", pid)]);
    let why = |page: &Page| reason(page, "process_gpu_utilization", &[("pid", "4101")]);
    let both = [remembered(4100, "18446744073709551615B"), remembered(4101, "2GiB")].join(", ");
    // The sums of the second version grow, which contradicts that process 4101 was idle.
    assert_eq!(why(&with("", &both)).as_deref(), Some("accounted"));
    let page = with("nvmlDeviceGetAccountingStats_v2", &both);
    let (_, family, labels, idle) = SERIES[9];
    assert_eq!((why(&page), page.value(family, labels)), (None, Some(idle)));
    assert_eq!((peak(&page, "4100"), peak(&page, "4101")), (None, Some(2.0 * GIB)));
    let page = with("nvmlDeviceGetAccountingStats_v2", &remembered(4101, "2GiB"));
    assert_eq!(peak(&page, "4100"), None, "accounting does not know the process");
}
