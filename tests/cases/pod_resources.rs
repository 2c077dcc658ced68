//! Tests the GPUs that the kubelet has allocated, with a kubelet whose gRPC is not ours: states of allocations, and a kubelet
//! that fails, hangs, lies or is replaced.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::collections::BTreeSet;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::kubelet::{Kubelet, answers, pod};
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};
use serde_json::{Value, json};

/// GPU `a` is used, `b` and `c` have an idle process each, and `d` is shared and has none.
const GPUS: &str = "sampling_period: 20ms
gpus:
  - {uuid: GPU-a, processes: [{pid: 4100, used: 1GiB, sm: 50}]}
  - {uuid: GPU-b, processes: [{pid: 4101, used: 1GiB, sm: 0}]}
  - {uuid: GPU-c, processes: [{pid: 4102, used: 1GiB, sm: 0}]}
  - {uuid: GPU-d}
";
const ALLOCATABLE: [&str; 5] = ["GPU-a", "GPU-b", "GPU-c", "GPU-d::0", "GPU-d::1"];
const METRICS: [&str; 3] = [
    "bailiff_gpu_allocation_info",
    "bailiff_allocated_gpu_seconds_total",
    "bailiff_gpu_unallocated_processes",
];

/// Each process is the only one of a pod in namespace `team`; 4103 is on no GPU.
const PODS: [(u32, &str); 4] = [(4100, "trainer"), (4101, "notebook"), (4102, "intruder"), (4103, "waiting")];

fn uid(pid: u32) -> String {
    format!("9c5b4a5e-7d1f-4f0e-9a3b-00000000{pid}")
}

fn container(pid: u32) -> String {
    format!("{pid:064x}")
}

struct Node {
    kubelet: Kubelet,
    exporter: Exporter,
    procfs: Procfs,
    _scenario: Scenario,
}

impl Node {
    fn start(answers: &Value, more: &[&str]) -> Self {
        let (kubelet, scenario) = (Kubelet::start(answers), Scenario::new(GPUS));
        let procfs = Procfs::new();
        for (pid, pod) in PODS {
            kubelet.add_pod(pod, &uid(pid), &container(pid));
            procfs.add(&Process { cgroup: cgroup(pid), ..Process::new(pid) });
        }
        let procfs_flag = format!("--procfs={}", procfs.path().display());
        let flags = kubelet.flags();
        let flags: Vec<&str> = flags
            .iter()
            .map(String::as_str)
            .chain([procfs_flag.as_str()])
            .chain(more.iter().copied())
            .collect();
        Self { exporter: Exporter::start(&scenario, &flags), kubelet, procfs, _scenario: scenario }
    }

    /// Waits until the source has this fault, or none, and returns the page.
    fn until_source(&self, fault: Option<&str>) -> Page {
        let up = |page: &Page| page.value("bailiff_source_up", &[("source", "pod_resources")]);
        let why =
            |page: &Page| page.label("bailiff_source_fault_info", &[("source", "pod_resources")], "reason");
        self.exporter.until("the state of the source", |page| {
            let expected = Some(if fault.is_some() { 0.0 } else { 1.0 });
            (up(page) == expected && why(page).as_deref() == fault).then(|| page.clone())
        })
    }

    /// Waits for the source to be down, and checks that nothing of it is published and everything else is.
    fn until_down(&self, fault: &str) {
        let page = self.until_source(Some(fault));
        for metric in METRICS {
            assert_eq!(page.all(metric, &[]).count(), 0, "{fault}: {metric}");
        }
        assert_eq!(page.value("bailiff_source_up", &[("source", "nvml")]), Some(1.0), "{fault}");
        self.exporter.next();
    }
}

fn cgroup(pid: u32) -> String {
    let uid = uid(pid).replace('-', "_");
    format!("0::/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{}.scope\n", container(pid))
}

