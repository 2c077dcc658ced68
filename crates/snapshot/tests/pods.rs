//! Tests of GPUs that are allocated to pods: which evidence makes one busy, idle, without processes or unknown, which devices
//! are attributed, and which processes have no allocation.

#![expect(
    clippy::expect_used,
    clippy::float_cmp,
    reason = "a test may fail loudly, and compares exact seconds"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::pod_resources::{
    ContainerName, DynamicDevice, LivePod, PodDevice, PodGpuState, PodGpus, PodList, PodResources,
};
use bailiff_snapshot::{
    About, Facts, Fault, GpuId, GpuSample, MigIds, PidNamespace, Place, ProcessKey, Role, Sample, Snapshot,
    State,
};
use snapshot_fixtures::sample::{self as fixtures, entry, found, gpu, reading, used, walk};

const SECONDS: u64 = 10;
const UID: &str = "9c5b4a5e-7d1f-4f0e-9a3b-00000000000";

fn name(pod: &str, container: &str) -> ContainerName {
    ContainerName::new("team", pod, container).expect("valid names")
}

fn device(pod: &str, id: &str) -> PodDevice {
    PodDevice {
        container: name(pod, "main"),
        resource: "nvidia.com/gpu".into(),
        id: id.into(),
        is_only: true,
        is_ambiguous: false,
    }
}

fn live(pods: &[&str]) -> Vec<LivePod> {
    let pod = |(n, pod): (usize, &&str)| LivePod {
        uid: format!("{UID}{n}"),
        name: Some(("team".into(), (*pod).into())),
    };
    pods.iter().enumerate().map(pod).collect()
}

/// An answer with these devices, whose pods `a` and `b` run.
fn answer(devices: Vec<PodDevice>) -> PodResources {
    let allocatable = [("GPU-0", 1), ("GPU-1", 4), ("MIG-1", 1)];
    PodResources {
        boot_ms: SECONDS * 1000,
        list: PodList { devices, ..PodList::default() },
        allocatable: Some(allocatable.map(|(device, ids)| (device.to_owned(), ids)).into()),
        containers: BTreeMap::new(),
        live: Some(live(&["a", "b"])),
    }
}

/// A process of the pod, in a container with this id.
fn process(pid: u32, pod: &str, container: &str) -> Facts {
    let place = Place {
        cgroup: "/kubepods.slice/x".into(),
        container: Some(container.into()),
        pod_uid: Some(format!("{UID}0")),
        pod: Some(pod.into()),
        namespace: Some("team".into()),
        ..Place::default()
    };
    Facts { place, ..fixtures::facts(ProcessKey { pid, start_ticks: 7 }) }
}

/// Whole GPU `index` with these processes, and their utilization since the previous sample.
fn whole(seq: u64, index: u32, pids: &[(u32, u32)]) -> GpuSample {
    let samples: Vec<_> =
        pids.iter().filter(|(_, sm)| *sm > 0).map(|(pid, sm)| used(*pid, seq, *sm)).collect();
    let maximum = pids.iter().map(|(_, sm)| *sm).max().unwrap_or_default();
    let entries = pids.iter().map(|(pid, _)| entry(*pid, Some(1 << 30))).collect();
    let plain = gpu((index, &format!("GPU-{index}")), entries);
    let about = About { minor: Some(index), ..plain.about };
    GpuSample { about, reading: reading(seq, maximum, samples), ..plain }
}

fn sample(seq: u64, gpus: Vec<GpuSample>, processes: &[Facts], answer: &PodResources) -> Sample {
    let processes = processes.iter().cloned().map(found);
    let pod_resources = Some(answer.clone());
    Sample { pod_resources, ..fixtures::sample((seq, Duration::from_secs(SECONDS)), gpus, processes) }
}

/// Returns the second of two equal samples.
fn pods(gpus: impl Fn(u64) -> Vec<GpuSample>, processes: &[Facts], answer: &PodResources) -> PodGpus {
    let one = |seq| sample(seq, gpus(seq), processes, answer);
    walk([one(1), one(2)]).pods.expect("the kubelet answered")
}

fn states(pods: &PodGpus) -> Vec<&str> {
    pods.allocations.iter().map(|allocation| &*allocation.state).collect()
}

/// Returns the reasons for which devices are not attributed.
fn reasons(pods: &PodGpus) -> Vec<(&str, u64)> {
    pods.unattributed.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
}

