//! Validates a file of rule tests; all errors are reported, each with its line.

use std::sync::Arc;
use std::time::Duration;

use super::fixture::Lease;
use super::fixture::{Device, Fixture, TestProcess};
use super::parse::{Faults, bytes, interval, moment, percents, plays, sample, times, words, words_of};
use super::series::{self, Timeline};
use super::written::{self, Text};
use crate::commands::layout::{foreign, length};
use bailiff_engine::policy::Policy;
use bailiff_engine::value::Unit;
use bailiff_engine::verdict::Hold;

/// Default start of a test: 2026-01-01T00:00:00Z.
const START: Duration = Duration::from_hours(490_896);
const INTERVAL: Duration = Duration::from_secs(5);
const GIB: u64 = 1 << 30;
/// Steps that a test can expect.
const STEPS: [&str; 11] = [
    "flag",
    "clear",
    "notify",
    "due",
    "signal",
    "terminate",
    "release_lease",
    "shutdown_mps",
    "exec",
    "withheld",
    "reprieve",
];

/// One test.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) policy: Arc<Policy>,
    pub(super) name: String,
    pub(super) fixture: Fixture,
    pub(super) samples: usize,
    pub(super) expect: Vec<Expected>,
    pub(super) never: Vec<Pattern>,
}

/// An expected step.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) sample: usize,
    pub(super) what: Pattern,
}

/// Permitted keys of a step.
#[derive(Debug, Default)]
pub(super) struct Pattern {
    pub(super) rule: Option<String>,
    pub(super) step: Option<String>,
    pub(super) target: Option<String>,
    pub(super) hold: Option<String>,
}

/// Settings of the file.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) start: Duration,
    interval: Duration,
}

/// Validates the settings of the file.
pub(super) fn head(file: &written::File, faults: &mut Faults) -> Head {
    let start = file.start.as_ref().and_then(|text| faults.take(text, moment(&text.value)));
    let interval = file.interval.as_ref().and_then(|text| faults.take(text, interval(&text.value)));
    Head { start: start.unwrap_or(START), interval: interval.unwrap_or(INTERVAL) }
}

/// Validates one test.
pub(super) fn case(test: written::Test, head: &Head, policy: &Arc<Policy>, faults: &mut Faults) -> Case {
    let interval = test.interval.as_ref().and_then(|text| faults.take(text, interval(&text.value)));
    let interval = interval.unwrap_or(head.interval);
    let devices: Vec<Device> = match &test.gpus {
        Some(gpus) => gpus.iter().map(|gpu| device(gpu, faults)).collect(),
        None => vec![Device::usual()],
    };
    let mut actors = Vec::new();
    for process in &test.targets {
        if actors.iter().any(|actor: &TestProcess| actor.pid == process.pid) {
            faults.0.push(format!("test {:?}: process {} is listed twice", test.name, process.pid));
        }
        actors.push(actor(process, (&devices, interval), faults));
    }
    let ones = |text: &Text, faults: &mut Faults| plays(Some(text), Unit::Count, faults);
    let intervals = test.intervals.as_ref().map_or(Timeline::Always(1.0), |text| ones(text, faults));
    let mut sources = Vec::new();
    for (name, text) in &test.sources {
        if !matches!(name.as_str(), "nvml" | "proc" | "redis" | "quota") {
            faults.at(text, &format!("there is no source {name:?}; valid sources: nvml, proc, redis, quota"));
        }
        sources.push((name.clone(), ones(text, faults)));
    }
    let leases = test.leases.as_ref().map(|leases| {
        let about = (devices.as_slice(), actors.as_slice(), interval);
        (0..).zip(leases).map(|(place, lease)| Lease::of(lease, place, about, faults)).collect()
    });
    let fixture = Fixture { interval, start: head.start, devices, actors, leases, intervals, sources };
    let expect: Vec<Expected> =
        test.expect.iter().filter_map(|expect| expected(expect, (policy, interval), faults)).collect();
    let samples = length_of(&fixture, &test, (&expect, interval), faults);
    let never = test.never.iter().map(|never| Pattern {
        rule: never.rule.as_ref().and_then(|rule| known_rule(rule, policy, faults)),
        step: never.step.as_ref().and_then(|step| known_step(step, faults)),
        target: never.target.as_ref().map(|target| target.value.clone()),
        hold: None,
    });
    Case { policy: Arc::clone(policy), name: test.name, fixture, samples, expect, never: never.collect() }
}

/// Returns the length of a test: that of its longest series, else up to the last expectation.
fn length_of(
    fixture: &Fixture,
    test: &written::Test,
    (expect, interval): (&[Expected], Duration),
    faults: &mut Faults,
) -> usize {
    let last = expect.iter().map(|expect| expect.sample + 1).max().unwrap_or_default();
    match fixture.samples() {
        0 if last == 0 => {
            faults.0.push(format!("test {:?}: the length is missing", foreign(&test.name)));
            0
        }
        0 => last,
        samples => {
            for expect in test
                .expect
                .iter()
                .filter(|expect| sample(&expect.at.value, interval).is_ok_and(|sample| sample >= samples))
            {
                let end = interval.saturating_mul(u32::try_from(samples - 1).unwrap_or(u32::MAX));
                let message = format!("the last sample is {}, at {}", samples - 1, length(end));
                faults.at(&expect.at, &message);
            }
            samples
        }
    }
}

