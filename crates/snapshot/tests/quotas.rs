//! What the driver and two samples show of a quota file.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{
    About, BootId, Claim, Driver, Entry, Facts, Fault, Gaps, GpuId, GpuSample, Kinds, Memory, Moment,
    PidNamespace, Place, ProcessKey, Quota, QuotaGpu, QuotaProcess, Sample, Seen, Snapshot, State, Truth,
};

const UUID: &str = "0a0b0c0d-0000-4000-8000-000000000001";

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_ticks: 7 }
}

fn facts(pid: u32, container: Option<&str>) -> (u32, Seen) {
    let facts = Facts {
        key: key(pid),
        state: State::Sleeping,
        ppid: 1,
        comm: "python3".into(),
        uid: Some(1000),
        user: None,
        place: Place { container: container.map(str::to_owned), ..Place::default() },
        command: None,
        started: None,
        cpu_seconds: 0.0,
        io: None,
        orphaned: None,
        reaped_cpu_seconds: None,
        workload: None,
        exe: None,
        role: None,
        claim: Claim::Unread,
        ancestors: None,
    };
    (pid, Seen::Found(Box::new(facts)))
}

/// A GPU held by these pids, with this many bytes each.
fn gpu(held: &[(u32, Option<u64>)]) -> GpuSample {
    let entry = |(pid, memory): &(u32, Option<u64>)| Entry {
        pid: *pid,
        memory: *memory,
        kinds: Kinds { compute: true, ..Kinds::default() },
        peak: None,
    };
    GpuSample {
        fault: None,
        memory: Some(Memory { total: 1000, free: 0, used: 0, reserved: Some(0) }),
        entries: Some(held.iter().map(entry).collect()),
        ..GpuSample::faulty(
            About { id: Some(GpuId(format!("GPU-{}", UUID.to_uppercase()))), ..About::unnamed(0) },
            Fault::Error,
        )
    }
}

fn sample(seq: u64, gpu: GpuSample, processes: &[(u32, Option<&str>)], quotas: Vec<Quota>) -> Sample {
    Sample {
        seq,
        at: Moment { wall: Duration::from_secs(seq), boot: Duration::from_secs(seq) },
        took: Duration::ZERO,
        interval: Duration::from_secs(1),
        boot_id: Some(BootId("boot".into())),
        namespace: PidNamespace::Host,
        sources: BTreeMap::new(),
        driver: Driver::default(),
        gpus: vec![gpu],
        processes: processes.iter().map(|(pid, container)| facts(*pid, *container)).collect(),
        relatives: None,
        groups: BTreeMap::new(),
        device_processes: None,
        leases: None,
        quotas: Some(quotas),
        mps: None,
        gaps: Gaps::default(),
        workers_hung: 0,
    }
}

fn place(pid: Option<u32>, alive: Truth, used: u64) -> QuotaProcess {
    QuotaProcess {
        process: pid.map(key),
        alive,
        claim: (pid.unwrap_or_default(), 7, 1),
        used: vec![used],
        denied: 0,
        denied_since: None,
    }
}

fn quota(name: &str, processes: Vec<QuotaProcess>) -> Quota {
    let used = processes.iter().flat_map(|process| &process.used).sum();
    let row = QuotaGpu {
        uuid: UUID.into(),
        limit: Some(100),
        used,
        peak: 0,
        denied: 0,
        denied_bytes: 0,
        held: None,
        held_around: None,
    };
    Quota { name: name.into(), gpus: vec![row], processes, ..Quota::default() }
}

/// What the driver says that each quota's processes hold, and all around them.
fn held(gpu: GpuSample, processes: &[(u32, Option<&str>)], quotas: Vec<Quota>) -> Vec<[Option<u64>; 2]> {
    let snapshot = Snapshot::between(None, sample(1, gpu, processes, quotas));
    snapshot.quotas.iter().flatten().map(|quota| [quota.gpus[0].held, quota.gpus[0].held_around]).collect()
}