/// Returns the number of processes without an allocation, by UUID.
fn unallocated(pods: &PodGpus) -> Vec<(&str, u64)> {
    pods.unallocated.iter().map(|row| (row.gpu_uuid.as_deref().expect("a UUID"), row.processes)).collect()
}

/// Name, utilization of listed processes, processes, and expected state.
type Case = (&'static str, Vec<(u32, u32)>, Vec<Facts>, &'static str);

#[test]
fn state_of_an_allocation_is_that_of_the_containers_processes() {
    let stopped = Facts { state: State::Stopped, ..process(42, "a", "1") };
    let outside = fixtures::facts(ProcessKey { pid: 43, start_ticks: 7 });
    let outside = Facts { place: Place { cgroup: "/x.service".into(), ..Place::default() }, ..outside };
    let nowhere =
        Facts { place: Place::default(), ..fixtures::facts(ProcessKey { pid: 43, start_ticks: 7 }) };
    let own = |pid| process(pid, "a", "1");
    let cases: [Case; 9] = [
        ("none", vec![], vec![], "no_process"),
        ("one idle", vec![(41, 0)], vec![own(41)], "idle"),
        ("one of two busy", vec![(41, 0), (42, 50)], vec![own(41), own(42)], "busy"),
        ("one stopped", vec![(41, 0), (42, 0)], vec![own(41), stopped], "unknown"),
        ("only others", vec![(43, 50)], vec![process(43, "b", "2")], "no_process"),
        ("outside pods", vec![(43, 50)], vec![outside], "no_process"),
        ("cgroup unknown", vec![(43, 50)], vec![nowhere.clone()], "unknown"),
        ("own busy, another unknown", vec![(41, 50), (43, 0)], vec![own(41), nowhere], "busy"),
        ("not in /proc", vec![(41, 0), (44, 0)], vec![own(41)], "unknown"),
    ];
    for (case, pids, processes, expected) in cases {
        let found = pods(|seq| vec![whole(seq, 0, &pids)], &processes, &answer(vec![device("a", "GPU-0")]));
        assert_eq!(states(&found), [expected], "{case}");
    }
}

#[test]
fn state_is_unknown_without_a_complete_list() {
    let answer = answer(vec![device("a", "GPU-0")]);
    let unlisted = |seq| vec![GpuSample { entries: None, ..whole(seq, 0, &[]) }];
    let down = |seq| vec![GpuSample::faulty(whole(seq, 0, &[]).about, Fault::Timeout)];
    let unnamed = |seq| vec![whole(seq, 0, &[(0, 0)])];
    for gpus in [&unlisted as &dyn Fn(u64) -> Vec<GpuSample>, &down, &unnamed] {
        let found = pods(gpus, &[], &answer);
        assert_eq!((states(&found), unallocated(&found)), (vec!["unknown"], vec![]));
    }
    let elsewhere = |seq| Sample {
        namespace: PidNamespace::Other,
        ..sample(seq, vec![whole(seq, 0, &[])], &[], &answer)
    };
    let found = walk([elsewhere(1), elsewhere(2)]).pods.expect("an answer");
    assert_eq!(states(&found), ["unknown"]);
}

#[test]
fn container_is_found_by_its_id_or_if_it_is_the_only_one() {
    let of = |device: PodDevice, containers: &[(&str, &str)]| {
        let containers = containers.iter().map(|(id, it)| ((*id).to_owned(), name("a", it))).collect();
        let answer = PodResources { containers, ..answer(vec![device]) };
        let found = pods(|seq| vec![whole(seq, 0, &[(41, 0)])], &[process(41, "a", "1")], &answer);
        (states(&found)[0].to_owned(), found.unallocated.first().map(|row| row.processes))
    };
    let one_of_two = PodDevice { is_only: false, ..device("a", "GPU-0") };
    let twice = PodDevice { is_ambiguous: true, ..device("a", "GPU-0") };
    let cases = [
        (device("a", "GPU-0"), vec![], ("idle", Some(0))),
        (one_of_two.clone(), vec![], ("unknown", None)),
        (one_of_two.clone(), vec![("1", "main")], ("idle", Some(0))),
        (one_of_two.clone(), vec![("1", "sidecar")], ("no_process", Some(1))),
        (one_of_two, vec![("2", "main")], ("unknown", None)),
        (twice.clone(), vec![], ("unknown", None)),
        (twice, vec![("1", "main")], ("unknown", None)),
    ];
    for (device, containers, (state, processes)) in cases {
        assert_eq!(of(device, &containers), (state.to_owned(), processes), "{containers:?}");
    }
}

