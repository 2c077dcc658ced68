//! Tests of the counted GPUs and of idle detection.

use std::time::Duration;

use bailiff_snapshot::{About, DeviceSampler, Fault, GpuSample, MigIds, PidNamespace, Sample};
use snapshot_fixtures::sample::{self as fixtures, entry, used};

use super::*;

const OURS: ProcessKey = ProcessKey { pid: 41, start_ticks: 9 };
const OTHERS: ProcessKey = ProcessKey { pid: 77, start_ticks: 5 };

/// The state of a test GPU: its holders with their utilization, and the utilization of the device.
#[derive(Clone)]
struct TestGpu {
    holders: Vec<(ProcessKey, u32)>,
    device: Option<u32>,
    fault: Option<Fault>,
    listed: bool,
    mig: bool,
    instances: Option<u64>,
}

/// Returns a GPU with these holders and their summed utilization.
fn held(holders: &[(ProcessKey, u32)]) -> TestGpu {
    let device = holders.iter().map(|(_, percent)| *percent).sum();
    TestGpu {
        holders: holders.to_vec(),
        device: Some(device),
        fault: None,
        listed: true,
        mig: false,
        instances: None,
    }
}

fn faulty(fault: Fault) -> TestGpu {
    TestGpu { fault: Some(fault), listed: false, device: None, ..held(&[]) }
}

fn gpu(index: usize, pace: u64, state: &TestGpu) -> GpuSample {
    let entries = state.holders.iter().map(|(key, _)| entry(key.pid, Some(1))).collect();
    let all = fixtures::gpu((u32::try_from(index).unwrap(), &format!("GPU-{index}")), entries);
    let about = About {
        mig: state.mig.then_some(MigIds { parent: None, gpu_instance: None, compute_instance: None }),
        ..all.about
    };
    if let Some(fault) = state.fault {
        return GpuSample::faulty(about, fault);
    }
    let busy = state.holders.iter().filter(|(_, percent)| *percent > 0);
    let mut reading = fixtures::reading(
        pace,
        state.device.unwrap_or_default(),
        busy.map(|(key, percent)| used(key.pid, pace, *percent)).collect(),
    );
    // The look-back is one interval.
    reading.since = pace - 1;
    if state.device.is_none() {
        reading.sampler = DeviceSampler::Silent;
    }
    let entries = all.entries.filter(|_| state.listed);
    GpuSample { about, entries, instances: state.instances, reading, ..all }
}

fn sample(pace: u64, namespace: PidNamespace, gpus: &[TestGpu]) -> Sample {
    let gpus = gpus.iter().enumerate().map(|(index, state)| gpu(index, pace, state)).collect();
    let processes = [OURS, OTHERS].map(|key| fixtures::found(fixtures::facts(key)));
    Sample { namespace, ..fixtures::sample((pace, Duration::from_secs(1)), gpus, processes) }
}

/// The position of a driver sample in its interval.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    First,
    Last,
}

/// A detector and its input.
struct Run {
    detector: IdleDetector,
    before: Snapshot,
    pace: u64,
    namespace: PidNamespace,
    tree: HashMap<u32, ProcessKey>,
    visible: Visible,
}

impl Run {
    /// Creates a detector (idle below 20 % in three samples) that has one earlier sample of these GPUs.
    fn of(gpus: &[TestGpu]) -> Self {
        let namespace = PidNamespace::Host;
        Self {
            detector: IdleDetector::new(IdleRule {
                threshold: 20,
                samples: 3,
                max_gap: 1,
                count: Count::Used,
            }),
            before: Snapshot::between(None, sample(10, namespace, gpus)),
            pace: 10,
            namespace,
            tree: HashMap::from([(OURS.pid, OURS)]),
            visible: Visible::All,
        }
    }

    fn observe(&mut self, gpus: &[TestGpu]) -> Observation {
        self.observe_part(gpus, 0, Part::Last)
    }

    fn observe_part(&mut self, gpus: &[TestGpu], missed: u32, part: Part) -> Observation {
        self.pace += 1 + u64::from(missed);
        let now = Snapshot::between(Some(&self.before), sample(self.pace, self.namespace, gpus));
        let (tree, visible) = (&self.tree, &self.visible);
        let ends_sample = part == Part::Last;
        let input =
            DetectorInput { before: Some(&self.before), now: &now, tree, visible, missed, ends_sample };
        let result = self.detector.observe(&input);
        self.before = now;
        result
    }

    /// Returns whether the command is idle after each of these samples of one GPU.
    fn each(&mut self, states: &[&TestGpu]) -> Vec<bool> {
        states.iter().map(|state| self.observe(std::slice::from_ref(state)).idle).collect()
    }
}

/// Why GPUs are counted, their names, and their percentages.
type Summary<'a> = (Basis, Vec<(&'a str, Option<u32>)>);

fn summary(result: &Observation) -> Option<Summary<'_>> {
    let counted = result.counted.as_ref()?;
    Some((
        counted.basis,
        counted.gpus.iter().map(|usage| (usage.gpu.as_str(), usage.decisive_percent(20))).collect(),
    ))
}

