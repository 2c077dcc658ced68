//! Cases of which GPUs count, and when a command is idle.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{
    About, Answer, BootId, Claim, DeviceSampler, Driver, Engines, Entry, Facts, Gaps, GpuId, GpuSample,
    Kinds, MigIds, Moment, PidNamespace, Place, Reading, Sample, Seen as Found, State, UtilSample,
};

use super::*;

const OURS: ProcessKey = ProcessKey { pid: 41, start_ticks: 9 };
const OTHERS: ProcessKey = ProcessKey { pid: 77, start_ticks: 5 };

/// What a GPU does: who holds it, how busy each of them is, and what the device says of itself.
#[derive(Clone)]
struct Made {
    holders: Vec<(ProcessKey, u32)>,
    device: Option<u32>,
    fault: Option<Fault>,
    listed: bool,
    mig: bool,
    instances: Option<u64>,
}

/// A GPU that these hold, as busy as they are.
fn held(holders: &[(ProcessKey, u32)]) -> Made {
    let device = holders.iter().map(|(_, percent)| *percent).sum();
    Made {
        holders: holders.to_vec(),
        device: Some(device),
        fault: None,
        listed: true,
        mig: false,
        instances: None,
    }
}

fn fell(fault: Fault) -> Made {
    Made { fault: Some(fault), listed: false, device: None, ..held(&[]) }
}

fn gpu(index: usize, pace: u64, state: &Made) -> GpuSample {
    let about = About {
        id: Some(GpuId(format!("GPU-{index}"))),
        mig: state.mig.then_some(MigIds { parent: None, gpu_instance: None, compute_instance: None }),
        ..About::unnamed(u32::try_from(index).unwrap())
    };
    let empty = GpuSample::faulty(about, Fault::Error);
    if state.fault.is_some() {
        return GpuSample { fault: state.fault, ..empty };
    }
    let entry = |key: ProcessKey| Entry {
        pid: key.pid,
        memory: Some(1),
        kinds: Kinds { compute: true, ..Kinds::default() },
        peak: None,
    };
    let samples: Vec<UtilSample> = state
        .holders
        .iter()
        .filter(|(_, percent)| *percent > 0)
        .map(|(key, percent)| UtilSample {
            pid: key.pid,
            stamp: pace,
            engines: Engines { sm: *percent, ..Engines::default() },
        })
        .collect();
    let sampler = |maximum| DeviceSampler::Stamped { newest: pace, maximum, filled: false };
    GpuSample {
        fault: None,
        instances: state.instances,
        entries: state.listed.then(|| state.holders.iter().map(|(key, _)| entry(*key)).collect()),
        reading: Reading {
            // The look-back is an interval.
            since: pace - 1,
            answer: if samples.is_empty() { Answer::Nothing } else { Answer::Samples(samples) },
            sampler: state.device.map_or(DeviceSampler::Silent, sampler),
            ..Reading::default()
        },
        ..empty
    }
}

fn found(key: ProcessKey) -> (u32, Found) {
    let facts = Facts {
        key,
        state: State::Sleeping,
        ppid: 1,
        comm: "python3".into(),
        uid: Some(1000),
        user: None,
        place: Place::default(),
        command: None,
        started: None,
        cpu_seconds: 0.0,
        io: None,
        orphaned: None,
        reaped_cpu_seconds: None,
        workload: None,
        exe: None,
        role: None,
        ancestors: None,
        claim: Claim::Unread,
    };
    (key.pid, Found::Found(Box::new(facts)))
}

fn sample(pace: u64, namespace: PidNamespace, gpus: &[Made]) -> Sample {
    Sample {
        seq: pace,
        at: Moment { wall: Duration::from_secs(pace), boot: Duration::from_secs(pace) },
        took: Duration::ZERO,
        interval: Duration::from_secs(1),
        boot_id: Some(BootId("boot".into())),
        namespace,
        sources: BTreeMap::new(),
        driver: Driver::default(),
        gpus: gpus.iter().enumerate().map(|(index, state)| gpu(index, pace, state)).collect(),
        processes: [found(OURS), found(OTHERS)].into(),
        relatives: None,
        groups: BTreeMap::new(),
        device_processes: None,
        leases: None,
        quotas: None,
        mps: None,
        gaps: Gaps::default(),
        workers_hung: 0,
    }
}

