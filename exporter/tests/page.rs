//! Tests the metrics page: what it contains, what it does not contain, and that no name can break
//! it.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot continue fails")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "figures of tests are small"
)]

#[path = "made_up/mod.rs"]
mod made_up;
#[path = "made_up/parse.rs"]
mod parse;

use std::collections::BTreeSet;

use bailiff_exporter::metrics::{FAMILIES, OWN_PROCESS};
use bailiff_exporter::page::{self, Content, Format};
use bailiff_exporter::selection::Selection;
use bailiff_snapshot::{
    Claim, Entry, Fault, GpuSample, GpuState, Health, Kinds, Mps, MpsDaemon, PidNamespace, PoolGpu,
    ProcessKey, Sample, Seen, Snapshot,
};
use made_up::{
    GIB, entry, facts, found, gpu, large, motley, pool, sample, small, walk, with_pods, with_slurm,
    without_jobs,
};
use parse::{Page, parse};
use proptest::prelude::*;

fn written(snapshot: &Snapshot, most: usize, format: Format) -> String {
    let selection = Selection::of(snapshot, most);
    let dropped = selection.left_out_of(snapshot.processes.len());
    let mut out = Vec::new();
    let content = Content { snapshot, selection: &selection, dropped };
    page::write(Some(content), format, &mut out).expect("writing to memory cannot fail");
    page::write_tail(&page::Moment::default(), format, &mut out).expect("writing to memory cannot fail");
    String::from_utf8(out).expect("a page is text")
}

fn page(snapshot: &Snapshot) -> Page {
    parse(&written(snapshot, usize::MAX, Format::Text))
}

/// Returns the family of a sample. The samples of a histogram have the names of its parts.
fn family_of(sample: &parse::Sample) -> &str {
    let histogram = "bailiff_lease_wait_seconds";
    if sample.name.starts_with(histogram) { histogram } else { &sample.name }
}

/// Returns the names of the samples that have this label.
fn with<'a>(page: &'a Page, label: &str, value: &str) -> BTreeSet<&'a str> {
    let samples = page.samples.iter().filter(|sample| sample.labels.get(label).is_some_and(|v| v == value));
    samples.map(|sample| sample.name.as_str()).collect()
}

const FIRST: [(&str, &str); 1] = [("gpu", "0")];
const OF_ALICE: [(&str, &str); 2] = [("gpu", "0"), ("pid", "41")];