#[test]
fn two_pods_of_a_name_that_both_run_are_not_told_apart() {
    let answer = PodResources { live: Some(live(&["a", "a"])), ..answer(vec![device("a", "GPU-0")]) };
    let idle = |seq| vec![whole(seq, 0, &[(41, 0)])];
    let found = pods(idle, &[process(41, "a", "1")], &answer);
    assert_eq!((states(&found), unallocated(&found)), (vec!["unknown"], vec![]));
    let none = |seq| vec![whole(seq, 0, &[])];
    assert_eq!(states(&pods(none, &[], &answer)), ["unknown"]);
}

#[test]
fn pod_without_processes_is_left_out_only_if_all_pods_are_known() {
    let mut nameless = live(&["b", "c"]);
    let cases = [
        (Some(live(&["a"])), vec!["no_process"], vec![]),
        (Some(live(&["b"])), vec![], vec![("not_running", 1)]),
        (Some(vec![]), vec![], vec![("not_running", 1)]),
        (None, vec!["no_process"], vec![]),
        (
            {
                nameless[1].name = None;
                Some(nameless)
            },
            vec!["no_process"],
            vec![],
        ),
    ];
    for (live, expected, dropped) in cases {
        let answer = PodResources { live: live.clone(), ..answer(vec![device("a", "GPU-0")]) };
        let found = pods(|seq| vec![whole(seq, 0, &[])], &[], &answer);
        assert_eq!((states(&found), reasons(&found)), (expected, dropped), "{live:?}");
    }
    // The GPU of a finished pod was allocated again.
    let again =
        PodResources { live: Some(live(&["b"])), ..answer(vec![device("a", "GPU-0"), device("b", "GPU-0")]) };
    let found = pods(|seq| vec![whole(seq, 0, &[])], &[], &again);
    assert_eq!((states(&found), reasons(&found)), (vec!["no_process"], vec![("not_running", 1)]));
}

/// GPU 2 in MIG mode, and its instance with two compute instances or one.
fn mig(seq: u64, compute_instances: u32) -> Vec<GpuSample> {
    let parent = GpuSample { entries: None, instances: Some(1), ..whole(seq, 2, &[]) };
    let instance = |compute: u32| {
        let plain = whole(seq, 2, &[]);
        let mig = MigIds {
            parent: parent.about.id.clone(),
            gpu_instance: Some(7),
            compute_instance: Some(compute),
        };
        let about = About {
            index: format!("2:{compute}"),
            id: Some(GpuId(format!("MIG-{}", compute + 1))),
            minor: None,
            mig: Some(mig),
            ..plain.about
        };
        GpuSample { about, ..plain }
    };
    let instances: Vec<GpuSample> = (0..compute_instances).map(instance).collect();
    std::iter::once(parent).chain(instances).collect()
}

#[test]
fn device_ids_name_only_what_the_driver_lists() {
    let cases = [
        ("GPU-0", Some("0")),
        ("GPU-1::3", Some("1")),
        ("GPU-9", None),
        ("nvidia1", Some("1")),
        ("nvidia9", None),
        ("nvidia2", Some("2")),
        ("nvidia2/gi7", Some("2:0")),
        ("nvidia2/gi7/vgpu0", Some("2:0")),
        ("nvidia2/gi8", None),
        ("nvidia1/gi7", None),
        ("MIG-1", Some("2:0")),
        ("MIG-9", None),
    ];
    let gpus = |seq, compute| [vec![whole(seq, 0, &[]), whole(seq, 1, &[])], mig(seq, compute)].concat();
    for (id, expected) in cases {
        let answer = answer(vec![device("a", id)]);
        let found = pods(|seq| gpus(seq, 1), &[], &answer);
        let indexes: Vec<&str> = found.allocations.iter().map(|it| it.gpu.as_str()).collect();
        assert_eq!(indexes, expected.into_iter().collect::<Vec<_>>(), "{id}");
        let reason = if expected.is_some() { vec![] } else { vec![("not_listed", 1)] };
        assert_eq!(reasons(&found), reason, "{id}");
    }
    let two = pods(|seq| gpus(seq, 2), &[], &answer(vec![device("a", "nvidia2/gi7")]));
    assert_eq!(reasons(&two), [("not_listed", 1)], "it is not known which compute instance it is");
    let odd = pods(|seq| gpus(seq, 1), &[], &answer(vec![device("a", "odd")]));
    assert_eq!((states(&odd), reasons(&odd)), (vec![], vec![("unknown_id", 1)]));
    let mut invalid = answer(vec![]);
    invalid.list.invalid = 2;
    assert_eq!(reasons(&pods(|seq| gpus(seq, 1), &[], &invalid)), [("invalid_name", 2)]);
}

