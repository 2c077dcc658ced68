//! Tests the utilization of processes on MIG instances: each row of its table, and that no process is idle unless the
//! whole instance was, between the same two samples.

#![expect(clippy::panic, reason = "a test fails loudly")]

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_snapshot::{
    Activity, ActivityEngine, Engines, Fault, GpuId, GpuSample, MigIds, PidNamespace, ProcessKey, Role,
    Sample, Seen, Snapshot, Truth, Utilization, Why,
};
use proptest::prelude::*;
use snapshot_fixtures::sample::{self as fixtures, entry, facts};

const INTERVAL: Duration = Duration::from_secs(10);

/// What is observed of a GPU instance with two compute instances.
#[derive(Debug, Clone)]
struct Step {
    calm: Truth,
    /// Graphics activity.
    ratio: f64,
    /// Processes by compute instance, each with whether its pid was reused.
    listed: [BTreeSet<u32>; 2],
    restarted: BTreeSet<u32>,
    /// Whether the sampler took this sample, but it did not arrive.
    lost: bool,
    mps: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pids = || prop::collection::btree_set(41_u32..45, 0..3);
    let truth = prop::sample::select(vec![Truth::True, Truth::True, Truth::False, Truth::Unknown]);
    let step =
        (truth, 0.0..1.0, [pids(), pids()], pids(), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let step = step.prop_map(|(calm, ratio, listed, restarted, lost, mps)| {
        let restarted = if ratio < 0.3 { restarted } else { BTreeSet::new() };
        Step { calm, ratio, listed, restarted, lost, mps }
    });
    prop::collection::vec(step, 2..20)
}

/// Returns the sample of a step: the GPU and its two compute instances.
fn observed(n: u64, step: &Step, starts: &[u64], from: Duration) -> Sample {
    let at = fixtures::sample((n, INTERVAL), vec![], []).at.boot;
    let parent = GpuSample { entries: None, instances: Some(2), ..fixtures::gpu((0, "GPU-1"), vec![]) };
    let instance = |ci: usize| {
        let mut entries: Vec<_> = step.listed[ci].iter().map(|pid| entry(*pid, Some(1 << 30))).collect();
        for entry in &mut entries {
            entry.kinds.mps = step.mps;
        }
        let mut instance = fixtures::gpu((0, "GPU-1"), entries);
        instance.about.index = format!("0:{ci}");
        instance.about.id = Some(GpuId(format!("MIG-{ci}")));
        let ids = (parent.about.id.clone(), Some(1), u32::try_from(ci).ok());
        instance.about.mig = Some(MigIds { parent: ids.0, gpu_instance: ids.1, compute_instance: ids.2 });
        instance.telemetry.activity = Activity {
            ratios: [(ActivityEngine::Graphics, step.ratio)].into(),
            unknown: None,
            from,
            until: at,
            calm: step.calm,
        };
        instance
    };
    let pids: BTreeSet<u32> = step.listed.iter().flatten().copied().collect();
    let key = |pid: u32| ProcessKey { pid, start_ticks: starts[pid as usize - 41] };
    let seen: Vec<(u32, Seen)> = pids.iter().map(|pid| fixtures::found(facts(key(*pid)))).collect();
    fixtures::sample((n, INTERVAL), vec![parent.clone(), instance(0), instance(1)], seen)
}

/// Change of the earlier and of the later sample.
type Change = fn(&mut Sample, &mut Sample);

/// Returns two samples with process 41 on the first compute instance, and nothing on the second one.
fn two_samples(calm: Truth) -> (Sample, Sample) {
    let step = Step {
        calm,
        ratio: 0.7,
        listed: [BTreeSet::from([41]), BTreeSet::new()],
        restarted: BTreeSet::new(),
        lost: false,
        mps: false,
    };
    let before = observed(1, &step, &[7; 4], Duration::ZERO);
    let now = observed(2, &step, &[7; 4], before.at.boot);
    (before, now)
}

/// Returns the utilization of process 41 after two samples that were changed.
fn utilization(calm: Truth, change: Change) -> Utilization {
    let (mut before, mut now) = two_samples(calm);
    change(&mut before, &mut now);
    let snapshot = Snapshot::between(Some(&Snapshot::between(None, before)), now);
    let mut holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
    holders
        .find(|holder| holder.process.pid() == 41)
        .map_or_else(|| panic!("no holder"), |one| one.utilization)
}

/// Lists a process on a compute instance.
fn list(sample: &mut Sample, ci: usize, pid: u32) {
    sample.gpus[ci + 1].entries.get_or_insert_default().push(entry(pid, Some(1 << 30)));
    let key = ProcessKey { pid, start_ticks: 7 };
    sample.processes.extend([fixtures::found(facts(key))].into_iter().filter(|_| pid > 0));
}

fn serve(sample: &mut Sample, pid: u32) {
    let facts = sample.processes.get_mut(&pid).and_then(Seen::found_mut);
    facts.unwrap_or_else(|| panic!("{pid} was not found")).role = Some(Role::MpsServer);
}

fn list_of_mps(sample: &mut Sample, ci: usize, pid: u32) {
    list(sample, ci, pid);
    for entry in sample.gpus[ci + 1].entries.iter_mut().flatten().filter(|entry| entry.pid == pid) {
        entry.kinds.mps = true;
    }
}

/// Process 41 was not, or not certainly, on its instance at the start of the window.
const NEW: [(&str, Change); 6] = [
    ("it started", |before, _| before.gpus[1].entries = Some(vec![])),
    ("it was on the other compute instance", |before, _| {
        before.gpus[2].entries = before.gpus[1].entries.replace(vec![]);
    }),
    ("its pid was reused", |_, now| now.processes.extend([fixtures::found(facts(RESTARTED))])),
    ("it was hidden", |before, _| drop(before.processes.insert(41, Seen::Hidden))),
    ("pids were those of another namespace", |before, _| before.namespace = PidNamespace::Other),
    ("it started, beside another one", |before, now| {
        before.gpus[1].entries = Some(vec![]);
        list(now, 0, 42);
    }),
];

const RESTARTED: ProcessKey = ProcessKey { pid: 41, start_ticks: 8 };

/// Process 41 was on its instance at both ends, but may have shared it.
const NOT_ALONE: [(&str, Why, Change); 20] = [
    ("client of MPS", Why::SharedByMps, |_, now| list_of_mps(now, 0, 42)),
    ("client of MPS that exited", Why::SharedByMps, |before, _| list_of_mps(before, 0, 42)),
    ("client of MPS on the other compute instance", Why::SharedByMps, |_, now| list_of_mps(now, 1, 42)),
    ("client of MPS and an incomplete list", Why::SharedByMps, |_, now| {
        list_of_mps(now, 0, 42);
        list(now, 1, 0);
    }),
    ("it is a server of MPS", Why::SharedByMps, |_, now| serve(now, 41)),
    ("server of MPS beside it", Why::SharedByMps, |_, now| {
        list(now, 0, 42);
        serve(now, 42);
    }),
    ("server of MPS that exited, on the other compute instance", Why::SharedByMps, |before, _| {
        list(before, 1, 42);
        serve(before, 42);
    }),
    ("process of another namespace", Why::Unattributed, |_, now| list(now, 0, 0)),
    ("it was there before", Why::Unattributed, |before, _| list(before, 0, 0)),
    ("it is on the other compute instance", Why::Unattributed, |_, now| list(now, 1, 0)),
    ("it was there, before", Why::Unattributed, |before, _| list(before, 1, 0)),
    ("the other list failed", Why::Unattributed, |_, now| now.gpus[2].entries = None),
    ("the other list failed before", Why::Unattributed, |before, _| before.gpus[2].entries = None),
    ("the other instance failed", Why::Unattributed, |_, now| {
        now.gpus[2] = GpuSample::faulty(now.gpus[2].about.clone(), Fault::Timeout);
    }),
    ("instances were not read", Why::Unattributed, |_, now| now.gpus[0].instances = None),
    ("instances were not read before", Why::Unattributed, |before, _| before.gpus[0].instances = None),
    ("its GPU is missing", Why::Unattributed, |_, now| drop(now.gpus.remove(0))),
    ("another process", Why::SharedInstance, |_, now| list(now, 0, 42)),
    ("another process that exited", Why::SharedInstance, |before, _| list(before, 0, 42)),
    ("another process on the other compute instance", Why::SharedInstance, |_, now| list(now, 1, 42)),
];

/// What the window of the instance's activity is, is not certain.
const NOT_MEASURED: [(&str, Change); 5] = [
    ("a sample between them did not arrive", |_, now| {
        now.gpus[1].telemetry.activity.from = Duration::from_secs(15);
    }),
    ("the activity has no window", |_, now| {
        now.gpus[1].telemetry.activity.until = now.gpus[1].telemetry.activity.from;
    }),
    ("an engine is unknown", |_, now| now.gpus[1].telemetry.activity.calm = Truth::Unknown),
    ("the instance failed before", |before, _| {
        before.gpus[1] = GpuSample::faulty(before.gpus[1].about.clone(), Fault::Timeout);
    }),
    ("the instance has no id", |_, now| {
        if let Some(mig) = &mut now.gpus[1].about.mig {
            mig.gpu_instance = None;
        }
    }),
];

#[test]
fn only_process_of_a_busy_instance_has_its_activity() {
    let busy = Utilization::Observed(Engines { sm: 70, ..Engines::default() });
    let cases: [(&str, Change); 2] = [
        ("one process", |_, _| ()),
        ("one process on both compute instances", |before, now| {
            list(before, 1, 41);
            list(now, 1, 41);
        }),
    ];
    for (name, change) in cases {
        assert_eq!(utilization(Truth::False, change), busy, "{name}");
    }
}

#[test]
fn process_that_was_not_listed_before_is_unknown_also_on_a_calm_instance() {
    for (name, change) in NEW {
        for calm in [Truth::False, Truth::True] {
            let expected = Utilization::Unknown(Why::NotListedBefore);
            assert_eq!(utilization(calm, change), expected, "{name}, calm: {calm:?}");
        }
    }
}

#[test]
fn process_that_may_share_a_busy_instance_is_unknown_and_idle_only_on_a_calm_one() {
    for (name, why, change) in NOT_ALONE {
        assert_eq!(utilization(Truth::False, change), Utilization::Unknown(why), "{name}");
        let idle = Utilization::Observed(Engines::default());
        assert_eq!(utilization(Truth::True, change), idle, "{name}, calm");
    }
}

#[test]
fn process_of_an_instance_whose_activity_is_not_that_of_the_window_is_unknown() {
    for (name, change) in NOT_MEASURED {
        for calm in [Truth::False, Truth::True] {
            assert_eq!(utilization(calm, change), Utilization::Unknown(Why::Mig), "{name}, calm: {calm:?}");
        }
    }
}

#[test]
fn instance_without_a_visible_process_is_idle_only_if_it_was_calm() {
    for (calm, ratio, expected) in [
        (Truth::True, 0.0, Truth::True),
        (Truth::False, 0.7, Truth::False),
        (Truth::False, 0.01, Truth::Unknown),
        (Truth::Unknown, 0.0, Truth::Unknown),
    ] {
        let (before, mut now) = two_samples(calm);
        now.namespace = PidNamespace::Other;
        now.gpus[1].telemetry.activity.ratios = [(ActivityEngine::Graphics, ratio)].into();
        let snapshot = Snapshot::between(Some(&Snapshot::between(None, before)), now);
        assert_eq!(
            (snapshot.gpus[1].holders.len(), snapshot.gpus[1].idle),
            (0, expected),
            "{calm:?} {ratio}"
        );
    }
}

proptest! {
    #[test]
    fn process_of_an_instance_is_idle_only_if_the_instance_was(steps in steps()) {
        let (mut previous, mut from, mut starts) = (None, Duration::ZERO, vec![7_u64; 4]);
        let mut before: Option<(&Step, Duration, Vec<u64>)> = None;
        for (n, step) in (1..).zip(&steps) {
            step.restarted.iter().for_each(|pid| starts[*pid as usize - 41] += 1);
            let sample = observed(n, step, &starts, from);
            let at = sample.at.boot;
            let since = std::mem::replace(&mut from, at);
            if step.lost {
                continue;
            }
            let snapshot = Snapshot::between(previous.as_ref(), sample);
            for gpu in &snapshot.gpus[1..] {
                let ci = usize::from(gpu.about.index == "0:1");
                for holder in &gpu.holders {
                    let pid = holder.process.pid();
                    let Some(is_idle) = holder.utilization.idle() else { continue };
                    let Some((earlier, end, started)) = &before else {
                        return Err(TestCaseError::fail("known without an earlier snapshot"));
                    };
                    let index = pid as usize - 41;
                    prop_assert_eq!(*end, since, "the activity is that since another sample");
                    prop_assert!(earlier.listed[ci].contains(&pid) && started[index] == starts[index]);
                    prop_assert_eq!(Truth::from(is_idle), step.calm);
                    if !is_idle {
                        let all: BTreeSet<u32> =
                            step.listed.iter().chain(&earlier.listed).flatten().copied().collect();
                        prop_assert_eq!(all, BTreeSet::from([pid]));
                        prop_assert!(!step.mps && !earlier.mps);
                        let is_rounded = |percent: u32| (f64::from(percent) - step.ratio * 100.0).abs() <= 0.5;
                        let Utilization::Observed(engines) = holder.utilization else { unreachable!() };
                        prop_assert!(is_rounded(engines.sm));
                    }
                }
                prop_assert!(gpu.idle != Truth::True || step.calm == Truth::True);
            }
            before = Some((step, at, starts.clone()));
            previous = Some(snapshot);
        }
    }
}
