//! Tests of the GPU memory limits of cgroups: what is published of the files of the controller `dmem` and of the driver's
//! answers, and what rules see of it.
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::os::unix::fs::symlink;

use end_to_end::exporter;
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};

const GPU0: &str = "nvidia/0000:17:00.0/vidmem";
const INITIAL: &str = "cgroup:[4026531835]";
const OLD_DRIVER: &str = "";

/// A node with process 4100, which holds memory on GPU 0.
struct Node(Procfs);

impl Node {
    fn new(cgroup: &str) -> Self {
        let node =
            Self(Procfs::new().with(&Process { cgroup: format!("0::{cgroup}\n"), ..Process::new(4100) }));
        node.0.write("cgroup/cgroup.controllers", "");
        node.0.write("self/cgroup", "0::/exporter\n");
        node.namespace(INITIAL)
    }

    fn namespace(self, link: &str) -> Self {
        let path = self.0.path().join("self/ns/cgroup");
        let _ = fs::remove_file(&path);
        symlink(link, path).unwrap();
        self
    }

    fn files(self, files: &[(&str, &str)]) -> Self {
        for (name, text) in files {
            self.0.write(&format!("cgroup/{name}"), &text.replace("GPU0", GPU0));
        }
        self
    }

    fn page(&self, gpu: &str) -> Page {
        let processes = "processes: [{pid: 4100, used: 10GiB}, {pid: 4101, used: 1GiB}]";
        let scenario = Scenario::new(&format!("gpus:\n- {processes}\n{gpu}"));
        let mut command = exporter::command(&scenario);
        command.args(["--once", "--interval", "20ms", "--procfs"]).arg(self.0.path());
        command.arg("--cgroupfs").arg(self.0.path().join("cgroup"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Page::read(&String::from_utf8(output.stdout).unwrap())
    }

    /// Asserts what is published: `cgroup backend value bytes`, sorted.
    fn expect(&self, gpu: &str, expected: &[&str], case: &str) {
        assert_eq!(rows(&self.page(gpu)), expected, "{case}");
    }
}

fn rows(page: &Page) -> Vec<String> {
    let mut rows = Vec::new();
    for value in ["limit", "effective_limit", "used", "peak", "stale_reservation"] {
        for (labels, bytes) in page.all(&format!("bailiff_cgroup_gpu_memory_{value}_bytes"), &[("gpu", "0")])
        {
            let value = labels.get("bound").map_or(value, String::as_str);
            rows.push(format!("{} {} {value} {bytes}", labels["cgroup"], labels["backend"]));
        }
    }
    rows.sort();
    rows
}

#[test]
fn files_of_the_controller() {
    let node = Node::new("/a/b").files(&[
        ("dmem.capacity", "GPU0 80000\n"),
        ("a/dmem.max", "GPU0 5000\n"),
        ("a/dmem.min", "GPU0 900\n"),
        ("a/dmem.current", "GPU0 300\n"),
        ("a/b/dmem.max", "GPU0 max\nnvidia/0000:65:00.0/vidmem 7\n"),
        ("a/b/dmem.min", "GPU0 0\n"),
        ("a/b/dmem.current", "GPU0 200\n"),
        ("a/b/dmem.peak", "GPU0 250\n"),
        ("a/c/dmem.min", "GPU0 400\n"),
        ("d/dmem.max", "GPU0 1\n"),
    ]);
    let parent = "/a dmem effective_limit 5000,/a dmem hard 5000,/a dmem soft 900,/a dmem stale_reservation 500,\
                  /a dmem used 300";
    let own = "/a/b dmem effective_limit 5000,/a/b dmem peak 250,/a/b dmem used 200";
    let expected: Vec<&str> = parent.split(',').chain(own.split(',')).collect();
    for driver in [OLD_DRIVER, "  memory_limits: {/: {hard: 9B}}\n"] {
        node.expect(driver, &expected, "the files count");
    }
    symlink("c", node.0.path().join("cgroup/a/link")).unwrap();
    node.expect(OLD_DRIVER, &expected, "a link is not a cgroup");
    let node = node.files(&[("a/e/dmem.min", "GPU0 x\n")]);
    let expected: Vec<&str> = expected.into_iter().filter(|row| !row.contains("stale")).collect();
    node.expect(OLD_DRIVER, &expected, "a cgroup whose guaranteed memory is unknown");
}

#[test]
fn limit_of_an_unreadable_ancestor_is_unknown() {
    let files = [
        ("dmem.capacity", "GPU0 80000\n"),
        ("a/b/dmem.max", "GPU0 5000\n"),
        ("a/b/dmem.current", "GPU0 1\n"),
    ];
    let own = ["/a/b dmem effective_limit 5000", "/a/b dmem hard 5000", "/a/b dmem used 1"];
    Node::new("/a/b").files(&files).expect(OLD_DRIVER, &own, "no limit above");
    for max in ["GPU0 NaN\n", "GPU0 1\nGPU0 2\n", "nvidia/0000:65:00.0/vidmem 7\n"] {
        let node = Node::new("/a/b").files(&files).files(&[("a/dmem.max", max)]);
        let found = rows(&node.page(OLD_DRIVER));
        assert!(!found.iter().any(|row| row.contains("effective")), "{max}: {found:?}");
    }
}

/// The limit of `/a/b` also applies to `/a/b/c`, but that of `/a` is unknown and may be smaller.
#[test]
fn limit_below_an_unknown_one_is_not_the_effective_limit() {
    let files = [
        ("dmem.capacity", "GPU0 80000\n"),
        ("a/b/dmem.max", "GPU0 5000\n"),
        ("a/b/c/dmem.max", "GPU0 max\n"),
        ("a/b/c/dmem.current", "GPU0 1\n"),
    ];
    let node = || Node::new("/a/b/c").files(&files);
    let [own, inherited] = ["/a/b dmem hard 5000", "/a/b/c dmem used 1"];
    let effective = ["/a/b dmem effective_limit 5000", "/a/b/c dmem effective_limit 5000"];
    node().expect(OLD_DRIVER, &[effective[0], own, effective[1], inherited], "no limit above");
    for max in ["nvidia/0000:65:00.0/vidmem 7\n", "GPU0 1\nGPU0 2\n"] {
        node().files(&[("a/dmem.max", max)]).expect(OLD_DRIVER, &[own, inherited], max);
    }
    node().files(&[("a/dmem.max", "GPU0 NaN\n")]).expect(OLD_DRIVER, &[], "a malformed file");
    // A directory cannot be read as a file.
    let node = node().files(&[("a/dmem.max/file", "")]);
    let page = node.page(OLD_DRIVER);
    assert_eq!(rows(&page), [""; 0]);
    assert!(page.happened("bailiff_gaps_total", &[("gap", "unreadable")]));
}

#[test]
fn cgroup_whose_path_cannot_be_resolved_is_absent() {
    let files =
        [("dmem.capacity", "GPU0 80000\n"), ("a/b/dmem.max", "GPU0 5000\n"), ("b/dmem.max", "GPU0 5000\n")];
    for cgroup in ["/../b", "/a/../b", "/a/./b", "/gone", "/a/b (deleted)", "/link", "//b"] {
        let node = Node::new(cgroup).files(&files);
        symlink("b", node.0.path().join("cgroup/link")).unwrap();
        node.expect(OLD_DRIVER, &[], cgroup);
        node.expect("  memory_limits: {}\n", &[], cgroup);
    }
    let other = Node::new("/b").files(&files).namespace("cgroup:[4026532000]");
    other.expect(OLD_DRIVER, &[], "a cgroup namespace of its own, and the host's files");
    let other = other.files(&[("cgroup.events", ""), ("dmem.max", "GPU0 5000\n")]);
    let own = ["/ dmem hard 5000", "/b dmem hard 5000"];
    other.expect(OLD_DRIVER, &own, "a cgroup namespace and files of its own: limits outside are unknown");
    other.namespace(INITIAL).expect(OLD_DRIVER, &[], "files of a container, and paths of the host");
}

#[test]
fn answers_of_the_driver() {
    let node = Node::new("/a/b").files(&[("a/b/cgroup.procs", "")]);
    let root = node.0.path().join("cgroup");
    let limits =
        |limits: &str| format!("  memory_limits: {{{}}}\n", limits.replace("ROOT", root.to_str().unwrap()));
    let own = ["/a/b misc effective_limit 4096", "/a/b misc hard 4096", "/a/b misc used 7"];
    let both = [
        "/a misc effective_limit 8192",
        "/a misc hard 8192",
        "/a misc soft 1024",
        "/a misc used 9",
        "/a/b misc effective_limit 4096",
        "/a/b misc hard 4096",
        "/a/b misc used 7",
    ];
    let inherited = [both[0], both[1], both[2], both[3], "/a/b misc effective_limit 8192"];
    for (given, expected) in [
        ("ROOT/a/b: {hard: 4096B, used: 7B}", own.as_slice()),
        ("ROOT/a: {hard: 8192B, soft: 1024B, used: 9B}, ROOT/a/b: {hard: 4096B, used: 7B}", &both),
        ("ROOT/a: {hard: 8192B, soft: 1024B, used: 9B}", &inherited),
        (
            "ROOT/a: {hard: 8192B, soft: 1024B, used: 9B}, ROOT/a/b: {hard: 8192B, soft: 1024B, used: 9B}",
            &inherited,
        ),
        ("ROOT/c: {hard: 4096B, used: 7B}", &[]),
        ("", &[]),
    ] {
        node.expect(&limits(given), expected, given);
    }
    for error in ["not_supported", "operating_system", "unknown", "no_permission", "function_not_found"] {
        let limits = limits("ROOT/a/b: {hard: 4096B, used: 7B}");
        let faults = format!("{limits}  faults: {{errors: {{nvmlDeviceGetMemoryLimits_v1: {error}}}}}\n");
        node.expect(&faults, &[], error);
    }
}

#[test]
fn limits_do_not_change_the_parts_of_the_memory() {
    let parts = |node: &Node| {
        let page = node.page("  memory: {total: 64GiB, reserved: 1GiB}\n");
        let found =
            page.all("bailiff_gpu_memory_parts_bytes", &[]).map(|(labels, bytes)| (labels.clone(), bytes));
        found.collect::<Vec<_>>()
    };
    let without = parts(&Node::new("/a/b"));
    let limited = Node::new("/a/b").files(&[
        ("dmem.capacity", "GPU0 68719476736\n"),
        ("a/dmem.max", "GPU0 4096\n"),
        ("a/dmem.current", "GPU0 11811160064\n"),
        ("a/b/dmem.max", "GPU0 4096\n"),
        ("a/b/dmem.current", "GPU0 10737418240\n"),
        ("exporter/dmem.max", "GPU0 max\n"),
    ]);
    assert!(without.len() == 6 && parts(&limited) == without, "{without:?}");
}