fn usual() -> Value {
    let pods = [
        pod("trainer", &["GPU-a"]),
        pod("notebook", &["GPU-b"]),
        pod("waiting", &["GPU-d::0"]),
        pod("finished", &["GPU-b"]),
    ];
    answers(&pods, &ALLOCATABLE)
}

/// Returns the seconds of a pod in each state that occurred.
fn states(page: &Page, pod: &str) -> BTreeSet<String> {
    let labels = [("pod", pod)];
    let seconds = page.all("bailiff_allocated_gpu_seconds_total", &labels);
    seconds.filter(|(_, seconds)| *seconds > 0.0).map(|(labels, _)| labels["state"].clone()).collect()
}

#[test]
fn allocated_gpus_have_the_state_of_their_pods() {
    let node = Node::start(&usual(), &[]);
    let page = node.exporter.until("every pod has a state", |page| {
        let expected = [("trainer", "busy"), ("notebook", "idle"), ("waiting", "no_process")];
        expected.iter().all(|(pod, state)| states(page, pod).contains(*state)).then(|| page.clone())
    });
    let labels = [
        ("gpu", "3"),
        ("gpu_uuid", "GPU-d"),
        ("namespace", "team"),
        ("pod", "waiting"),
        ("container", "main"),
        ("resource", "nvidia.com/gpu"),
        ("shared", "true"),
    ];
    assert_eq!(page.value("bailiff_gpu_allocation_info", &labels), Some(1.0));
    assert_eq!(page.all("bailiff_gpu_allocation_info", &[]).count(), 3);
    assert_eq!(page.value("bailiff_gpu_allocations_unattributed", &[("reason", "not_running")]), Some(1.0));
    for (gpu, processes) in [("0", 0.0), ("1", 0.0), ("2", 1.0), ("3", 0.0)] {
        assert_eq!(
            page.value("bailiff_gpu_unallocated_processes", &[("gpu", gpu)]),
            Some(processes),
            "{gpu}"
        );
    }
    // The pod ends, and its GPU is free, before the kubelet says so.
    node.procfs.remove(4103);
    node.exporter.until("the pod is gone", |page| {
        (page.value("bailiff_gpu_allocations_unattributed", &[("reason", "not_running")])? == 2.0)
            .then_some(())
    });
    assert_eq!(node.exporter.page().all("bailiff_gpu_allocation_info", &[("pod", "waiting")]).count(), 0);
    let (list, allocatable) = (node.kubelet.calls("List"), node.kubelet.calls("GetAllocatableResources"));
    assert!(allocatable >= (list / 10).max(1) && allocatable <= list / 10 + 1, "{allocatable} of {list}");
}

#[test]
fn kubelet_that_ends_hangs_or_is_replaced_is_down_until_it_answers() {
    let mut node = Node::start(&usual(), &[]);
    node.until_source(None);
    node.kubelet.stop();
    node.until_down("unreachable");
    node.exporter.until_logged("cannot read the devices of pods");
    node.kubelet.restart();
    node.until_source(None);
    node.exporter.until_logged("the kubelet answers again");
    let mut hangs = usual();
    hangs["hang"] = true.into();
    node.kubelet.answer(&hangs);
    node.until_down("timeout");
    node.kubelet.answer(&usual());
    let page = node.until_source(None);
    assert_eq!(page.all("bailiff_gpu_allocation_info", &[]).count(), 3);
}