/// Which look of a sample.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    First,
    Last,
}

/// A run of the watch.
struct Run {
    watch: Watch,
    before: Snapshot,
    pace: u64,
    namespace: PidNamespace,
    tree: HashMap<u32, ProcessKey>,
    visible: Visible,
}

impl Run {
    /// Below 20 % in three looks; one was taken before, at GPUs like these.
    fn of(gpus: &[Made]) -> Self {
        let namespace = PidNamespace::Host;
        Self {
            watch: Watch::new(Rule { threshold: 20, looks: 3, max_gap: 1, count: Count::Used }),
            before: Snapshot::between(None, sample(10, namespace, gpus)),
            pace: 10,
            namespace,
            tree: HashMap::from([(OURS.pid, OURS)]),
            visible: Visible::All,
        }
    }

    fn see(&mut self, gpus: &[Made]) -> Seen {
        self.look(gpus, 0, Part::Last)
    }

    fn look(&mut self, gpus: &[Made], missed: u32, part: Part) -> Seen {
        self.pace += 1 + u64::from(missed);
        let now = Snapshot::between(Some(&self.before), sample(self.pace, self.namespace, gpus));
        let (tree, visible) = (&self.tree, &self.visible);
        let ends_sample = part == Part::Last;
        let look = Look { before: Some(&self.before), now: &now, tree, visible, missed, ends_sample };
        let seen = self.watch.see(&look);
        self.before = now;
        seen
    }

    /// Whether it is idle after each of these samples of one GPU.
    fn each(&mut self, states: &[&Made]) -> Vec<bool> {
        states.iter().map(|state| self.see(std::slice::from_ref(state)).idle).collect()
    }
}

/// Why GPUs count, their names, and what is shown of them.
type Shown<'a> = (Basis, Vec<(&'a str, Option<u32>)>);

fn shown(seen: &Seen) -> Option<Shown<'_>> {
    let counted = seen.counted.as_ref()?;
    Some((counted.basis, counted.gpus.iter().map(|figure| (figure.gpu.as_str(), figure.shown(20))).collect()))
}

