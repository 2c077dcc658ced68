//! Feeds the engine snapshots that no exporter would send. The engine must continue, and must not act
//! on targets that it does not know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::attributes;
use bailiff_engine::engine::{Engine, Now};
use bailiff_engine::policy::{Condition, Leaf, Mode, Rule, Span};
use bailiff_engine::value::{Bounds, Test, Unit};
use bailiff_engine::verdict::{ActionReport, Outcome, What};
use bailiff_engine::view::View;
use bailiff_snapshot::{Place, wire};

use crate::dice::Dice;
use crate::plan::{Plan, Weather};

/// Feeds a few dozen such snapshots. Returns the number of actions.
pub(crate) fn walk(seed: u64) -> u64 {
    let mut dice = Dice::new(seed);
    let dice = &mut dice;
    let mut policy = (*Plan::new(dice, Weather::Rough, false).policy()).clone();
    let first = policy.rules[0].clone();
    policy.rules.extend(Kind::ALL.map(|kind| rule_with_all_conditions(&first, kind)));
    let policy = Arc::new(policy);
    let mut engine = Engine::new(policy.clone(), Mode::Enforce);
    let mut before: Option<Arc<View>> = None;
    let (mut boot_ms, mut acts) = (1_000_000_u64, 0);
    for seq in 0..24 {
        boot_ms = if dice.percent(95) { boot_ms.saturating_add(dice.of(1, 6000)) } else { number(dice) };
        let view = Arc::new(View::between(before.as_deref(), snapshot(dice, seq, boot_ms)));
        let now = Duration::from_millis(if dice.percent(90) { boot_ms } else { number(dice) });
        let wall = Duration::from_millis(number(dice));
        for verdict in engine.tick(Now { boot: now, wall }, view.clone()).into_iter().flatten() {
            if let What::Act(id, _) = verdict.what {
                assert!(verdict.subject.members.iter().all(|member| member.key.is_some()), "{verdict:?}");
                acts += 1;
                let outcome = Outcome::Done;
                let released = Some(number(dice));
                let report = ActionReport { acted: true, released, ..ActionReport::new(id, outcome, "") };
                engine.report(&report);
            }
        }
        before = Some(view);
        if dice.percent(5) {
            let text = serde_json::to_string(&engine.saved()).unwrap();
            engine = Engine::new(policy.clone(), Mode::Enforce);
            engine.restore(serde_json::from_str(&text).unwrap(), Now { boot: now, wall });
        }
    }
    acts
}

/// Returns a rule with every condition that a kind of target supports.
fn rule_with_all_conditions(like: &Rule, kind: Kind) -> Rule {
    let attributes = attributes::ALL.iter().filter(|attribute| attribute.of.contains(&kind));
    let conditions = attributes.map(|attribute| {
        let test = match attribute.unit {
            Unit::Flag => Test::Is(true),
            Unit::Words(_) => Test::AnyOf(1),
            _ => Test::Within(Bounds { max: Some(1.0), ..Bounds::default() }),
        };
        Condition::Leaf(Leaf { attribute, test, comparison: String::new() })
    });
    Rule {
        name: Arc::from(format!("curious-{kind:?}")),
        target: kind,
        select: None,
        except: Vec::new(),
        when: Condition::Any(conditions.collect()),
        condition: format!("curious {kind:?}"),
        span: Span::Time(Duration::from_secs(1)),
        pick: None,
        ..like.clone()
    }
}

fn number(dice: &mut Dice) -> u64 {
    let small = dice.below(10_000_000);
    dice.pick(&[0, 1, 99, small, small, u64::from(u32::MAX), i64::MAX.unsigned_abs(), u64::MAX])
}

fn real(dice: &mut Dice) -> f64 {
    dice.pick(&[0.0, -1.0, 1.5, 1e300, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE])
}

fn text(dice: &mut Dice) -> String {
    dice.pick(&[
        "",
        "\0",
        "a",
        "é".repeat(20).as_str(),
        "process:1@1",
        "tree:1@1",
        "../..",
        "unknown",
        "gone",
    ])
    .to_owned()
}

/// Returns one of a few pids, so that pids repeat.
fn pid(dice: &mut Dice) -> u32 {
    dice.pick(&[0, 1, 2, 3, 4100, 4100, 4101, u32::MAX])
}

fn maybe<T>(dice: &mut Dice, make: impl FnOnce(&mut Dice) -> T) -> Option<T> {
    if dice.percent(80) { Some(make(dice)) } else { None }
}

fn many<T>(dice: &mut Dice, make: impl Fn(&mut Dice) -> T) -> Vec<T> {
    (0..dice.below(7)).map(|_| make(dice)).collect()
}