#[test]
fn both_formats_have_the_same_samples() {
    let snapshot = walk([motley(1), motley(2)]);
    let text = parse(&written(&snapshot, usize::MAX, Format::Text));
    let open = written(&snapshot, usize::MAX, Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n"));
    assert_eq!(text.samples, parse(&open).samples);
}

#[test]
fn every_label_stands_in_the_table_and_most_families_on_this_page() {
    let page = page(&walk([without_jobs(with_slurm(motley(1))), with_slurm(motley(2))].map(with_pods)));
    for sample in &page.samples {
        let family = FAMILIES.iter().chain(OWN_PROCESS).find(|family| family.name == family_of(sample));
        let labels: Vec<&str> =
            family.expect("the metric is in the table").labels.split_ascii_whitespace().collect();
        let stands = |label: &String| labels.contains(&label.as_str()) || label == "le";
        assert!(sample.labels.keys().all(stands), "{sample:?}");
    }
    let seen: BTreeSet<&str> = page.samples.iter().map(family_of).collect();
    let missing: Vec<&str> =
        FAMILIES.iter().map(|family| family.name).filter(|name| !seen.contains(name)).collect();
    let at_requests = [
        "bailiff_snapshot_age_seconds",
        "bailiff_http_requests_total",
        "bailiff_http_connections_refused_total",
        "bailiff_stream_clients",
        "bailiff_record_write_failures_total",
    ];
    assert_eq!(missing, at_requests);
}

#[test]
fn health_is_published_as_it_was_reported() {
    let page = page(&walk([motley(1), motley(2)]));
    let of = |gpu: &str, name: &str, label, value| page.value(name, &[("gpu", gpu), (label, value)]);
    assert_eq!(of("0", "bailiff_gpu_recovery_action", "action", "node_reboot"), Some(1.0));
    assert_eq!(of("0", "bailiff_gpu_clock_event", "reason", "sw_thermal"), Some(1.0));
    assert_eq!(of("0", "bailiff_gpu_clock_event", "reason", "none"), None);
    assert_eq!(of("0", "bailiff_gpu_ecc_errors_total", "kind", "corrected"), Some(3.0));
    assert_eq!(of("0", "bailiff_gpu_remapped_rows", "kind", "uncorrected"), Some(0.0));
    assert_eq!(of("0", "bailiff_gpu_retired_pages", "kind", "corrected"), Some(2.0));
    assert_eq!(page.value("bailiff_gpu_row_remap_pending", &FIRST), Some(1.0));
    assert_eq!(page.value("bailiff_gpu_row_remap_failed", &FIRST), Some(0.0));
    for (xid, class) in [("13", "application"), ("79", "reboot")] {
        let labels = [("gpu", "0"), ("xid", xid), ("class", class)];
        assert_eq!(page.value("bailiff_gpu_xid_info", &labels), Some(1.0));
    }
    let mut healthy = gpu(1, 0, vec![]);
    let before = with(&self::page(&walk([sample(1, vec![healthy.clone()], [].into())])), "gpu", "0").len();
    healthy.telemetry.health = Health::default();
    let after = with(&self::page(&walk([sample(1, vec![healthy], [].into())])), "gpu", "0").len();
    assert_eq!(before - after, 6, "families of a healthy GPU; two of them have two series");
}

#[test]
fn gpu_allocated_by_slurm_has_its_state_and_memory_elsewhere_is_reported() {
    let page = page(&walk([without_jobs(with_slurm(motley(1))), with_slurm(motley(2))]));
    let job = ("slurm_job", "4711");
    let labels = [job, ("user", "carol"), ("gpu", "4"), ("state", "never_used")];
    assert_eq!(page.value("bailiff_slurm_gpu_allocation_info", &labels), Some(1.0));
    assert_eq!(page.value("bailiff_slurm_gpu_unused_seconds", &[job, ("gpu", "4")]), Some(0.0));
    let elsewhere = [job, ("gpu", "0")];
    assert_eq!(page.value("bailiff_slurm_gpu_unallocated_bytes", &elsewhere), Some(1_073_741_824.0));
}

#[test]
fn gpu_allocated_by_the_kubelet_has_its_time_and_others_are_counted() {
    let page = page(&walk([motley(1), motley(2)].map(with_pods)));
    let labels = |gpu| {
        let of_pod = [("namespace", "research"), ("pod", "trainer-1"), ("container", "main")];
        [&of_pod[..], &[("gpu", gpu), ("resource", "nvidia.com/gpu")]].concat()
    };
    let info = |gpu, shared| {
        page.value("bailiff_gpu_allocation_info", &[&labels(gpu)[..], &[("shared", shared)]].concat())
    };
    assert_eq!((info("0", "false"), info("4", "true")), (Some(1.0), Some(1.0)));
    let seconds = |gpu, state| {
        page.value("bailiff_allocated_gpu_seconds_total", &[&labels(gpu)[..], &[("state", state)]].concat())
    };
    // GPU 0 has a process that is not in /proc.
    assert_eq!(
        ["busy", "idle", "no_process", "unknown"].map(|state| seconds("0", state)),
        [0.0, 0.0, 0.0, 5.0].map(Some)
    );
    assert_eq!(seconds("4", "no_process"), Some(1.25));
    assert_eq!(page.value("bailiff_gpu_allocations_unattributed", &[("reason", "not_listed")]), Some(1.0));
    assert_eq!(page.value("bailiff_gpu_unallocated_processes", &[("gpu", "4")]), Some(0.0));
    assert!(!with(&page, "gpu", "0").contains("bailiff_gpu_unallocated_processes"));
    let device =
        [("driver", "gpu.nvidia.com"), ("pool", "node-1"), ("device", "gpu-0"), ("pod", "trainer-1")];
    assert_eq!(page.value("bailiff_dra_allocation_info", &device), Some(1.0));
    let pods = parse(&written(&walk([motley(1), motley(2)]), usize::MAX, Format::Text));
    assert!(pods.samples.iter().all(|sample| !sample.name.contains("allocat")), "the kubelet was not asked");
}

#[test]
fn a_gpu_that_does_not_answer_is_down_and_nothing_else() {
    let page = page(&walk([motley(1), motley(2)]));
    assert_eq!(page.value("bailiff_gpu_up", &[("gpu", "3")]), Some(0.0));
    assert_eq!(page.value("bailiff_gpu_fault_info", &[("gpu", "3"), ("reason", "lost")]), Some(1.0));
    let present = with(&page, "gpu", "3");
    assert_eq!(present, BTreeSet::from(["bailiff_gpu_info", "bailiff_gpu_up", "bailiff_gpu_fault_info"]));
}

#[test]
fn daemons_of_one_directory_have_one_series() {
    let mut sample = small(1);
    let none = MpsDaemon { pipe_directory: None, ..made_up::mps::daemon(84, "") };
    let long = |end| format!("/{}{end}", "x".repeat(200));
    let daemons = vec![
        made_up::mps::daemon(81, "/a"),
        made_up::mps::daemon(82, "/a"),
        made_up::mps::daemon(83, &long("a")),
        made_up::mps::daemon(85, &long("b")),
        none.clone(),
        MpsDaemon { process: ProcessKey { pid: 86, ..none.process }, ..none },
    ];
    sample.mps = Some(Mps { daemons, servers: Vec::new() });
    let page = page(&walk([sample]));
    let named = |name: &str| page.samples.iter().filter(|sample| family_of(sample) == name).count();
    assert_eq!((named("bailiff_mps_control_info"), named("bailiff_mps_control_up")), (6, 3));
}

/// Any user can name any directory.
#[test]
fn daemon_that_only_claims_a_directory_is_not_reported_as_its_daemon() {
    for (owns_directory, claims) in [(true, false), (false, true)] {
        let mut sample = small(1);
        let mut mps = made_up::mps::mps(1);
        let log = mps.daemons.swap_remove(0).log;
        let claiming = made_up::mps::daemon(88, "/run/gone");
        mps.daemons = vec![MpsDaemon { uid: Some(1001), owns_directory, log, ..claiming }];
        sample.mps = Some(mps);
        let page = page(&walk([sample]));
        let value = |name: &str| page.value(name, &[("pipe_directory", "/run/gone")]);
        let (up, figure) = if claims { (Some(0.0), None) } else { (Some(1.0), Some(1.0)) };
        assert_eq!(value("bailiff_mps_control_info"), Some(1.0));
        assert_eq!(value("bailiff_mps_control_up"), up, "a server of an exited daemon is there");
        assert_eq!(value("bailiff_mps_control_start_time_seconds").is_some(), !claims);
        assert_eq!(value("bailiff_mps_server_starts_total"), figure);
        assert_eq!(value("bailiff_mps_log_unparsed_lines_total").is_some(), !claims);
    }
}

#[test]
fn what_the_driver_does_not_say_is_absent() {
    let page = page(&walk([motley(1), motley(2)]));
    let [why, memory] = ["bailiff_gpu_memory_unreleased_unknown_info", "bailiff_gpu_memory_unknown_info"];
    assert_eq!(with(&page, "gpu", "1"), BTreeSet::from(["bailiff_gpu_info", "bailiff_gpu_up", why, memory]));
    assert_eq!(page.value(memory, &[("gpu", "1"), ("reason", "own_cgroup_limited")]), Some(1.0));
    assert_eq!(page.value(why, &[("gpu", "1"), ("reason", "memory_unknown")]), Some(1.0));
    assert_eq!(page.value("bailiff_process_parent_info", &[("pid", "46"), ("parent", "1")]), Some(1.0));
    let first = walk([small(1)]);
    let first = parse(&written(&first, usize::MAX, Format::Text));
    for name in [
        "bailiff_process_gpu_utilization_ratio",
        "bailiff_process_gpu_idle_seconds",
        "bailiff_idle_memory_bytes",
    ] {
        assert_eq!(first.values(name), [], "{name} must be absent in the first sample");
    }
    assert_eq!(first.values("bailiff_process_gpu_busy_seconds_total"), []);
    let why = [("pid", "41"), ("reason", "first_sample")];
    assert_eq!(first.value("bailiff_process_gpu_utilization_unknown_info", &why), Some(1.0));
}

#[test]
fn an_idle_process_is_observed_idle() {
    let page = page(&walk([small(1), small(2), small(3)]));
    for engine in ["sm", "memory", "encoder", "decoder"] {
        let labels = [OF_ALICE.as_slice(), &[("engine", engine)]].concat();
        assert_eq!(page.value("bailiff_process_gpu_utilization_ratio", &labels), Some(0.0), "{engine}");
    }
    assert_eq!(page.value("bailiff_process_gpu_idle_seconds", &OF_ALICE), Some(10.0));
    assert_eq!(page.value("bailiff_process_gpu_busy_seconds_total", &OF_ALICE), Some(0.0));
    let of_user = [("gpu", "0"), ("user", "alice")];
    assert_eq!(page.value("bailiff_idle_memory_bytes", &of_user), Some(GIB as f64));
    assert_eq!(page.value("bailiff_idle_gpu_seconds_total", &[("user", "alice")]), Some(10.0));
    assert_eq!(page.value("bailiff_unknown_gpu_seconds_total", &[("user", "alice")]), Some(0.0));
}

#[test]
fn the_parts_sum_up_to_the_total() {
    let page = page(&walk([small(1)]));
    let parts = page.values("bailiff_gpu_memory_parts_bytes");
    let sum: i128 = parts.iter().map(|(_, bytes)| *bytes as i128).sum();
    assert_eq!((parts.len(), sum), (6, i128::from(141 * GIB)));
    let motley = self::page(&walk([motley(1), motley(2)]));
    assert_eq!(
        motley.value("bailiff_gpu_memory_unaccounted_bytes", &FIRST),
        None,
        "the memory of one holder is unknown"
    );
}

#[test]
fn a_sum_with_an_unknown_part_is_absent() {
    let page = page(&walk([motley(1), motley(2)]));
    let of = |user| [("gpu", "0"), ("user", user)];
    assert_eq!(page.value("bailiff_user_gpu_memory_bytes", &of("1234")), None);
    assert_eq!(page.value("bailiff_user_gpu_processes", &of("1234")), Some(1.0));
    assert_eq!(page.value("bailiff_user_gpu_memory_bytes", &of("alice")), Some(2.0 * GIB as f64));
    assert_eq!(page.value("bailiff_idle_memory_bytes", &of("alice")), Some(0.0), "observed busy");
    assert_eq!(page.value("bailiff_idle_memory_bytes", &[("gpu", "2:0"), ("user", "alice")]), None, "MIG");
}

#[test]
fn unlisted_processes_are_counted_per_gpu() {
    let page = page(&walk([motley(1), motley(2)]));
    assert_eq!(page.value("bailiff_gpu_unlisted_processes", &FIRST), Some(2.0));
    assert_eq!(
        page.value("bailiff_gpu_unlisted_processes", &[("gpu", "2")]),
        Some(1.0),
        "the count is known from the instances"
    );
    assert_eq!(
        page.value("bailiff_gpu_unlisted_processes", &[("gpu", "1")]),
        None,
        "the GPU did not report a list"
    );
    let mut services = motley(1);
    if let Some(device_processes) = &mut services.device_processes {
        for (device_process, uid) in device_processes
            .processes
            .iter_mut()
            .filter(|process| process.minors.contains(&0))
            .zip([0, 143, 1000])
        {
            (device_process.comm, device_process.uid) = ("nvidia-persiste".into(), Some(uid));
        }
    }
    let page = self::page(&walk([services]));
    assert_eq!(
        page.value("bailiff_gpu_unlisted_processes", &FIRST),
        Some(1.0),
        "a user's own process is not a service"
    );
    let mut elsewhere = motley(1);
    elsewhere.namespace = PidNamespace::Other;
    assert_eq!(self::page(&walk([elsewhere])).values("bailiff_gpu_unlisted_processes"), []);
}

#[test]
fn beyond_the_limit_processes_are_summed_up_exactly() {
    let held = [(11, Some(3)), (12, None), (13, Some(9)), (14, Some(9)), (15, Some(1))];
    let entries = held.iter().map(|(pid, memory)| entry(*pid, *memory)).collect();
    let processes = held.iter().map(|(pid, _)| found(facts(*pid, "alice", "x"))).collect();
    let snapshot = walk([sample(1, vec![gpu(1, 0, entries)], processes)]);
    let page = parse(&written(&snapshot, 2, Format::Text));
    let shown: Vec<&str> =
        page.values("bailiff_process_info").iter().map(|(labels, _)| labels["pid"].as_str()).collect();
    assert_eq!(
        shown,
        ["12", "13"],
        "the holder that may hold any amount comes first, then the largest with the lowest pid"
    );
    assert_eq!(page.value("bailiff_gpu_other_processes", &FIRST), Some(3.0));
    assert_eq!(page.value("bailiff_gpu_other_processes_memory_bytes", &FIRST), Some(13.0));
    assert_eq!(page.value("bailiff_processes_dropped_total", &[]), Some(3.0));
    assert_eq!(page.value("bailiff_user_gpu_processes", &FIRST), Some(5.0), "the sums include all processes");
}

#[test]
fn gpus_without_uuid_have_distinct_series() {
    let lost = |index| GpuSample::faulty(bailiff_snapshot::About::unnamed(index), Fault::Timeout);
    let page = page(&walk([sample(1, vec![lost(0), lost(1)], [].into())]));
    assert_eq!(page.values("bailiff_gpu_up").len(), 2);
}

#[test]
fn a_full_node_is_in_order() {
    let snapshot = walk([large(1, 8, 100), large(2, 8, 100)]);
    let page = parse(&written(&snapshot, usize::MAX, Format::OpenMetrics));
    assert_eq!(page.values("bailiff_process_gpu_memory_bytes").len(), 800);
}

/// Returns a page from two samples of a GPU in a pool, with process 41 on it. `change` changes the
/// samples.
fn of_pool(change: impl Fn(u64, &mut Sample)) -> Page {
    page(&walk([small(1), small(2)].map(|mut sample| {
        let mut leases = pool(sample.seq);
        leases.gpus.truncate(1);
        sample.leases = Some(leases);
        change(sample.seq, &mut sample);
        sample
    })))
}

/// Changes a sample: the GPU is idle in the pool, process 41 has no lease, and all facts are known.
fn stolen(sample: &mut Sample) {
    let leases = sample.leases.as_mut().expect("the sample contains a pool");
    (leases.gpus[0].gpu_state, leases.gpus[0].lease) = (GpuState::Idle, None);
    let facts = sample.processes.get_mut(&41).and_then(Seen::found_mut).expect("the process is present");
    (facts.claim, facts.ancestors) = (Claim::Nothing, Some(Vec::new()));
}

/// A change to a sample of a pool, with the sample's number.
type Change = fn(u64, &mut Sample);

fn unreserved(change: Change) -> Option<f64> {
    of_pool(change).value("bailiff_lease_unreserved_use", &FIRST)
}

fn listed(sample: &mut Sample, entries: Option<Vec<Entry>>) {
    sample.gpus[0].entries = entries;
}

#[test]
fn use_without_a_lease_is_reported() {
    let cases: [(&str, Change, f64); 4] = [
        ("leased to it", |_, _| {}, 0.0),
        ("a stranger", |_, sample| stolen(sample), 1.0),
        (
            "no process is on it",
            |_, sample| {
                stolen(sample);
                listed(sample, Some(vec![]));
            },
            0.0,
        ),
        (
            "a desktop's picture",
            |_, sample| {
                stolen(sample);
                let kinds = Kinds { graphics: true, ..Kinds::default() };
                listed(sample, Some(vec![Entry { kinds, ..entry(41, Some(1)) }]));
            },
            0.0,
        ),
    ];
    for (name, change, expected) in cases {
        assert_eq!(unreserved(change), Some(expected), "{name}");
    }
}

#[test]
fn uncertain_use_without_a_lease_is_absent() {
    let cases: [(&str, Change); 6] = [
        ("it came since the previous sample", |seq, sample| {
            stolen(sample);
            if seq == 1 {
                listed(sample, Some(vec![]));
            }
        }),
        ("the pool has it idle since the previous sample", |seq, sample| {
            if seq == 2 {
                stolen(sample);
            }
        }),
        ("another process on it is in another namespace", |_, sample| {
            stolen(sample);
            listed(sample, Some(vec![entry(41, Some(1)), entry(0, Some(1))]));
        }),
        ("its environment is not ours to read", |_, sample| {
            let leases = sample.leases.as_mut().expect("the sample contains a pool");
            leases.held[0].holder = Some(ProcessKey { pid: 40, start_ticks: 1 });
        }),
        ("a client of GPU.py has it", |_, sample| {
            stolen(sample);
            sample.leases.as_mut().expect("the sample contains a pool").gpus[0].gpu_state = GpuState::Legacy;
        }),
        ("the driver gives no list", |_, sample| {
            stolen(sample);
            listed(sample, None);
        }),
    ];
    for (name, change) in cases {
        assert_eq!(unreserved(change), None, "{name}");
    }
}

#[test]
fn pool_metrics_are_absent_without_redis() {
    let page = page(&walk([motley(1), motley(2)]));
    assert_eq!(page.value("bailiff_lease_gpus", &[("state", "leased")]), Some(1.0));
    assert_eq!(page.value("bailiff_lease_gpus", &[("state", "quarantined")]), Some(0.0));
    let held = [("gpu", "0"), ("user", "alice"), ("mode", "run")];
    assert_eq!(page.value("bailiff_lease_held", &held), Some(1.0));
    let legacy = [("gpu", "9"), ("gpu_uuid", "GPU-elsewhere"), ("mode", "legacy")];
    assert_eq!(page.value("bailiff_lease_held", &legacy), Some(1.0), "the GPU is labelled as in the pool");
    assert_eq!(page.value("bailiff_lease_age_seconds", &FIRST), Some(10.5));
    assert_eq!(page.value("bailiff_lease_idle_seconds", &FIRST), Some(0.0), "alice is busy");
    assert_eq!(page.value("bailiff_lease_queue_oldest_seconds", &[]), Some(1.5));
    assert_eq!(page.value("bailiff_lease_wait_seconds_bucket", &[("le", "1.0")]), Some(2.0));
    assert_eq!(page.value("bailiff_lease_wait_seconds_count", &[]), Some(3.0));
    assert_eq!(
        page.value("bailiff_lease_legacy_suspect", &[]),
        Some(0.0),
        "the lease's processes are unknown"
    );
    let lost = of_pool(|_, sample| {
        sample.gpus[0].entries = Some(vec![]);
        let leases = sample.leases.as_mut().expect("the sample contains a pool");
        leases.gpus[0] = PoolGpu { id: "0".into(), uuid: None, ..pool(1).gpus[2].clone() };
    });
    assert_eq!(lost.value("bailiff_lease_legacy_suspect", &[]), Some(1.0));
    let silent = of_pool(|_, sample| sample.leases = None);
    assert!(!silent.samples.iter().any(|sample| sample.name.starts_with("bailiff_lease_")));
}

#[test]
fn no_name_in_the_pool_makes_a_series_twice() {
    let twice = of_pool(|_, sample| {
        let leases = sample.leases.as_mut().expect("the sample contains a pool");
        let gpu = leases.gpus[0].clone();
        let uuid = sample.gpus[0].about.id.as_ref().map(|id| id.0.clone());
        leases.gpus.extend([PoolGpu { id: "7".into(), uuid, ..gpu.clone() }, gpu]);
    });
    assert_eq!(twice.values("bailiff_lease_held").len(), 1);
    assert_eq!(twice.value("bailiff_lease_gpus", &[("state", "leased")]), Some(3.0));
}

proptest! {
    #[test]
    fn no_name_breaks_the_page(names in proptest::collection::vec(any::<String>(), 8)) {
        let [user, comm, container, pod, job, gpu_name, command, clock] = names.as_slice() else {
            panic!("eight samples were requested")
        };
        let mut hostile = facts(41, user, comm);
        hostile.command = Some(command.clone());
        hostile.place.container = Some(container.clone());
        hostile.place.pod = Some(pod.clone());
        hostile.place.slurm_job = Some(job.clone());
        let mut gpu = gpu(1, 0, vec![entry(41, Some(1)), entry(42, Some(1))]);
        gpu.about.name = Some(gpu_name.clone());
        gpu.telemetry.clocks = [(clock.clone(), 1)].into();
        let processes = [found(hostile), found(facts(42, &format!("{user}x"), comm))].into();
        let snapshot = walk([sample(1, vec![gpu], processes)]);
        for format in [Format::Text, Format::OpenMetrics] {
            let page = parse(&written(&snapshot, usize::MAX, format));
            let long = |value: &String| value.len() > 128 + '…'.len_utf8();
            prop_assert!(!page.samples.iter().any(|sample| sample.labels.values().any(long)));
            prop_assert_eq!(page.values("bailiff_process_info").len(), 2);
        }
    }
}
