//! Property test: no process of a MIG instance is idle unless the whole instance was, between the same two samples.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_snapshot::{
    Activity, ActivityEngine, GpuId, GpuSample, MigIds, ProcessKey, Sample, Seen, Snapshot, Truth,
    Utilization,
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