fn snapshot(dice: &mut Dice, seq: u64, boot_ms: u64) -> wire::Snapshot {
    let source = |dice: &mut Dice| wire::Source { up: dice.percent(90), fault: None };
    let mut sources = BTreeMap::new();
    for name in ["nvml", "proc", "made-up"] {
        if dice.percent(95) {
            sources.insert(name.to_owned(), source(dice));
        }
    }
    wire::Snapshot {
        version: wire::VERSION,
        seq,
        boot_id: dice.percent(95).then(|| "boot".to_owned()),
        wall_ms: number(dice),
        boot_ms,
        interval_ms: if dice.percent(90) { 5000 } else { number(dice) },
        pid_namespace: dice.pick(&["host", "host", "host", "other", ""]).into(),
        sources,
        gpus: many(dice, gpu),
        processes: many(dice, process),
        relatives: maybe(dice, |dice| many(dice, relative)),
        ..wire::Snapshot::default()
    }
}

fn gpu(dice: &mut Dice) -> wire::Gpu {
    wire::Gpu {
        index: text(dice),
        uuid: maybe(dice, |dice| dice.pick(&["GPU-0", "GPU-0", "GPU-1", ""]).to_owned()),
        parent_uuid: dice.percent(10).then(|| "GPU-0".to_owned()),
        fault: dice.percent(5).then(|| text(dice).as_str().into()),
        mig: dice.percent(10),
        memory: maybe(dice, |dice| wire::Memory {
            total: number(dice),
            free: number(dice),
            used: number(dice),
            unaccounted: dice.pick(&[None, Some(0), Some(i64::MIN), Some(i64::MAX)]),
            ..wire::Memory::default()
        }),
        utilization: maybe(dice, |dice| dice.pick(&[0, 100, 255, u32::MAX])),
        listed: maybe(dice, number),
        instances: dice.percent(5).then(|| number(dice)),
        holders: many(dice, |dice| wire::Holder {
            pid: pid(dice),
            kinds: dice.pick(&["C", "", "G", "M+C", "?"]).to_owned(),
            memory: maybe(dice, number),
            utilization: maybe(dice, |dice| dice.pick(&[0, 0, 0, 100, u32::MAX])),
            idle_ms: number(dice),
            ..wire::Holder::default()
        }),
        ..wire::Gpu::default()
    }
}

fn process(dice: &mut Dice) -> wire::Process {
    wire::Process {
        pid: pid(dice),
        start_ticks: maybe(dice, |dice| dice.pick(&[100, 100, 100, 0, u64::MAX])),
        first_seq: dice.percent(30).then(|| number(dice)),
        state: dice.pick(&["sleeping", "sleeping", "gone", "unknown", ""]).into(),
        facts: maybe(dice, |dice| wire::Facts {
            comm: text(dice),
            ppid: pid(dice),
            uid: dice.pick(&[None, Some(1000), Some(1000), Some(0), Some(u32::MAX)]),
            user: maybe(dice, text),
            place: Place { cgroup: text(dice), ..Place::default() }.into(),
            command: maybe(dice, text),
            cpu_seconds: real(dice),
            io_bytes: maybe(dice, number),
            orphaned: maybe(dice, |dice| dice.percent(50)),
            reaped_cpu_seconds: maybe(dice, real),
            workload: maybe(dice, |dice| dice.pick(&["", "slurm:1", "slurm:1", "tree:1@1"]).to_owned()),
            exe: maybe(dice, text),
            exe_uid: maybe(dice, |dice| u32::try_from(dice.of(0, 2)).unwrap()),
            groups: maybe(dice, |dice| many(dice, text)),
            role: maybe(dice, |dice| dice.pick(&["mps_server", "", "x"]).into()),
            ..wire::Facts::default()
        }),
    }
}

fn relative(dice: &mut Dice) -> wire::Relative {
    wire::Relative {
        pid: pid(dice),
        start_ticks: number(dice),
        ppid: pid(dice),
        uid: maybe(dice, |_| 1000),
        user: maybe(dice, text),
        comm: text(dice),
        state: text(dice).as_str().into(),
        workload: dice.pick(&["", "slurm:1", "tree:1@1"]).to_owned(),
        place: Place { cgroup: text(dice), ..Place::default() }.into(),
        exe: maybe(dice, text),
        exe_uid: maybe(dice, |dice| u32::try_from(dice.of(0, 2)).unwrap()),
        command: maybe(dice, text),
        cpu_seconds: real(dice),
        reaped_cpu_seconds: real(dice),
    }
}
