//! Validates a file of rule tests; all errors are reported, each with its line.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::fixture::{Device, Fixture, Lease, TestJob, TestProcess, facts};
use super::messages::{self, Message};
use super::parse::{
    bytes, interval, list, moment, numbers, percents, play, plays, sample, string, strings, table, times,
    words, words_of,
};
use super::series::Timeline;
use crate::commands::layout::length;
use bailiff_engine::policy::Policy;
use bailiff_engine::value::Unit;
use bailiff_engine::verdict::Hold;
use bailiff_engine::yaml::{self, Data, Fault, Faults, Fields, Node};
use bailiff_snapshot::cgroup_memory::NO_LIMIT;
use bailiff_snapshot::{ClockEvent, RecoveryAction};

/// Default start of a test: 2026-01-01T00:00:00Z.
const START: Duration = Duration::from_hours(490_896);
const INTERVAL: Duration = Duration::from_secs(5);
const GIB: u64 = 1 << 30;
/// Steps that a test can expect.
const STEPS: [&str; 14] = [
    "flag",
    "clear",
    "notify",
    "due",
    "signal",
    "terminate",
    "release_lease",
    "cancel_job",
    "evict_pod",
    "stop_owner",
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
    at: Range<usize>,
    pub(super) sample: usize,
    pub(super) what: Pattern,
    pub(super) messages: Vec<Message>,
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
pub(super) fn head(file: &Fields<'_>, faults: &mut Faults) -> Head {
    Head {
        start: file.given("start", moment, faults).unwrap_or(START),
        interval: file.given("interval", interval, faults).unwrap_or(INTERVAL),
    }
}

/// Validates one test.
pub(super) fn case(
    test: &Fields<'_>,
    head: &Head,
    policy: &Arc<Policy>,
    faults: &mut Faults,
) -> Option<Case> {
    let interval = test.given("interval", interval, faults).unwrap_or(head.interval);
    let devices: Vec<Device> = match test.given("gpus", list, faults) {
        Some(gpus) => gpus.iter().filter_map(|gpu| device(gpu, faults)).collect(),
        None => vec![Device::usual()],
    };
    let mut actors: Vec<TestProcess> = Vec::new();
    for process in test.given("targets", list, faults).unwrap_or_default() {
        let Some(actor) = actor(process, (&devices, interval), faults) else { continue };
        if actors.iter().any(|other| other.pid == actor.pid) {
            faults.push(Fault::error(&process.at, format!("process {} is listed twice", actor.pid)));
        }
        actors.push(actor);
    }
    let about = (devices.as_slice(), actors.as_slice(), interval);
    let leases = test.given("leases", list, faults).map(|leases| {
        (0..).zip(leases).filter_map(|(place, lease)| Lease::of(lease, place, about, faults)).collect()
    });
    let jobs = test.given("jobs", list, faults).unwrap_or_default().iter();
    let jobs = jobs.filter_map(|job| TestJob::of(job, (&devices, interval), faults)).collect();
    let intervals = numbers(test, ("intervals", Unit::Count), faults).unwrap_or(Timeline::Always(1.0));
    let sources = sources(test, faults);
    let fixture = Fixture { interval, start: head.start, devices, actors, leases, jobs, intervals, sources };
    let expect = test.given("expect", list, faults).unwrap_or_default();
    let expect: Vec<Expected> =
        expect.iter().filter_map(|expect| expected(expect, (policy, interval), faults)).collect();
    let samples = length_of(&fixture, test, &expect, faults);
    let never = test.given("never", list, faults).unwrap_or_default().iter();
    let never = never.filter_map(|never| {
        let fields = Fields::open(never, table("never"), faults)?;
        Some(pattern(&fields, policy, faults))
    });
    let never = never.collect();
    let name = test.given("name", string, faults)?;
    Some(Case { policy: Arc::clone(policy), name, fixture, samples, expect, never })
}

fn sources(test: &Fields<'_>, faults: &mut Faults) -> Vec<(String, Timeline<f64>)> {
    let Some(node) = test.get("sources") else { return Vec::new() };
    if !matches!(node.data, Data::Map(_)) {
        yaml::expected(node, "a map of sources and series", faults);
    }
    let mut sources = Vec::new();
    for source in node.entries() {
        let name = &source.name;
        if !matches!(name.as_str(), "nvml" | "proc" | "redis" | "quota" | "slurm") {
            let message =
                format!("there is no source {name:?}: known are nvml, proc, redis, quota and slurm");
            faults.push(Fault::error(&source.at, message));
        }
        let play = play(&source.value, Unit::Count, faults);
        sources.extend(play.map(|play| (name.clone(), play)));
    }
    sources
}

/// Returns the length of a test: that of its longest series, else up to the last expectation.
fn length_of(fixture: &Fixture, test: &Fields<'_>, expect: &[Expected], faults: &mut Faults) -> usize {
    let samples = fixture.samples();
    if samples == 0 {
        let last = expect.iter().map(|expect| expect.sample + 1).max();
        if last.is_none() {
            faults.push(Fault::error(test.at, "the length of the test is not given"));
        }
        return last.unwrap_or_default();
    }
    for expect in expect.iter().filter(|expect| expect.sample >= samples) {
        let end = fixture.interval.saturating_mul(u32::try_from(samples - 1).unwrap_or(u32::MAX));
        let message = format!("the last sample is {}, at {}", samples - 1, length(end));
        faults.push(Fault::error(&expect.at, message));
    }
    samples
}

fn expected(node: &Node, (policy, interval): (&Policy, Duration), faults: &mut Faults) -> Option<Expected> {
    let fields = Fields::open(node, table("expect"), faults)?;
    let what = pattern(&fields, policy, faults);
    let at = fields.get("at")?;
    let messages = messages::read(&fields, policy, faults);
    Some(Expected { at: at.at.clone(), sample: sample(at, interval, faults)?, what, messages })
}

fn pattern(fields: &Fields<'_>, policy: &Policy, faults: &mut Faults) -> Pattern {
    let rules: Vec<&str> = policy.rules.iter().map(|rule| &*rule.name).collect();
    let holds = Hold::ALL.map(Hold::name);
    let mut known = |name: &str, known: &[&str], say: fn(&str, &str) -> String| {
        let text = fields.given(name, string, faults)?;
        if let Some(node) = fields.get(name).filter(|_| !known.contains(&text.as_str())) {
            faults.push(Fault::error(&node.at, say(&text, &known.join(", "))));
        }
        Some(text)
    };
    Pattern {
        rule: known("rule", &rules, |rule, known| format!("there is no rule {rule:?}; the file has {known}")),
        step: known("step", &STEPS, |step, known| format!("there is no step {step:?}; known are {known}")),
        hold: known("hold", &holds, |hold, known| format!("{hold:?} holds nothing; known are {known}")),
        target: fields.given("target", string, faults),
    }
}

fn device(node: &Node, faults: &mut Faults) -> Option<Device> {
    let fields = Fields::open(node, table("gpu"), faults)?;
    let series = fields.map("series", table("gpu_series"), faults);
    let index = fields.given("gpu", string, faults)?;
    Some(Device {
        uuid: fields.given("uuid", string, faults).unwrap_or_else(|| format!("GPU-{index}")),
        index,
        memory: fields.given("memory", bytes, faults).unwrap_or(80 * GIB),
        mig: fields.given("mig", yaml::flag, faults).unwrap_or_default(),
        gpu_util: percents(&series, "gpu_util", faults),
        used: plays(&series, ("vram_used", Unit::Bytes), faults),
        unaccounted: plays(&series, ("vram_unaccounted", Unit::Bytes), faults),
        unreleased: plays(&series, ("vram_unreleased", Unit::Bytes), faults),
        unlisted: plays(&series, ("unlisted_processes", Unit::Count), faults),
        recovery_action: words(&series, ("recovery_action", RecoveryAction::NAMES), faults)
            .unwrap_or_default(),
        clock_event: words(&series, ("clock_event", ClockEvent::NAMES), faults).unwrap_or_default(),
        row_remap_pending: plays(&series, ("row_remap_pending", Unit::Count), faults),
        row_remap_failed: plays(&series, ("row_remap_failed", Unit::Count), faults),
        ecc_uncorrected: plays(&series, ("ecc_uncorrected", Unit::Count), faults),
        xid: plays(&series, ("xid", Unit::Count), faults),
        answers: numbers(&series, ("answers", Unit::Count), faults).unwrap_or(Timeline::Always(1.0)),
    })
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a GPU, and 2^30")]
fn actor(
    node: &Node,
    (devices, interval): (&[Device], Duration),
    faults: &mut Faults,
) -> Option<TestProcess> {
    let fields = Fields::open(node, table("process"), faults)?;
    let series = fields.map("series", table("process_series"), faults);
    let (from, until, age) = times(&fields, interval, faults);
    let vram = Timeline::Always(fields.given("vram", bytes, faults).unwrap_or(GIB) as f64);
    let mut holds = Vec::new();
    for index in fields.given("gpus", strings, faults).unwrap_or_else(|| vec!["0".to_owned()]) {
        match devices.iter().position(|device| device.index == index) {
            Some(place) => holds.push(place),
            None => faults.push(Fault::error(&node.at, format!("there is no GPU {index:?}"))),
        }
    }
    if let (Some(namespace), None) = (fields.get("namespace"), fields.get("pod")) {
        let message = "`namespace` needs `pod`: only a process in a pod has a namespace";
        faults.push(Fault::error(&namespace.at, message));
    }
    let bools = ["true", "false"].as_slice();
    let mut named = |name: &str, known: &[&str]| words(&series, (name, known), faults);
    let state = named("state", words_of("state")).unwrap_or(Timeline::Always("sleeping".to_owned()));
    let mps_status = named("mps_status", words_of("mps_status")).unwrap_or_default();
    let orphaned = named("orphaned", bools).unwrap_or_default();
    let uid = match fields.get("uid").and_then(Node::text) {
        Some("_") => None,
        _ => Some(fields.given("uid", yaml::count, faults).unwrap_or(1000)),
    };
    Some(TestProcess {
        pid: fields.given("process", yaml::count, faults)?,
        quota: fields.given("quota", bytes, faults),
        cgroup_limit: match fields.get("gpu_memory_limit").and_then(Node::text) {
            Some("none") => Some(NO_LIMIT),
            _ => fields.given("gpu_memory_limit", bytes, faults),
        },
        quota_denied: plays(&series, ("quota_denied", Unit::Count), faults),
        facts: facts(&fields, uid, faults),
        holds,
        context: fields.given("context", string, faults).unwrap_or_else(|| "C".to_owned()),
        age,
        from,
        until,
        vram: numbers(&series, ("vram", Unit::Bytes), faults).unwrap_or(vram),
        gpu_util: percents(&series, "gpu_util", faults),
        cpu_util: plays(&series, ("cpu_util", Unit::Percent), faults),
        io_rate: plays(&series, ("io_rate", Unit::BytesPerSecond), faults),
        xid: plays(&series, ("xid", Unit::Count), faults),
        mps_status,
        state,
        orphaned,
    })
}
