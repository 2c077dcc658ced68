//! `make bench`: CPU time of one tick with 10,000 processes and 100 rules. Absolute values are those of this
//! machine.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a bench reads the clock and fails loudly"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::attributes;
use bailiff_engine::engine::{Engine, Now};
use bailiff_engine::policy::{
    Action, Condition, Exception, Field, Leaf, Limits, Mode, Pattern, Policy, Rule, Selector, Severity, Span,
    Step,
};
use bailiff_engine::value::{Bounds, Test};
use bailiff_engine::view::View;
use bailiff_snapshot::{Place, wire};
use rustix::time::{ClockId, clock_gettime};
use snapshot_fixtures::stream as fixtures;

const PROCESSES: u32 = 10_000;
const RULES: usize = 100;
const TICKS: u64 = 40;

fn main() {
    let mut engine = Engine::new(Arc::new(policy()), Mode::Enforce);
    let mut before: Option<Arc<View>> = None;
    let (mut joins, mut ticks) = (Vec::new(), Vec::new());
    for seq in 1..=TICKS {
        let snapshot = snapshot(seq);
        let began = cpu();
        let view = Arc::new(View::between(before.as_deref(), snapshot));
        joins.push(cpu().saturating_sub(began));
        let now = Now { boot: view.boot(), wall: view.boot() };
        let began = cpu();
        engine.tick(now, Arc::clone(&view)).expect("snapshots are in order");
        ticks.push(cpu().saturating_sub(began));
        before = Some(view);
    }
    let calm = &mut ticks[10..];
    calm.sort_unstable();
    joins.sort_unstable();
    println!(
        "tick of {PROCESSES} processes by {RULES} rules: {:.1} ms median, {:.1} ms worst of {}; joining two snapshots {:.1} ms median",
        millis(calm[calm.len() / 2]),
        millis(calm[calm.len() - 1]),
        calm.len(),
        millis(joins[joins.len() / 2]),
    );
}

/// Returns the CPU time of this thread, which other load on the machine does not change.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A policy whose rules never reach a step, so that all of them evaluate all targets in every tick.
fn policy() -> Policy {
    Policy {
        sha256: String::new(),
        interval: None,
        limits: Limits {
            mass_share: 0.9,
            mass_min: 4,
            per_gpu_hour: 2,
            per_user_hour: 3,
            per_node_hour: 6,
            per_namespace_hour: 1000,
            max_processes: 512,
            breaker_reset: Duration::from_hours(1),
        },
        protect: vec![Exception {
            condition: select(Field::Users, &["slurm", "monitor"]),
            reason: None,
            until: None,
        }],
        allow_root: false,
        channels: BTreeMap::new(),
        leases: None,
        slurm: std::sync::Arc::default(),
        kubernetes: None,
        rules: (0..RULES).map(rule).collect(),
    }
}

/// Rules that share some comparisons, as real ones do.
fn rule(number: usize) -> Rule {
    let step = |of: usize| f64::from(u8::try_from(number % of).unwrap_or_default());
    Rule {
        hold: None,
        name: format!("rule-{number}").into(),
        mode: Mode::Enforce,
        target: Kind::Process,
        select: Some(Condition::All(vec![
            select(Field::Comms, &["python3", "jupyter"]),
            at("vram", Bounds { min: Some(1e9 + step(100) * 1e6), ..Bounds::default() }),
        ])),
        except: Vec::new(),
        when: Condition::All(vec![
            at("gpu_util", Bounds { max: Some(0.01 + step(7) * 0.01), ..Bounds::default() }),
            at("cpu_util", Bounds { max: Some(0.05 + step(3) * 0.05), ..Bounds::default() }),
        ]),
        condition: number.to_string(),
        span: Span::Samples(1_000_000),
        max_gap: 2,
        startup_grace: Duration::from_mins(10),
        clear_after: Span::Samples(3),
        cooldown: Duration::from_mins(30),
        pick: None,
        then: vec![
            Step { after: Span::Samples(0), action: Action::Flag(Severity::Warning) },
            Step {
                after: Span::Samples(9),
                action: Action::Terminate { grace: Duration::from_mins(1), requires_notice: false },
            },
        ],
    }
}

fn select(field: Field, texts: &[&str]) -> Condition {
    let patterns = texts.iter().map(|text| Pattern::Text((*text).to_owned())).collect();
    Condition::Select(Selector { field, patterns })
}

fn at(name: &str, bounds: Bounds) -> Condition {
    let attribute =
        attributes::ALL.iter().find(|attribute| attribute.name == name).expect("it is an attribute");
    Condition::Leaf(Leaf { attribute, test: Test::Within(bounds), comparison: String::new() })
}

/// A snapshot in which half of the processes are idle.
fn snapshot(seq: u64) -> wire::Snapshot {
    let processes = (0..PROCESSES).map(|number| process(1000 + number)).collect();
    let snapshot = fixtures::snapshot(seq, (0..8).map(gpu).collect(), processes);
    wire::Snapshot { relatives: Some(Vec::new()), ..snapshot }
}

fn gpu(index: u32) -> wire::Gpu {
    let pids = (0..PROCESSES).filter(|number| number % 8 == index).map(|number| 1000 + number);
    let holder = |pid| fixtures::holder(pid, Some(4 << 30), Some(if pid % 16 < 8 { 0 } else { 50 }));
    fixtures::gpu(&index.to_string(), pids.map(holder).collect())
}

fn process(pid: u32) -> wire::Process {
    let place = Place { cgroup: format!("/user.slice/{pid}"), ..Place::default() };
    let facts = wire::Facts {
        uid: Some(1000 + pid % 50),
        user: Some(format!("user{}", pid % 50)),
        place: place.into(),
        cpu_seconds: 1.0,
        reaped_cpu_seconds: Some(0.0),
        workload: Some(format!("tree:{pid}@100")),
        ..fixtures::facts("python3")
    };
    fixtures::process(pid, 100, facts)
}