#[test]
fn replicas_have_a_share_and_contradictions_have_none() {
    let of = |devices: &[(&str, &str)]| {
        let answer = answer(devices.iter().map(|(pod, id)| device(pod, id)).collect());
        let found = pods(|seq| vec![whole(seq, 0, &[]), whole(seq, 1, &[])], &[], &answer);
        let rows = found.allocations.iter().map(|it| (it.share, it.shared, it.state.to_string()));
        (rows.collect::<Vec<_>>(), reasons(&found).first().map(|(_, count)| *count))
    };
    let fine = |share, shared| (Some(share), shared, "no_process".to_owned());
    let unknown = |shared| (None, shared, "unknown".to_owned());
    let cases = [
        (vec![("a", "GPU-0")], vec![fine(1.0, false)], None),
        (vec![("a", "GPU-1::0")], vec![fine(0.25, true)], None),
        (vec![("a", "GPU-1::0"), ("a", "GPU-1::2")], vec![fine(0.5, true)], None),
        (vec![("a", "GPU-1::0"), ("b", "GPU-1::1")], vec![fine(0.25, true); 2], None),
        (vec![("a", "GPU-0"), ("b", "GPU-0")], vec![unknown(false); 2], Some(2)),
        (vec![("a", "GPU-0"), ("a", "GPU-0")], vec![unknown(false)], Some(2)),
        (vec![("a", "GPU-1::0"), ("b", "GPU-1::0")], vec![unknown(true); 2], Some(2)),
        (vec![("a", "GPU-1"), ("b", "GPU-1::0")], vec![unknown(false), unknown(true)], Some(2)),
        (vec![("a", "GPU-1"), ("b", "nvidia1")], vec![unknown(false); 2], Some(2)),
    ];
    for (devices, rows, conflicts) in cases {
        assert_eq!(of(&devices), (rows, conflicts), "{devices:?}");
    }
    let unread = PodResources { allocatable: None, ..answer(vec![device("a", "GPU-1::0")]) };
    let found = pods(|seq| vec![whole(seq, 1, &[])], &[], &unread);
    let one = &found.allocations[0];
    assert_eq!((one.share, one.seconds.as_ref(), unallocated(&found)), (None, None, vec![]));
}

/// Returns the seconds of the only allocation, by state.
fn seconds(snapshot: &Snapshot) -> [f64; 4] {
    let seconds = snapshot.pods.as_ref().and_then(|pods| pods.allocations[0].seconds.as_ref());
    PodGpuState::ALL.map(|state| seconds.expect("the share is known")[&state])
}

#[test]
fn time_is_counted_by_state_and_share_between_two_answers() {
    let answer = answer(vec![device("a", "GPU-1::0")]);
    let with = |seq, sm: Option<u32>| {
        let pids = sm.map(|sm| (41, sm));
        sample(seq, vec![whole(seq, 1, pids.as_slice())], &[process(41, "a", "1")], &answer)
    };
    let silent = |seq| Sample { pod_resources: None, ..with(seq, Some(50)) };
    let empty = PodResources { list: PodList::default(), ..answer.clone() };
    let released = |seq| Sample { pod_resources: Some(empty.clone()), ..with(seq, None) };
    let cases = [
        ("the first sample", vec![with(1, None)], [0.0; 4]),
        ("no process", vec![with(1, None), with(2, None)], [0.0, 0.0, 2.5, 0.0]),
        ("busy, idle", vec![with(1, Some(0)), with(2, Some(50)), with(3, Some(0))], [2.5, 2.5, 0.0, 0.0]),
        ("missed samples", vec![with(1, None), with(4, None)], [0.0, 0.0, 0.0, 7.5]),
        (
            "without an answer nothing is counted or lost",
            vec![with(1, None), with(2, None), silent(3), with(4, None), with(5, None)],
            [0.0, 0.0, 5.0, 0.0],
        ),
        (
            "another allocation begins at 0",
            vec![with(1, None), with(2, None), released(3), with(4, None)],
            [0.0; 4],
        ),
    ];
    for (case, samples, expected) in cases {
        assert_eq!(seconds(&walk(samples)), expected, "{case}");
    }
    assert_eq!(walk([with(1, None), silent(2)]).pods, None);
}

