//! Tests what is derived from quota files, the driver's data and two samples.

use std::time::Duration;

use bailiff_snapshot::{
    Facts, Fault, GpuSample, Memory, Place, ProcessKey, Quota, QuotaGpu, QuotaProcess, Sample, Seen,
    Snapshot, Truth,
};
use snapshot_fixtures::sample::{self as fixtures, entry, found};

const UUID: &str = "0a0b0c0d-0000-4000-8000-000000000001";

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_ticks: 7 }
}

fn facts(pid: u32, container: Option<&str>) -> (u32, Seen) {
    let place = Place { container: container.map(str::to_owned), ..Place::default() };
    found(Facts { place, ..fixtures::facts(key(pid)) })
}

/// A GPU held by these pids, with this many bytes each.
fn gpu(held: &[(u32, Option<u64>)]) -> GpuSample {
    GpuSample {
        memory: Some(Memory { total: 1000, free: 0, used: 0, reserved: Some(0) }),
        ..fixtures::gpu(
            (0, &format!("GPU-{}", UUID.to_uppercase())),
            held.iter().map(|(pid, memory)| entry(*pid, *memory)).collect(),
        )
    }
}

fn sample(seq: u64, gpu: GpuSample, processes: &[(u32, Option<&str>)], quotas: Vec<Quota>) -> Sample {
    let processes = processes.iter().map(|(pid, container)| facts(*pid, *container));
    Sample { quotas: Some(quotas), ..fixtures::sample((seq, Duration::from_secs(1)), vec![gpu], processes) }
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

/// Returns, for each quota, the bytes that its processes hold according to the driver, and the bytes that these
/// processes and all others in their containers hold.
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
