//! Tests that the memory of a GPU is not published if the exporter's own cgroup has, or may have, a GPU memory limit.
#![allow(
    clippy::disallowed_methods,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use end_to_end::exporter;
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::procfs::Procfs;
use end_to_end::programs;

/// Metric families that a limit changes.
const MEMORY: [&str; 6] = [
    "bailiff_gpu_memory_total_bytes",
    "bailiff_gpu_memory_used_bytes",
    "bailiff_gpu_memory_free_bytes",
    "bailiff_gpu_memory_reserved_bytes",
    "bailiff_gpu_memory_unaccounted_bytes",
    "bailiff_gpu_memory_parts_bytes",
];

/// Name of GPU 0 in the files of the controller `dmem`.
const REGION: &str = "nvidia/0000:17:00.0/vidmem";
const OLD_DRIVER: &str = "";
const NO_LIMITS: &str = "  memory_limits: {}\n";
const LIMIT: &str = "  memory_limits: {/: {hard: 4GiB}}\n";

/// A node on which the exporter runs in cgroup `/a/b`.
struct Node {
    procfs: Procfs,
}

impl Node {
    fn new(cgroup: &str) -> Self {
        let node = Self { procfs: Procfs::new() };
        node.procfs.write("self/cgroup", cgroup);
        node.procfs.write("cgroup/a/b/cgroup.controllers", "");
        node
    }

    fn file(self, name: &str, text: &str) -> Self {
        self.procfs.write(&format!("cgroup/{name}"), &text.replace("GPU0", REGION));
        self
    }

    fn directory(&self) -> &Path {
        self.procfs.path()
    }