#[test]
fn processes_without_an_allocation_are_counted_if_all_are_known() {
    let in_pod = |pid, pod| process(pid, pod, "9");
    let plain = |pid, comm: &str, uid| Facts {
        comm: comm.into(),
        uid: Some(uid),
        place: Place { cgroup: "/x.service".into(), ..Place::default() },
        ..fixtures::facts(ProcessKey { pid, start_ticks: 7 })
    };
    let server = Facts { role: Some(Role::MpsServer), ..plain(43, "nvidia-cuda-mps", 0) };
    let new = Facts { key: ProcessKey { pid: 43, start_ticks: 1000 }, ..in_pod(43, "b") };
    let above = |mut facts: Facts| {
        facts.place = Place { cgroup: "/../../x".into(), container: Some("9".into()), ..Place::default() };
        facts
    };
    let docker = |mut facts: Facts| {
        facts.place.container = Some("9".into());
        facts
    };
    // The driver has listed its pid since before its start.
    let reused = Facts { key: ProcessKey { pid: 43, start_ticks: 100_000 }, ..plain(43, "train", 1000) };
    let cases = [
        ("none", vec![], Some(0)),
        ("one with a reused pid", vec![reused], None),
        ("its own", vec![in_pod(41, "a")], Some(0)),
        ("another pod", vec![in_pod(41, "a"), in_pod(43, "b")], Some(1)),
        ("outside pods", vec![plain(43, "train", 1000), in_pod(42, "c")], Some(2)),
        ("a container outside Kubernetes", vec![docker(plain(43, "train", 1000))], Some(1)),
        ("MPS of the system", vec![server], Some(0)),
        ("a display server of a user", vec![plain(43, "Xorg", 1000)], Some(1)),
        ("one that started after the answer", vec![new], None),
        ("one in an unknown container", vec![above(plain(43, "train", 1000))], None),
        ("one of unknown cgroup", vec![Facts { place: Place::default(), ..plain(43, "train", 1000) }], None),
    ];
    for (case, processes, expected) in cases {
        let pids: Vec<(u32, u32)> = processes.iter().map(|facts| (facts.key.pid, 0)).collect();
        let found = pods(|seq| vec![whole(seq, 0, &pids)], &processes, &answer(vec![device("a", "GPU-0")]));
        let expected: Vec<_> = expected.map(|count| ("GPU-0", count)).into_iter().collect();
        assert_eq!(unallocated(&found), expected, "{case}");
    }
}

#[test]
fn pod_with_an_unknown_device_may_have_any_gpu() {
    let dynamic = DynamicDevice {
        container: name("b", "main"),
        driver: "gpu.nvidia.com".into(),
        pool: "node".into(),
        device: "gpu-0".into(),
    };
    let mut claimed = answer(vec![]);
    claimed.list.dynamic.push(dynamic.clone());
    let mut invalid = answer(vec![]);
    invalid.list.invalid = 1;
    let cases = [
        ("nothing", answer(vec![]), Some(1)),
        ("a dynamic one", claimed, None),
        ("one that is not listed", answer(vec![device("b", "GPU-9")]), None),
        ("one of unknown form", answer(vec![device("b", "odd")]), None),
        ("one of an unknown pod", invalid, None),
        ("one of another pod", answer(vec![device("a", "GPU-9")]), Some(1)),
    ];
    for (case, answer, expected) in cases {
        let found = pods(|seq| vec![whole(seq, 0, &[(41, 0)])], &[process(41, "b", "1")], &answer);
        let expected: Vec<_> = expected.map(|count| ("GPU-0", count)).into_iter().collect();
        assert_eq!(unallocated(&found), expected, "{case}");
    }
}

#[test]
fn stream_has_the_allocations_without_their_times() {
    let answer = answer(vec![device("a", "GPU-0")]);
    let one = |seq| sample(seq, vec![whole(seq, 0, &[])], &[], &answer);
    let snapshot = walk([one(1), one(2)]);
    let line = serde_json::to_value(bailiff_snapshot::wire::Snapshot::from(&snapshot)).expect("JSON");
    let expected = serde_json::json!({
        "boot_ms": 10000,
        "allocations": [{
            "container": {"namespace": "team", "pod": "a", "container": "main"}, "resource": "nvidia.com/gpu", "gpu": "0",
            "gpu_uuid": "GPU-0", "shared": false, "share": 1.0, "state": "no_process",
            "pod_uid": format!("{UID}0"), "unused_since_ms": 10_000,
        }],
        "unallocated": [{"gpu": "0", "gpu_uuid": "GPU-0", "processes": 0}],
    });
    assert_eq!(line["pods"], expected);
    let back: bailiff_snapshot::wire::Snapshot = serde_json::from_value(line).expect("a snapshot");
    assert_eq!(back.pods.map(|pods| pods.allocations.len()), Some(1));
}