fn expected(
    expect: &written::Expect,
    (policy, interval): (&Policy, Duration),
    faults: &mut Faults,
) -> Option<Expected> {
    let rule = known_rule(&expect.rule, policy, faults);
    let step = known_step(&expect.step, faults);
    if let Some(hold) = &expect.hold
        && !Hold::ALL.iter().any(|known| known.name() == hold.value)
    {
        let known: Vec<&str> = Hold::ALL.iter().map(|hold| hold.name()).collect();
        faults.at(hold, &format!("{:?} is not a hold; valid holds: {}", hold.value, known.join(", ")));
    }
    let sample = match sample(&expect.at.value, interval) {
        Ok(sample) => sample,
        Err(message) => {
            faults.at(&expect.at, &message);
            return None;
        }
    };
    let target = expect.target.as_ref().map(|target| target.value.clone());
    let hold = expect.hold.as_ref().map(|hold| hold.value.clone());
    Some(Expected { sample, what: Pattern { rule: Some(rule?), step: Some(step?), target, hold } })
}

fn known_rule(rule: &Text, policy: &Policy, faults: &mut Faults) -> Option<String> {
    if policy.rules.iter().any(|known| *known.name == *rule.value) {
        return Some(rule.value.clone());
    }
    let known: Vec<&str> = policy.rules.iter().map(|rule| &*rule.name).collect();
    faults.at(rule, &format!("there is no rule {:?}; the file has {}", rule.value, known.join(", ")));
    None
}

fn known_step(step: &Text, faults: &mut Faults) -> Option<String> {
    if STEPS.contains(&step.value.as_str()) {
        return Some(step.value.clone());
    }
    faults.at(step, &format!("there is no step {:?}; valid steps: {}", step.value, STEPS.join(", ")));
    None
}

fn device(gpu: &written::Gpu, faults: &mut Faults) -> Device {
    let memory = gpu.memory.as_ref().and_then(|text| faults.take(text, bytes(&text.value)));
    Device {
        index: gpu.index.clone(),
        uuid: gpu.uuid.clone().unwrap_or_else(|| format!("GPU-{}", gpu.index)),
        memory: memory.unwrap_or(80 * GIB),
        mig: gpu.mig,
        gpu_util: percents(gpu.series.gpu_util.as_ref(), faults),
        used: plays(gpu.series.vram_used.as_ref(), Unit::Bytes, faults),
        unaccounted: plays(gpu.series.vram_unaccounted.as_ref(), Unit::Bytes, faults),
        unreleased: plays(gpu.series.vram_unreleased.as_ref(), Unit::Bytes, faults),
        unlisted: plays(gpu.series.unlisted_processes.as_ref(), Unit::Count, faults),
        answers: match &gpu.series.answers {
            Some(text) => plays(Some(text), Unit::Count, faults),
            None => Timeline::Always(1.0),
        },
    }
}

fn actor(
    process: &written::Process,
    (devices, interval): (&[Device], Duration),
    faults: &mut Faults,
) -> TestProcess {
    let (from, until, age) = times((&process.from, &process.until, &process.age), interval, faults);
    let series = &process.series;
    let vram = match (&series.vram, &process.vram) {
        (Some(text), _) => plays(Some(text), Unit::Bytes, faults),
        (None, Some(text)) => faults
            .take(text, series::amount(&text.value, Unit::Bytes))
            .map_or(Timeline::Never, Timeline::Always),
        #[expect(clippy::cast_precision_loss, reason = "2^30 is a whole number")]
        (None, None) => Timeline::Always(GIB as f64),
    };
    let mut holds = Vec::new();
    for index in process.gpus.clone().unwrap_or_else(|| vec!["0".to_owned()]) {
        match devices.iter().position(|device| device.index == index) {
            Some(place) => holds.push(place),
            None => faults.0.push(format!("process {}: there is no GPU {index:?}", process.pid)),
        }
    }
    if let (Some(namespace), None) = (&process.namespace, &process.pod) {
        faults.at(namespace, "`namespace` needs `pod`: only a process in a pod has a namespace");
    }
    let quota = process.quota.as_ref().and_then(|text| faults.take(text, bytes(&text.value)));
    TestProcess {
        pid: process.pid,
        quota,
        quota_denied: plays(series.quota_denied.as_ref(), Unit::Count, faults),
        facts: super::fixture::ProcessFacts::of(process, uid(process, faults)),
        holds,
        context: process.context.clone().unwrap_or_else(|| "C".to_owned()),
        age,
        from,
        until,
        vram,
        gpu_util: percents(series.gpu_util.as_ref(), faults),
        cpu_util: plays(series.cpu_util.as_ref(), Unit::Percent, faults),
        io_rate: plays(series.io_rate.as_ref(), Unit::BytesPerSecond, faults),
        mps_status: match &series.mps_status {
            Some(text) => words(text, &words_of("mps_status"), faults),
            None => Timeline::Never,
        },
        state: match &series.state {
            Some(text) => words(text, &words_of("state"), faults),
            None => Timeline::Always("sleeping".to_owned()),
        },
        orphaned: series
            .orphaned
            .as_ref()
            .map_or(Timeline::Never, |text| words(text, &["true", "false"], faults)),
    }
}

fn uid(process: &written::Process, faults: &mut Faults) -> Option<u32> {
    let Some(text) = &process.uid else { return Some(1000) };
    if text.value == "_" {
        return None;
    }
    let uid = text.value.parse::<u32>().map_err(|_| format!("{:?} is not a uid", text.value));
    faults.take(text, uid)
}