#[test]
fn invalid_answers_are_errors_and_large_ones_are_read() {
    let node = Node::start(&usual(), &[]);
    let with = |key: &str, value: Value| {
        let mut answers = usual();
        answers[key] = value;
        answers
    };
    let pods = |count| answers(&vec![json!({}); count], &ALLOCATABLE);
    let cases = [
        (with("raw", "0a05".into()), Some("error")),
        (with("pad", (15 << 20).into()), None),
        (with("pad", (17 << 20).into()), Some("error")),
        (with("raw", "ffffffffffffffffffffff".into()), Some("error")),
        (pods(4096), None),
        (pods(4097), Some("error")),
        (with("status", "UNIMPLEMENTED".into()), Some("error")),
        (usual(), None),
        (with("status", "PERMISSION_DENIED".into()), Some("not_permitted")),
        (with("status", "UNAVAILABLE".into()), Some("unreachable")),
        (with("raw", "".into()), None),
    ];
    for (answers, fault) in cases {
        node.kubelet.answer(&answers);
        match fault {
            Some(fault) => node.until_down(fault),
            None => drop(node.until_source(None)),
        }
    }
    assert_eq!(node.exporter.page().all("bailiff_gpu_allocation_info", &[]).count(), 0, "the list is empty");
}

#[test]
fn devices_without_a_valid_name_or_gpu_are_counted_and_attributed_to_none() {
    let mut hostile = pod("trainer", &["GPU-a"]);
    hostile["namespace"] = "team\"} 1\nbailiff_gpu_up 0".into();
    let long = "a".repeat(300);
    let pods = [
        hostile,
        pod("../../etc", &["GPU-a"]),
        pod(&long, &["GPU-a"]),
        pod("notebook", &["GPU-gone", "7", &long, "GPU-b", "GPU-b::0"]),
        pod("waiting", &["GPU-d::1"]),
        pod("waiting", &["GPU-d::0"]),
    ];
    let mut answers = answers(&pods, &ALLOCATABLE);
    let claim = json!({"driver_name": "gpu.nvidia.com", "pool_name": "node-1", "device_name": "gpu-0"});
    let claims = json!([{"claim_name": "c", "claim_namespace": "team", "claim_resources": [claim]}]);
    answers["list"]["pod_resources"][4]["containers"][0]["dynamic_resources"] = claims;
    let node = Node::start(&answers, &[]);
    node.until_source(None);
    let page = node.exporter.next();
    let count = |reason| page.value("bailiff_gpu_allocations_unattributed", &[("reason", reason)]);
    let found = ["invalid_name", "not_listed", "unknown_id", "conflict"].map(count);
    assert_eq!(found, [4.0, 1.0, 1.0, 2.0].map(Some));
    let pods: BTreeSet<String> =
        page.all("bailiff_gpu_allocation_info", &[]).map(|(labels, _)| labels["pod"].clone()).collect();
    assert_eq!(pods, ["notebook", "waiting"].map(str::to_owned).into());
    assert_eq!(states(&page, "waiting"), BTreeSet::from(["unknown".to_owned()]), "it is listed twice");
    assert_eq!(page.all("bailiff_allocated_gpu_seconds_total", &[("pod", "notebook")]).count(), 0);
    assert_eq!(page.all("bailiff_gpu_unallocated_processes", &[("gpu", "0")]).count(), 0);
    let labels = [("driver", "gpu.nvidia.com"), ("pool", "node-1"), ("device", "gpu-0"), ("pod", "waiting")];
    assert_eq!(page.value("bailiff_dra_allocation_info", &labels), Some(1.0));
    assert_eq!(page.value("bailiff_gpu_up", &[("gpu", "0")]), Some(1.0));
}

#[test]
fn exporter_asks_the_kubelet_as_root_while_another_user_serves() {
    let node = Node::start(&usual(), &["--web.user=65532"]);
    set_permissions(node.kubelet.socket().parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
    let before = node.kubelet.calls("List");
    node.exporter.until("another call", |_| (node.kubelet.calls("List") > before + 2).then_some(()));
    assert_eq!(node.until_source(None).all("bailiff_gpu_allocation_info", &[]).count(), 3);
}

#[test]
fn kubelet_is_not_asked_by_default() {
    let (kubelet, scenario) = (Kubelet::start(&usual()), Scenario::new(GPUS));
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.next();
    assert_eq!(page.all("bailiff_source_up", &[("source", "pod_resources")]).count(), 0);
    assert_eq!(kubelet.calls("List"), 0);
}