/// Returns the UID and the start of the unused time of the first allocation, in seconds.
fn unused(pods: &PodGpus) -> Option<(&str, Option<u64>)> {
    let allocation = pods.allocations.first()?;
    Some((allocation.pod_uid.as_deref()?, allocation.unused_since_ms.map(|ms| ms / 1000)))
}

#[test]
fn time_without_use_begins_with_the_first_sample_without_a_process() {
    let answer = answer(vec![device("a", "GPU-0")]);
    let uid = format!("{UID}0");
    let (idle, busy) = ([process(41, "a", "1")], [(41, 90)]);
    let without = |seq| sample(seq, vec![whole(seq, 0, &[])], &[], &answer);
    let with = |seq| sample(seq, vec![whole(seq, 0, &busy)], &idle, &answer);
    let since = |samples: Vec<Sample>| {
        let pods = walk(samples).pods.expect("the kubelet answered");
        unused(&pods).map(|(found, since)| (found == uid, since))
    };
    assert_eq!(since(vec![without(1), without(2), without(3)]), Some((true, Some(10))));
    assert_eq!(since(vec![with(1), without(2), without(3)]), Some((true, Some(20))));
    assert_eq!(since(vec![without(1), with(2), without(3)]), Some((true, Some(30))));
    assert_eq!(since(vec![without(1), with(2)]), Some((true, None)));
    // Another container of the pod uses it.
    let containers = BTreeMap::from([("2".to_owned(), name("a", "side"))]);
    let answer_with_names = PodResources { containers, ..answer.clone() };
    let by_side = sample(2, vec![whole(2, 0, &busy)], &[process(41, "a", "2")], &answer_with_names);
    assert_eq!(by_side.pod_resources.as_ref().map(|it| it.containers.len()), Some(1));
    assert_eq!(since(vec![without(1), by_side]), Some((true, None)));
    // In one sample, not all processes could be read, so it is unknown which pod has the GPU.
    let unread = |seq, gpu| sample(seq, vec![gpu], &[], &PodResources { live: None, ..answer.clone() });
    let empty = |seq| unread(seq, whole(seq, 0, &[]));
    assert_eq!(since(vec![without(1), empty(2)]), None);
    assert_eq!(since(vec![without(1), empty(2), without(3)]), Some((true, Some(10))));
    let held = unread(2, whole(2, 0, &busy));
    assert_eq!(since(vec![without(1), held, without(3)]), Some((true, Some(30))));
    // A process may have used it in a missed sample.
    assert_eq!(since(vec![without(1), without(2), without(6)]), Some((true, Some(60))));
    // The kubelet did not answer in between.
    let unanswered = Sample { pod_resources: None, ..without(2) };
    assert_eq!(since(vec![without(1), unanswered, without(3)]), Some((true, Some(30))));
}

#[test]
fn pod_has_no_uid_if_it_may_be_another_or_may_have_other_gpus() {
    let named = |pods: &PodGpus| unused(pods).is_some();
    let of = |answer: &PodResources| named(&pods(|seq| vec![whole(seq, 0, &[])], &[], answer));
    let plain = || answer(vec![device("a", "GPU-0")]);
    assert!(of(&plain()));
    // Two pods of this name run.
    assert!(!of(&PodResources { live: Some(live(&["a", "a"])), ..plain() }));
    // Not all processes, or not the names of all pods, could be read.
    assert!(!of(&PodResources { live: None, ..plain() }));
    let unnamed = LivePod { uid: "9".into(), name: None };
    let some_unnamed = live(&["a"]).into_iter().chain([unnamed]).collect();
    assert!(!of(&PodResources { live: Some(some_unnamed), ..plain() }));
    // Another device may be any GPU.
    assert!(!of(&answer(vec![device("a", "GPU-0"), device("a", "unknown")])));
    assert!(of(&answer(vec![device("a", "GPU-0"), device("b", "unknown")])));
    let invalid = PodList { invalid: 1, ..plain().list };
    assert!(!of(&PodResources { list: invalid, ..plain() }));
}
