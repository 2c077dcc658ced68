//! Tests joining a lease pool with the pool of the previous sample, and its representation in the stream.

use std::time::Duration;

use bailiff_snapshot::lease::{Record, Tally, Ticket};
use bailiff_snapshot::{
    Answer, Claim, DeviceSampler, Engines, Facts, GpuSample, GpuState, Held, Leases, PoolGpu, ProcessKey,
    Reading, Sample, Truth, UtilSample, wire,
};
use snapshot_fixtures::sample::{self as fixtures, entry, found, reading, walk};

const PID: u32 = 41;

fn facts() -> Facts {
    Facts {
        ppid: 40,
        cpu_seconds: 1.5,
        claim: Claim::Lease("ours".into()),
        ancestors: Some(vec![ProcessKey { pid: 40, start_ticks: 6 }, ProcessKey { pid: 1, start_ticks: 1 }]),
        ..fixtures::facts(ProcessKey { pid: PID, start_ticks: 7 })
    }
}

/// Utilization that the device reports for the window that ends at interval `n`, or no report.
#[derive(Clone, Copy)]
enum Device {
    Uses(u32),
    Silent,
}

fn gpu(n: u64, device: Device, answer: Answer, listed: bool) -> GpuSample {
    let sampler = match device {
        Device::Uses(maximum) => DeviceSampler::Stamped { newest: n, maximum, filled: false },
        Device::Silent => DeviceSampler::Silent,
    };
    let entries = listed.then(|| entry(PID, Some(1 << 30))).into_iter().collect();
    GpuSample {
        reading: Reading { answer, sampler, ..reading(n, 0, vec![]) },
        ..fixtures::gpu((0, "GPU-1"), entries)
    }
}

fn leases(n: u64, gpu_state: GpuState, lease: Option<&str>) -> Leases {
    let lease = lease.map(str::to_owned);
    let gpu = PoolGpu { id: "0".into(), gpu_state, lease, ..PoolGpu::default() };
    Leases { boot_ms: 10_000 * n, gpus: vec![gpu], ..Leases::default() }
}

/// Interval `n`, ten seconds after the one before.
fn sample(n: u64, gpu: GpuSample, leases: Option<Leases>) -> Sample {
    let sample = fixtures::sample((n, Duration::from_secs(10)), vec![gpu], [found(facts())]);
    Sample { leases, ..sample }
}

/// State of the GPU according to the pool.
#[derive(Clone, Copy)]
enum Pool {
    Leased(&'static str),
    Idle,
    Silent,
}

/// Returns the pool's entry for an unused GPU after samples with these states of the device and the pool.
fn through(intervals: &[(Device, Pool)]) -> Option<PoolGpu> {
    let samples = intervals.iter().zip(1..).map(|((device, pool), n)| {
        let pool_state = match pool {
            Pool::Leased(lease) => Some(leases(n, GpuState::Leased, Some(lease))),
            Pool::Idle => Some(leases(n, GpuState::Idle, None)),
            Pool::Silent => None,
        };
        sample(n, gpu(n, *device, Answer::Nothing, false), pool_state)
    });
    walk(samples).leases.map(|leases| leases.gpus[0].clone())
}

#[test]
fn idle_time_of_a_leased_gpu_grows_by_what_was_seen_idle() {
    const OURS: Pool = Pool::Leased("ours");
    let idle = (Device::Uses(0), OURS);
    let cases = [
        ("the first sample", vec![idle], (0, Truth::Unknown, 0)),
        ("three samples", vec![idle, idle, idle], (20_000, Truth::True, 20_000)),
        ("busy ends it", vec![idle, idle, (Device::Uses(40), OURS)], (0, Truth::False, 20_000)),
        ("silence adds nothing", vec![idle, idle, (Device::Silent, OURS)], (10_000, Truth::Unknown, 20_000)),
        (
            "another lease",
            vec![idle, idle, (Device::Uses(0), Pool::Leased("theirs"))],
            (0, Truth::Unknown, 0),
        ),
        (
            "the pool did not answer before",
            vec![idle, (Device::Uses(0), Pool::Silent), idle],
            (0, Truth::Unknown, 0),
        ),
        ("not leased", vec![idle, idle, (Device::Uses(0), Pool::Idle)], (0, Truth::Unknown, 0)),
    ];
    for (name, intervals, expected) in cases {
        let found = through(&intervals).expect("the pool answered last");
        assert_eq!((found.idle_ms, found.idle, found.since_ms), expected, "{name}");
    }
    assert_eq!(through(&[idle, (Device::Uses(0), Pool::Silent)]), None, "a previous value is not repeated");
}

#[test]
fn listed_processes_count_if_the_device_reports_nothing() {
    let engines = |sm| Engines { sm, ..Engines::default() };
    let with = |sm| {
        let of = |n: u64| Answer::Samples(vec![UtilSample { pid: PID, stamp: n + 1, engines: engines(sm) }]);
        let interval = |n: u64| {
            sample(n, gpu(n, Device::Silent, of(n), true), Some(leases(n, GpuState::Leased, Some("ours"))))
        };
        let snapshot = walk([interval(1), interval(2)]);
        (snapshot.gpus[0].idle, snapshot.gpus[0].holders[0].listed)
    };
    assert_eq!(with(0), (Truth::True, Duration::from_secs(10)));
    assert_eq!(with(60), (Truth::False, Duration::from_secs(10)));
}

#[test]
fn the_wire_reads_what_it_wrote() {
    let mut pool_state = leases(1, GpuState::Leased, Some("ours"));
    pool_state.gpus.push(PoolGpu {
        id: "1".into(),
        uuid: Some("GPU-2".into()),
        gpu_state: GpuState::Legacy,
        record: Some(Record {
            pid: Some(7),
            time: "2026-11-21 06:29:57".into(),
            alive: Truth::False,
            ..Record::default()
        }),
        ..PoolGpu::default()
    });
    pool_state.held.push(Held {
        lease: "ours".into(),
        token: 3,
        gpus: vec!["0".into()],
        age_ms: Some(5),
        left_ms: -4,
        holder: Some(ProcessKey { pid: 40, start_ticks: 6 }),
        alive: Truth::True,
        ..Held::default()
    });
    pool_state.queue.push(Ticket { lease: "theirs".into(), want: 2, ..Ticket::default() });
    pool_state.tally = Tally { append_only: Some(true), ..Tally::default() };
    let snapshot = walk([sample(1, gpu(1, Device::Silent, Answer::Failed, true), Some(pool_state.clone()))]);
    let line = wire::write(&snapshot).unwrap();
    let text = String::from_utf8(line.clone()).unwrap();
    assert!(text.contains(r#""claim":{"lease":"ours"},"ancestors":[[40,6],[1,1]]"#), "{text}");
    let read = wire::parse(&line).unwrap();
    pool_state.tally = Tally::default();
    assert_eq!(read.leases, Some(pool_state));
    assert_eq!(read.processes[0].facts.as_ref().unwrap().ancestors, facts().ancestors);
    let none = walk([sample(1, gpu(1, Device::Silent, Answer::Failed, true), None)]);
    assert!(!String::from_utf8(wire::write(&none).unwrap()).unwrap().contains("leases"));
    let newer = text.replace("\"state\":\"leased\"", "\"state\":\"shared\"");
    assert_eq!(wire::parse(newer.as_bytes()).unwrap().leases.unwrap().gpus[0].gpu_state, GpuState::Unknown);
}