    fn page(&self, gpu: &str) -> Page {
        let scenario = format!(
            "gpus:\n- memory: {{total: 64GiB, reserved: 1GiB}}\n  processes: [{{pid: 4100, used: 10GiB}}]\n{gpu}"
        );
        let scenario = Scenario::new(&scenario);
        let mut command = exporter::command(&scenario);
        command.args(["--once", "--interval", "20ms", "--procfs"]).arg(self.directory());
        command.arg("--cgroupfs").arg(self.directory().join("cgroup"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Page::read(&String::from_utf8(output.stdout).unwrap())
    }

    /// Asserts that the memory is unknown for this reason, or is published.
    fn expect(&self, gpu: &str, reason: Option<&str>, case: &str) {
        let page = self.page(gpu);
        let found = page.label("bailiff_gpu_memory_unknown_info", &[("gpu", "0")], "reason");
        assert_eq!(found.as_deref(), reason, "{case}");
        for family in MEMORY {
            assert_eq!(page.all(family, &[]).count() > 0, reason.is_none(), "{family}: {case}");
        }
        assert_eq!(page.value("bailiff_gaps_total", &[("gap", "implausible")]).unwrap_or_default(), 0.0);
        assert_eq!(page.all("bailiff_process_gpu_memory_bytes", &[]).count(), 1, "{case}");
    }
}

const LIMITED: Option<&str> = Some("own_cgroup_limited");
const UNKNOWN: Option<&str> = Some("own_cgroup_unknown");

#[test]
fn files_of_the_controller_decide() {
    let own = |max: &str| Node::new("0::/a/b\n").file("a/b/dmem.max", max);
    for (max, old, new) in [
        ("GPU0 4294967296\n", LIMITED, LIMITED),
        ("nvidia/00000000:17:00.0/vidmem 0\n", LIMITED, LIMITED),
        ("GPU0 max\n", None, None),
        ("nvidia/0000:65:00.0/vidmem 4096\nGPU0 max\n", None, None),
        ("GPU0 NaN\n", None, UNKNOWN),
        ("GPU0 -1\n", None, UNKNOWN),
        ("GPU0 18446744073709551616\n", None, UNKNOWN),
    ] {
        let node = own(max);
        node.expect(OLD_DRIVER, old, max);
        node.expect(
            "  memory_limits: {}\n  faults: {errors: {nvmlDeviceGetMemoryLimits_v1: unknown}}\n",
            new,
            max,
        );
    }
    own("GPU0 max\n").file("a/dmem.max", "GPU0 4096\n").expect(OLD_DRIVER, LIMITED, "an ancestor's limit");
    own("").expect(LIMIT, LIMITED, "the driver has a limit that the files do not show");
}

#[test]
fn total_below_capacity_is_a_limit() {
    for (gib, reason) in [(64, None), (73, None), (74, LIMITED)] {
        let node = Node::new("0::/a/b\n").file("dmem.capacity", &format!("GPU0 {}\n", gib * (1_u64 << 30)));
        node.expect(OLD_DRIVER, reason, &format!("64 GiB of {gib} GiB"));
    }
}

#[test]
fn driver_reports_the_limit_without_files() {
    let fails = |error| format!("{LIMIT}  faults: {{errors: {{nvmlDeviceGetMemoryLimits_v1: {error}}}}}\n");
    let node = Node::new("0::/a/b\n");
    let own = node.directory().join("cgroup/a/b");
    for (gpu, reason) in [
        (OLD_DRIVER.to_owned(), None),
        (NO_LIMITS.to_owned(), None),
        (LIMIT.to_owned(), LIMITED),
        (format!("  memory_limits: {{{}: {{hard: 1GiB}}}}\n", own.display()), LIMITED),
        (format!("  memory_limits: {{{}x: {{hard: 1GiB}}}}\n", own.display()), None),
        ("  memory_limits: {/: {soft: 4GiB, used: 1GiB}}\n".to_owned(), None),
        (fails("not_found"), None),
        (fails("not_supported"), None),
        (fails("function_not_found"), None),
        (fails("operating_system"), UNKNOWN),
        (fails("no_permission"), None),
        (fails("argument_version_mismatch"), None),
        (fails("unknown"), UNKNOWN),
    ] {
        node.expect(&gpu, reason, &gpu);
    }
}

#[test]
fn unreadable_cgroup_matters_only_to_drivers_with_limits() {
    for (cgroup, reason) in [
        ("0::/a/b\n", None),
        ("1:memory:/x\n", None),
        ("0::/version-1\n", UNKNOWN),
        ("0::/../b\n", UNKNOWN),
        ("0::/a/../b\n", UNKNOWN),
        ("0::/a/b (deleted)\n", UNKNOWN),
        ("0::/link\n", UNKNOWN),
    ] {
        let node = Node::new(cgroup);
        node.procfs.write("cgroup/version-1/cgroup.procs", "");
        symlink("a", node.directory().join("cgroup/link")).unwrap();
        node.expect(OLD_DRIVER, None, cgroup);
        node.expect(NO_LIMITS, reason, cgroup);
    }
    let node = Node::new("");
    fs::remove_file(node.directory().join("self/cgroup")).unwrap();
    node.expect(OLD_DRIVER, None, "no file in /proc");
    node.expect(NO_LIMITS, UNKNOWN, "no file in /proc");
}

#[test]
fn limit_applies_to_mig_instances() {
    let instance =
        "  mig: [{gi: 1, profile: 1g.18gb, memory: {total: 16GiB}, processes: [{pid: 4101, used: 8GiB}]}]\n";
    let page = |limits| {
        Node::new("0::/a/b\n")
            .page(&format!("{instance}{limits}").replace("  processes: [{pid: 4100, used: 10GiB}]\n", ""))
    };
    let total = |page: &Page| page.value("bailiff_gpu_memory_total_bytes", &[("gpu", "0:0")]);
    assert_eq!(total(&page(NO_LIMITS)), Some(f64::from(1 << 30) * 16.0));
    let limited = page(LIMIT);
    assert_eq!(total(&limited), None);
    assert_eq!(limited.all("bailiff_gpu_memory_unknown_info", &[]).count(), 2);
}

#[test]
fn run_and_doctor_name_the_cause() {
    let scenario = Scenario::new("gpus: [{memory_limits: {/: {hard: 4GiB}}}]\n");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.args(arguments).env("BAILIFF_NVML_LIBRARY", programs::fake_nvml());
        command.env("FAKE_NVML_SCENARIO", scenario.path()).env_remove("LEASE_REDIS_URL").output().unwrap()
    };
    let report = String::from_utf8(run(&["doctor", "--json"]).stdout).unwrap();
    assert!(report.contains("unknown to this command") && report.contains("GPU memory limit"), "{report}");
    let limited = run(&["run", "--min-free", "1GiB", "--", "true"]);
    let error = String::from_utf8(limited.stderr).unwrap();
    assert!(limited.status.code() == Some(69) && error.contains("GPU memory limit"), "{error}");
    scenario.set("gpus: [{faults: {errors: {nvmlDeviceGetMemoryLimits_v1: operating_system}}}]\n");
    let unknown = run(&["run", "--min-free", "1GiB", "--nonblock", "--", "true"]);
    let error = String::from_utf8(unknown.stderr).unwrap();
    assert!(unknown.status.code() == Some(75) && error.contains("an unknown amount"), "a wait: {error}");
}