#[test]
fn memory_of_quota_processes_is_summed() {
    use Truth::{False, True, Unknown};
    let two = [(1, Some(30)), (2, Some(5)), (3, Some(7))];
    let (in_a, apart) = (Some("a"), None);
    let all = [(1, in_a), (2, in_a), (3, apart)];
    let mine = |used| place(Some(1), True, used);
    let (one, other) = (mine(10), place(Some(3), True, 1));
    let with = |other: QuotaProcess| vec![quota("q", vec![mine(10), other])];
    for (why, held_by, quotas, expected) in [
        ("processes of its container are included", &two[..], vec![quota("q", vec![one])], vec![[30, 35]]),
        (
            "unless another quota has a process there",
            &two[..],
            vec![quota("q", vec![mine(10)]), quota("r", vec![place(Some(2), True, 1)])],
            vec![[30, 30], [5, 5]],
        ),
        (
            "without a container only the process itself",
            &two[..],
            vec![quota("q", vec![other])],
            vec![[7, 7]],
        ),
        ("no process", &two[..], vec![quota("q", vec![])], vec![[0, 0]]),
        (
            "a process without allocations may be anywhere",
            &two[..],
            with(place(None, Unknown, 0)),
            vec![[30, 35]],
        ),
        ("and exited processes", &two[..], with(place(None, False, 9)), vec![[30, 35]]),
        (
            "of another it matters nothing",
            &[(1, Some(3)), (3, None)][..],
            vec![quota("q", vec![mine(1)])],
            vec![[3, 3]],
        ),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|both| both.map(Some)).collect();
        assert_eq!(held(gpu(held_by), &all, quotas), expected, "{why}");
    }
    let lost = with(place(None, Unknown, 1));
    assert_eq!(held(gpu(&two), &all, lost), [[None; 2]], "a process that cannot be found may hold anything");
    let unsaid = held(gpu(&[(1, None)]), &all, vec![quota("q", vec![mine(10)])]);
    assert_eq!(unsaid, [[None; 2]], "what the driver does not say");
    let unsaid = held(gpu(&[(1, Some(3)), (2, None)]), &all, vec![quota("q", vec![mine(10)])]);
    assert_eq!(unsaid, [[Some(3), None]], "what it does not report for the others");
    let silent = GpuSample { entries: None, ..gpu(&[]) };
    assert_eq!(held(silent, &[], vec![quota("q", vec![])]), [[None; 2]], "the driver gave no list");
    let lost = GpuSample { fault: Some(Fault::Lost), ..gpu(&[]) };
    assert_eq!(held(lost, &[], vec![quota("q", vec![])]), [[None; 2]], "it is lost");
}

#[test]
fn denials_are_counted_between_samples() {
    let at = |seq, name: &str, denied| {
        let process = QuotaProcess { denied, ..place(Some(1), Truth::True, 1) };
        sample(seq, gpu(&[(1, Some(1))]), &[(1, None)], vec![quota(name, vec![process])])
    };
    let mut last: Option<Snapshot> = None;
    for (seq, name, denied, expected) in
        [(1, "q", 5, None), (2, "q", 5, Some(0)), (3, "q", 8, Some(3)), (4, "q", 2, None), (5, "r", 9, None)]
    {
        let snapshot = Snapshot::between(last.as_ref(), at(seq, name, denied));
        let found = snapshot.quotas.as_ref().and_then(|quotas| quotas[0].processes[0].denied_since);
        assert_eq!(found, expected, "sample {seq}");
        last = Some(snapshot);
    }
}

#[test]
fn ratio_needs_a_limit() {
    let row = |limit, held| QuotaGpu { limit, held, ..quota("q", vec![]).gpus.remove(0) };
    assert_eq!(row(Some(100), Some(50)).ratio(), Some(0.5));
    assert_eq!(row(Some(0), Some(50)).ratio(), None);
    assert_eq!(row(None, Some(50)).ratio(), None);
    assert_eq!(row(Some(100), None).ratio(), None);
    let named = row(None, None);
    assert!(named.is(&format!("GPU-{UUID}")) && named.is(&format!("MIG-{UUID}")));
    assert!(!named.is(UUID) && !named.is("GPU-0a0b0c0d-0000-4000-8000-000000000002"));
}