#[test]
fn command_is_idle_after_enough_consecutive_samples() {
    let (busy, low, idle) = (held(&[(OURS, 80)]), held(&[(OURS, 19)]), held(&[(OURS, 0)]));
    let limit = held(&[(OURS, 20)]);
    assert_eq!(
        Run::of(std::slice::from_ref(&busy)).each(&[&busy, &low, &low, &low]),
        [false, false, false, true]
    );
    assert_eq!(Run::of(std::slice::from_ref(&idle)).each(&[&idle, &idle, &idle]), [false, false, true]);
    let pauses = [&idle, &idle, &busy, &idle, &idle, &limit, &idle, &idle];
    assert_eq!(Run::of(std::slice::from_ref(&busy)).each(&pauses), [false; 8], "20 % is not below 20 %");
}

#[test]
fn unknown_samples_are_not_idle() {
    let (idle, hung) = (held(&[(OURS, 0)]), faulty(Fault::Timeout));
    let silent = TestGpu { device: None, ..idle.clone() };
    for unknown in [&hung, &silent, &TestGpu { listed: false, device: None, ..idle.clone() }] {
        let mut run = Run::of(std::slice::from_ref(&idle));
        assert!(!run.each(&[unknown; 100]).contains(&true));
        let mut run = Run::of(std::slice::from_ref(&idle));
        run.each(&[&idle, &idle, unknown, unknown, unknown]);
        assert_eq!(run.each(&[&idle, &idle]), [false, false], "a long gap resets the count");
    }
    let mut run = Run::of(&[]);
    assert_eq!((0..9).map(|_| run.observe(&[])).filter(|result| result.idle).count(), 0, "no GPUs");
    assert_eq!(summary(&run.observe(&[])), None);
}

#[test]
fn missed_samples_count_as_unknown() {
    let idle = [held(&[(OURS, 0)])];
    let mut run = Run::of(&idle);
    run.observe(&idle);
    run.observe(&idle);
    assert!(run.observe_part(&idle, 1, Part::Last).idle, "within the gap");
    let mut run = Run::of(&idle);
    run.observe(&idle);
    run.observe(&idle);
    assert!(!run.observe_part(&idle, 2, Part::Last).idle);
}

#[test]
fn gpus_with_a_context_of_the_command_count() {
    let others = held(&[(OTHERS, 90)]);
    let mut run = Run::of(&[held(&[(OURS, 0)]), others.clone()]);
    for expected in [false, false, true] {
        let result = run.observe(&[held(&[(OURS, 0)]), others.clone()]);
        assert_eq!(summary(&result), Some((Basis::Used, vec![("GPU-0", Some(0))])));
        assert_eq!(result.idle, expected);
    }
    let both = [held(&[(OURS, 0)]), held(&[(OURS, 50)])];
    let mut run = Run::of(&both);
    for _ in 0..5 {
        let result = run.observe(&both);
        assert_eq!(summary(&result), Some((Basis::Used, vec![("GPU-0", Some(0)), ("GPU-1", Some(50))])));
        assert!(!result.idle, "all counted GPUs must be idle");
    }
}

#[test]
fn shared_gpu_counts_own_use_only() {
    let shared = |ours, others| [held(&[(OURS, ours), (OTHERS, others)])];
    let mut run = Run::of(&shared(0, 90));
    for expected in [false, false, true] {
        let result = run.observe(&shared(0, 90));
        assert_eq!((summary(&result).unwrap().1, result.idle), (vec![("GPU-0", Some(0))], expected));
    }
    let second = ProcessKey { pid: 42, start_ticks: 9 };
    let together = [held(&[(OURS, 15), (second, 15)])];
    let mut run = Run::of(&together);
    run.tree.insert(second.pid, second);
    let result = run.observe(&together);
    assert_eq!(summary(&result).unwrap().1, [("GPU-0", Some(30))], "the use of its processes is summed");
    let reused = ProcessKey { start_ticks: 10, ..OURS };
    let mut run = Run::of(&shared(0, 90));
    run.tree = HashMap::from([(reused.pid, reused)]);
    assert_eq!(summary(&run.observe(&shared(0, 90))).unwrap().0, Basis::Visible, "pid reused");
}

#[test]
fn command_without_context_counts_all_visible_gpus() {
    let (idle, others) = (held(&[]), held(&[(OTHERS, 90)]));
    let gpus = [idle.clone(), others.clone()];
    let mut run = Run::of(&gpus);
    let result = run.observe(&gpus);
    assert_eq!(summary(&result), Some((Basis::Visible, vec![("GPU-0", Some(0)), ("GPU-1", Some(90))])));
    assert!(!run.observe(&gpus).idle && !run.observe(&gpus).idle && !run.observe(&gpus).idle);
    run.visible = Visible::parse(Some("GPU-0"), None);
    assert!(run.observe(&gpus).idle, "the visible GPU was idle all the time");
    run.visible = Visible::parse(Some(""), None);
    for _ in 0..4 {
        assert_eq!(
            run.observe(&gpus),
            Observation { counted: Some(Counted { basis: Basis::Visible, gpus: vec![] }), idle: false }
        );
    }
}