#[test]
fn as_many_samples_in_a_row_as_were_asked_for() {
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
fn unknown_is_not_idle() {
    let (idle, hung) = (held(&[(OURS, 0)]), fell(Fault::Timeout));
    let silent = Made { device: None, ..idle.clone() };
    for unknown in [&hung, &silent, &Made { listed: false, device: None, ..idle.clone() }] {
        let mut run = Run::of(std::slice::from_ref(&idle));
        assert!(!run.each(&[unknown; 100]).contains(&true));
        let mut run = Run::of(std::slice::from_ref(&idle));
        run.each(&[&idle, &idle, unknown, unknown, unknown]);
        assert_eq!(run.each(&[&idle, &idle]), [false, false], "too long a gap: they are counted again");
    }
    let mut run = Run::of(&[]);
    assert_eq!((0..9).map(|_| run.see(&[])).filter(|seen| seen.idle).count(), 0, "no GPU is not idle");
    assert_eq!(shown(&run.see(&[])), None);
}

#[test]
fn paces_that_were_missed_are_unknown() {
    let idle = [held(&[(OURS, 0)])];
    let mut run = Run::of(&idle);
    run.see(&idle);
    run.see(&idle);
    assert!(run.look(&idle, 1, Part::Last).idle, "within the gap");
    let mut run = Run::of(&idle);
    run.see(&idle);
    run.see(&idle);
    assert!(!run.look(&idle, 2, Part::Last).idle);
}

#[test]
fn only_the_gpus_count_on_which_the_command_has_a_context() {
    let others = held(&[(OTHERS, 90)]);
    let mut run = Run::of(&[held(&[(OURS, 0)]), others.clone()]);
    for expected in [false, false, true] {
        let seen = run.see(&[held(&[(OURS, 0)]), others.clone()]);
        assert_eq!(shown(&seen), Some((Basis::Used, vec![("GPU-0", Some(0))])));
        assert_eq!(seen.idle, expected);
    }
    let both = [held(&[(OURS, 0)]), held(&[(OURS, 50)])];
    let mut run = Run::of(&both);
    for _ in 0..5 {
        let seen = run.see(&both);
        assert_eq!(shown(&seen), Some((Basis::Used, vec![("GPU-0", Some(0)), ("GPU-1", Some(50))])));
        assert!(!seen.idle, "all of them have to be idle");
    }
}

#[test]
fn on_a_shared_gpu_the_commands_own_use_counts() {
    let shared = |ours, others| [held(&[(OURS, ours), (OTHERS, others)])];
    let mut run = Run::of(&shared(0, 90));
    for expected in [false, false, true] {
        let seen = run.see(&shared(0, 90));
        assert_eq!((shown(&seen).unwrap().1, seen.idle), (vec![("GPU-0", Some(0))], expected));
    }
    let second = ProcessKey { pid: 42, start_ticks: 9 };
    let together = [held(&[(OURS, 15), (second, 15)])];
    let mut run = Run::of(&together);
    run.tree.insert(second.pid, second);
    let seen = run.see(&together);
    assert_eq!(shown(&seen).unwrap().1, [("GPU-0", Some(30))], "its processes' use adds up");
    let reused = ProcessKey { start_ticks: 10, ..OURS };
    let mut run = Run::of(&shared(0, 90));
    run.tree = HashMap::from([(reused.pid, reused)]);
    assert_eq!(shown(&run.see(&shared(0, 90))).unwrap().0, Basis::Visible, "a pid is not an identity");
}

#[test]
fn without_a_context_all_visible_gpus_count() {
    let (idle, others) = (held(&[]), held(&[(OTHERS, 90)]));
    let gpus = [idle.clone(), others.clone()];
    let mut run = Run::of(&gpus);
    let seen = run.see(&gpus);
    assert_eq!(shown(&seen), Some((Basis::Visible, vec![("GPU-0", Some(0)), ("GPU-1", Some(90))])));
    assert!(!run.see(&gpus).idle && !run.see(&gpus).idle && !run.see(&gpus).idle);
    run.visible = Visible::parse(Some("GPU-0"), None);
    assert!(run.see(&gpus).idle, "it was idle all the time");
    run.visible = Visible::parse(Some(""), None);
    for _ in 0..4 {
        assert_eq!(
            run.see(&gpus),
            Seen { counted: Some(Counted { basis: Basis::Visible, gpus: vec![] }), idle: false }
        );
    }
}

#[test]
fn whoever_opens_its_first_context_is_at_work() {
    let (none, context) = (held(&[]), held(&[(OURS, 0)]));
    let mut run = Run::of(std::slice::from_ref(&none));
    assert_eq!(run.each(&[&none, &none, &context, &context, &context]), [false, false, false, false, true]);
    let one = [context.clone(), none.clone()];
    let mut run = Run::of(&one);
    run.see(&one);
    run.see(&one);
    let two = [context.clone(), context];
    let idle: Vec<bool> = (0..3).map(|_| run.see(&two).idle).collect();
    assert_eq!(idle, [false, false, true], "a GPU that comes to it needs as many samples as any");
}

#[test]
fn a_gpu_that_hangs_may_hide_work_and_one_that_is_lost_may_not() {
    let ours = held(&[(OURS, 0)]);
    for (fault, expected) in [(Fault::Lost, true), (Fault::Timeout, false)] {
        let gpus = [ours.clone(), fell(fault)];
        let mut run = Run::of(&gpus);
        let idle = (0..5).any(|_| run.see(&gpus).idle);
        assert_eq!(idle, expected, "{fault:?}");
        run.visible = Visible::parse(Some("GPU-0"), None);
        assert!((0..5).any(|_| run.see(&gpus).idle), "the command cannot be on what it cannot see");
    }
    let unclear = [fell(Fault::Timeout), held(&[])];
    assert_eq!(Run::of(&unclear).see(&unclear).counted, None);
    let unlisted = [ours, Made { listed: false, ..held(&[]) }];
    let mut run = Run::of(&unlisted);
    assert!((0..3).any(|_| run.see(&unlisted).idle), "a device that does nothing does nothing for us");
}

#[test]
fn elsewhere_and_by_request_devices_count() {
    let shared = [held(&[(OURS, 0), (OTHERS, 90)]), held(&[])];
    let mut run = Run::of(&shared);
    run.namespace = PidNamespace::Other;
    let expected = vec![("GPU-0", Some(90)), ("GPU-1", Some(0))];
    assert_eq!(shown(&run.see(&shared)), Some((Basis::Unattributed, expected.clone())));
    let mut run = Run::of(&shared);
    run.watch.rule.count = Count::All;
    run.visible = Visible::parse(Some("GPU-1"), None);
    assert_eq!(shown(&run.see(&shared)), Some((Basis::All, expected)));
}

#[test]
fn a_gpu_in_mig_mode_may_have_the_command_unless_all_its_instances_were_given() {
    let ours = held(&[(OURS, 0)]);
    for (instances, expected) in [(Some(0), true), (None, false)] {
        let divided = Made { listed: false, device: None, instances, ..held(&[]) };
        let gpus = [ours.clone(), divided];
        let mut run = Run::of(&gpus);
        assert_eq!((0..5).any(|_| run.see(&gpus).idle), expected, "{instances:?}");
    }
}

#[test]
fn mig_instances_tell_nothing_of_their_use() {
    let instance = Made { mig: true, ..held(&[(OURS, 0)]) };
    let mut run = Run::of(std::slice::from_ref(&instance));
    for _ in 0..5 {
        let seen = run.see(std::slice::from_ref(&instance));
        assert_eq!((shown(&seen).unwrap().1, seen.idle), (vec![("GPU-0", None)], false));
        assert_eq!(seen.counted.unwrap().gpus[0].why, "mig");
    }
}

#[test]
fn a_sample_of_several_looks_is_the_most_of_all() {
    let of = |percent| [held(&[(OURS, percent)])];
    let mut run = Run::of(&of(0));
    run.watch.rule.looks = 4;
    let mut sample = |first, last| {
        let early = run.look(&of(first), 0, Part::First);
        let seen = run.look(&of(last), 0, Part::Last);
        (early.idle, shown(&seen).unwrap().1[0].1, seen.idle)
    };
    assert_eq!(sample(5, 0), (false, Some(5), false));
    assert_eq!(sample(80, 3), (false, Some(80), false), "work between two samples counts");
    assert_eq!(sample(0, 0), (false, Some(0), false));
    assert_eq!(sample(0, 7), (false, Some(7), true), "and not before a sample has ended");
    let mut run = Run::of(&of(0));
    run.look(&[fell(Fault::Timeout)], 0, Part::First);
    let seen = run.look(&[Made { listed: true, ..held(&[]) }], 0, Part::Last);
    assert_eq!(shown(&seen).unwrap().1, [("GPU-0", None)], "of a part nobody knows");
    run.look(&of(80), 0, Part::First);
    run.look(&[fell(Fault::Timeout)], 0, Part::Last);
    run.look(&of(0), 0, Part::First);
    run.look(&of(1), 0, Part::Last);
    assert_eq!(
        shown(&run.see(&of(2))).unwrap().1,
        [("GPU-0", Some(2))],
        "what was seen belongs to its own sample"
    );
}