#[test]
fn first_context_resets_the_count() {
    let (none, context) = (held(&[]), held(&[(OURS, 0)]));
    let mut run = Run::of(std::slice::from_ref(&none));
    assert_eq!(run.each(&[&none, &none, &context, &context, &context]), [false, false, false, false, true]);
    let one = [context.clone(), none.clone()];
    let mut run = Run::of(&one);
    run.observe(&one);
    run.observe(&one);
    let two = [context.clone(), context];
    let idle: Vec<bool> = (0..3).map(|_| run.observe(&two).idle).collect();
    assert_eq!(idle, [false, false, true], "a newly used GPU starts with a count of zero");
}

#[test]
fn hung_gpu_prevents_idleness_and_lost_gpu_does_not() {
    let ours = held(&[(OURS, 0)]);
    for (fault, expected) in [(Fault::Lost, true), (Fault::Timeout, false)] {
        let gpus = [ours.clone(), faulty(fault)];
        let mut run = Run::of(&gpus);
        let idle = (0..5).any(|_| run.observe(&gpus).idle);
        assert_eq!(idle, expected, "{fault:?}");
        run.visible = Visible::parse(Some("GPU-0"), None);
        assert!((0..5).any(|_| run.observe(&gpus).idle), "the command cannot use an invisible GPU");
    }
    let unclear = [faulty(Fault::Timeout), held(&[])];
    assert_eq!(Run::of(&unclear).observe(&unclear).counted, None);
    let unlisted = [ours, TestGpu { listed: false, ..held(&[]) }];
    let mut run = Run::of(&unlisted);
    assert!((0..3).any(|_| run.observe(&unlisted).idle), "an idle device is idle for the command as well");
}

#[test]
fn device_use_counts_in_other_namespace_and_with_count_all() {
    let shared = [held(&[(OURS, 0), (OTHERS, 90)]), held(&[])];
    let mut run = Run::of(&shared);
    run.namespace = PidNamespace::Other;
    let expected = vec![("GPU-0", Some(90)), ("GPU-1", Some(0))];
    assert_eq!(summary(&run.observe(&shared)), Some((Basis::Unattributed, expected.clone())));
    let mut run = Run::of(&shared);
    run.detector.rule.count = Count::All;
    run.visible = Visible::parse(Some("GPU-1"), None);
    assert_eq!(summary(&run.observe(&shared)), Some((Basis::All, expected)));
}

#[test]
fn mig_gpu_prevents_idleness_unless_all_instances_are_known() {
    let ours = held(&[(OURS, 0)]);
    for (instances, expected) in [(Some(0), true), (None, false)] {
        let divided = TestGpu { listed: false, device: None, instances, ..held(&[]) };
        let gpus = [ours.clone(), divided];
        let mut run = Run::of(&gpus);
        assert_eq!((0..5).any(|_| run.observe(&gpus).idle), expected, "{instances:?}");
    }
}

#[test]
fn mig_instance_use_is_unknown() {
    let instance = TestGpu { mig: true, ..held(&[(OURS, 0)]) };
    let mut run = Run::of(std::slice::from_ref(&instance));
    for _ in 0..5 {
        let result = run.observe(std::slice::from_ref(&instance));
        assert_eq!((summary(&result).unwrap().1, result.idle), (vec![("GPU-0", None)], false));
        assert_eq!(result.counted.unwrap().gpus[0].why, "mig");
    }
}

#[test]
fn interval_counts_with_its_maximum() {
    let of = |percent| [held(&[(OURS, percent)])];
    let mut run = Run::of(&of(0));
    run.detector.rule.samples = 4;
    let mut sample = |first, last| {
        let early = run.observe_part(&of(first), 0, Part::First);
        let result = run.observe_part(&of(last), 0, Part::Last);
        (early.idle, summary(&result).unwrap().1[0].1, result.idle)
    };
    assert_eq!(sample(5, 0), (false, Some(5), false));
    assert_eq!(sample(80, 3), (false, Some(80), false), "use between two intervals counts");
    assert_eq!(sample(0, 0), (false, Some(0), false));
    assert_eq!(sample(0, 7), (false, Some(7), true), "idle only at the end of an interval");
    let mut run = Run::of(&of(0));
    run.observe_part(&[faulty(Fault::Timeout)], 0, Part::First);
    let result = run.observe_part(&[TestGpu { listed: true, ..held(&[]) }], 0, Part::Last);
    assert_eq!(summary(&result).unwrap().1, [("GPU-0", None)], "a part of the interval is unknown");
    run.observe_part(&of(80), 0, Part::First);
    run.observe_part(&[faulty(Fault::Timeout)], 0, Part::Last);
    run.observe_part(&of(0), 0, Part::First);
    run.observe_part(&of(1), 0, Part::Last);
    assert_eq!(
        summary(&run.observe(&of(2))).unwrap().1,
        [("GPU-0", Some(2))],
        "each interval has its own maximum"
    );
}
