//! Policies as plain data for the oracle. The engine's form is built from them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::attributes;
use bailiff_engine::policy::{
    Action, Condition, Exception, Field, Leaf, Limits, Mode, Order, Pattern, Pick, Policy, Rule, Selector,
    Severity, Signal, Span, Step,
};
use bailiff_engine::value::{Bounds, Test, Unit};

use crate::dice::Dice;
use crate::world::{INTERVAL, MIB};

/// A condition in the oracle's own form.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cond {
    GpuUtilMax(u32),
    CpuUtilMax(u32),
    VramMin(u64),
    VramFreeBelow(u64),
    Orphaned(bool),
    State(&'static str),
    AgeMin(u64),
    ProcessCountMax(u64),
    Users(Vec<u32>),
    Comms(Vec<&'static str>),
    Exes(Vec<&'static str>),
    Gpus(Vec<u32>),
    All(Vec<Cond>),
    Any(Vec<Cond>),
    Not(Box<Cond>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RulePlan {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) target: Kind,
    pub(crate) select: Option<Cond>,
    /// The exception and its expiry in milliseconds since the epoch.
    pub(crate) except: Option<(Cond, Option<u64>)>,
    pub(crate) when: Cond,
    pub(crate) span: Span,
    pub(crate) max_gap: u32,
    pub(crate) grace: Duration,
    pub(crate) clear_after: u32,
    pub(crate) cooldown: Duration,
    pub(crate) pick: Option<(Cond, u32, Order)>,
    pub(crate) steps: Vec<Step>,
    /// Key of the rule's windows.
    pub(crate) condition: Arc<str>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) interval: Option<u64>,
    pub(crate) limits: Limits,
    pub(crate) protect: Option<Cond>,
    pub(crate) allow_root: bool,
    pub(crate) rules: Vec<Arc<RulePlan>>,
}

/// Kind of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// No disturbances: everything must happen at its tick.
    Calm,
    /// Any events can occur.
    Rough,
}

impl RulePlan {
    /// Returns whether stopped, traced or frozen targets are exempt from the rule. They are exempt from rules
    /// about idleness that do not name one of these states.
    pub(crate) fn exempts_on_hold(&self) -> bool {
        let pick = self.pick.iter().map(|(from, ..)| from);
        let conds: Vec<&Cond> =
            self.select.iter().chain([&self.when]).chain(pick).flat_map(Cond::parts).collect();
        let idle = |cond: &&Cond| matches!(cond, Cond::GpuUtilMax(_) | Cond::CpuUtilMax(_));
        conds.iter().any(idle)
            && !conds.iter().any(|cond| matches!(cond, Cond::State("stopped" | "traced" | "frozen")))
    }
}

impl Cond {
    fn parts(&self) -> Vec<&Cond> {
        match self {
            Self::All(conds) | Self::Any(conds) => conds.iter().flat_map(Self::parts).collect(),
            Self::Not(cond) => cond.parts(),
            one => vec![one],
        }
    }

    pub(crate) fn condition(&self) -> Condition {
        match self {
            Self::GpuUtilMax(percent) => within("gpu_util", |it| it.max = Some(f64::from(*percent) / 100.0)),
            Self::CpuUtilMax(percent) => within("cpu_util", |it| it.max = Some(f64::from(*percent) / 100.0)),
            Self::VramMin(mib) => within("vram", |it| it.min = Some(bytes(*mib))),
            Self::VramFreeBelow(mib) => within("vram_free", |it| it.below = Some(bytes(*mib))),
            Self::AgeMin(seconds) => within("age", |it| it.min = Some(count(*seconds))),
            Self::ProcessCountMax(max) => within("process_count", |it| it.max = Some(count(*max))),
            Self::Orphaned(expected) => leaf("orphaned", Test::Is(*expected)),
            Self::State(state) => {
                let attribute = attribute("state");
                let Unit::Words(words) = attribute.unit else { unreachable!("state has words") };
                let index = words.iter().position(|word| word == state).unwrap();
                leaf("state", Test::AnyOf(1 << index))
            }
            Self::Users(uids) => select(Field::Users, uids),
            Self::Comms(names) => select(Field::Comms, names),
            Self::Exes(paths) => select(Field::Exe, paths),
            Self::Gpus(places) => select(Field::Gpus, places),
            Self::All(conds) => Condition::All(conds.iter().map(Self::condition).collect()),
            Self::Any(conds) => Condition::Any(conds.iter().map(Self::condition).collect()),
            Self::Not(cond) => Condition::Not(Box::new(cond.condition())),
        }
    }
}

fn attribute(name: &str) -> &'static attributes::Attribute {
    attributes::ALL.iter().find(|attribute| attribute.name == name).unwrap()
}

fn leaf(name: &str, test: Test) -> Condition {
    Condition::Leaf(Leaf { attribute: attribute(name), test, comparison: format!("{test:?}") })
}

fn within(name: &str, fill: impl FnOnce(&mut Bounds)) -> Condition {
    let mut bounds = Bounds::default();
    fill(&mut bounds);
    leaf(name, Test::Within(bounds))
}

fn select<T: ToString>(field: Field, texts: &[T]) -> Condition {
    Condition::Select(Selector {
        field,
        patterns: texts.iter().map(|text| Pattern::Text(text.to_string())).collect(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "small")]
fn bytes(mib: u64) -> f64 {
    (mib * MIB) as f64
}

#[expect(clippy::cast_precision_loss, reason = "small")]
fn count(number: u64) -> f64 {
    number as f64
}

impl RulePlan {
    fn named(mut self) -> Self {
        let mut hasher = DefaultHasher::new();
        format!("{:?} {:?} {:?}", self.target, self.when, self.pick).hash(&mut hasher);
        self.condition = Arc::from(format!("{:016x}", hasher.finish()));
        self
    }

    pub(crate) fn destructive(&self) -> bool {
        self.steps.iter().any(|step| step.action.destructive())
    }

    fn rule(&self) -> Rule {
        let except = self.except.iter().map(|(cond, until)| Exception {
            condition: cond.condition(),
            reason: Some("a reason".to_owned()),
            until: until.map(Duration::from_millis),
        });
        Rule {
            hold: None,
            name: Arc::from(self.name.as_str()),
            mode: self.mode,
            target: self.target,
            select: self.select.as_ref().map(Cond::condition),
            except: except.collect(),
            when: self.when.condition(),
            condition: self.condition.to_string(),
            span: self.span,
            max_gap: self.max_gap,
            startup_grace: self.grace,
            clear_after: Span::Samples(self.clear_after),
            cooldown: self.cooldown,
            pick: self.pick.as_ref().map(|(from, idle_for, order)| Pick {
                from: from.condition(),
                idle_for: Span::Samples(*idle_for),
                order: vec![*order],
            }),
            then: self.steps.clone(),
        }
    }
}

/// Converts a span to samples at this interval in milliseconds.
pub(crate) fn samples(span: Span, interval: u64) -> u32 {
    match span {
        Span::Samples(samples) => samples,
        Span::Time(time) => u32::try_from(time.as_millis().div_ceil(u128::from(interval))).unwrap(),
    }
}

impl Plan {
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::new(Policy {
            sha256: "0".repeat(64),
            interval: self.interval.map(Duration::from_millis),
            limits: self.limits,
            protect: self
                .protect
                .iter()
                .map(|cond| Exception { condition: cond.condition(), reason: None, until: None })
                .collect(),
            allow_root: self.allow_root,
            channels: BTreeMap::new(),
            leases: None,
            slurm: Arc::default(),
            kubernetes: None,
            rules: self.rules.iter().map(|rule| rule.rule()).collect(),
        })
    }

    pub(crate) fn new(dice: &mut Dice, weather: Weather, foreign: bool) -> Self {
        let calm = weather == Weather::Calm;
        let count = if calm { 1 } else { dice.of(1, 3) };
        let rules = (0..count).map(|index| Arc::new(RulePlan::new(dice, index, weather, foreign))).collect();
        let small = |dice: &mut Dice| u32::try_from(dice.of(1, 4)).unwrap();
        let tight = !calm && dice.percent(40);
        Self {
            interval: match dice.below(10) {
                0 if !calm => Some(INTERVAL * 3),
                1 | 2 => Some(INTERVAL),
                _ => None,
            },
            limits: Limits {
                per_gpu_hour: if tight { small(dice) } else { 100 },
                per_user_hour: if tight { small(dice) } else { 100 },
                per_node_hour: if tight { small(dice) } else { 100 },
                per_namespace_hour: 100,
                mass_share: dice.pick(&[0.5, 0.9]),
                mass_min: u32::try_from(dice.of(2, 5)).unwrap(),
                breaker_reset: Duration::from_secs(dice.pick(&[30, 600, 3600])),
                max_processes: if calm { 100 } else { dice.pick(&[1, 2, 100, 100, 100, 100]) },
            },
            protect: match dice.below(100) {
                0..10 if !calm && !foreign => Some(Cond::Users(vec![1001])),
                10..20 if !calm => Some(Cond::Gpus(vec![1, 2])),
                20..35 if !calm => {
                    Some(Cond::Any(vec![Cond::Exes(vec!["/opt/keep"]), Cond::Comms(vec!["guarded"])]))
                }
                _ => None,
            },
            allow_root: dice.percent(20),
            rules,
        }
    }
}

impl RulePlan {
    fn new(dice: &mut Dice, index: u64, weather: Weather, foreign: bool) -> Self {
        let calm = weather == Weather::Calm;
        let target = if dice.percent(25) { Kind::Gpu } else { dice.pick(&[Kind::Process, Kind::Workload]) };
        let samples = u32::try_from(dice.of(1, 6)).unwrap();
        let mut plan = Self {
            name: format!("rule-{index}"),
            mode: if dice.percent(75) { Mode::Enforce } else { Mode::DryRun },
            target,
            select: None,
            except: None,
            when: when(dice, target, index),
            span: if dice.percent(70) {
                Span::Samples(samples)
            } else {
                Span::Time(Duration::from_millis(u64::from(samples) * INTERVAL - dice.below(INTERVAL)))
            },
            max_gap: u32::try_from(dice.below(4)).unwrap(),
            grace: Duration::ZERO,
            clear_after: u32::try_from(dice.of(1, 4)).unwrap(),
            cooldown: Duration::from_secs(dice.pick(&[0, 20, 60, 300])),
            pick: None,
            steps: steps(dice, target == Kind::Gpu),
            condition: Arc::from(""),
        };
        if target == Kind::Gpu && dice.percent(80) {
            let order = [Order::SmallestSufficient, Order::LongestIdle, Order::Largest, Order::Youngest];
            let from = dice.pick(&[Cond::GpuUtilMax(1), idle(), Cond::All(vec![idle(), Cond::VramMin(500)])]);
            plan.pick = Some((from, u32::try_from(dice.of(1, 5)).unwrap(), dice.pick(&order)));
            plan.steps = steps(dice, false);
        }
        if target != Kind::Gpu && dice.percent(30) {
            plan.select = Some(Cond::VramMin(dice.pick(&[500, 1500])));
        }
        if target != Kind::Gpu && !foreign && dice.percent(20) {
            let until = dice.pick(&[None, Some(1_700_010_100_000), Some(1)]);
            plan.except = Some((Cond::Users(vec![1001]), until));
        }
        if target != Kind::Gpu && plan.except.is_none() && dice.percent(20) {
            plan.except = Some((except(dice), None));
        }
        if !calm && dice.percent(25) {
            plan.grace = Duration::from_secs(dice.pick(&[10, 30, 60]));
        }
        plan.named()
    }

    /// Changes the rule a little, as an administrator would.
    pub(crate) fn edit(&mut self, dice: &mut Dice) {
        match dice.below(6) {
            0 => self.name = format!("{}-renamed", self.name),
            1 => self.mode = if self.mode == Mode::DryRun { Mode::Enforce } else { Mode::DryRun },
            2 => {
                self.when = when(dice, self.target, 9);
                *self = self.clone().named();
            }
            3 => self.steps = steps(dice, self.target == Kind::Gpu && self.pick.is_none()),
            4 => self.max_gap = u32::try_from(dice.below(4)).unwrap(),
            _ => self.span = Span::Samples(u32::try_from(dice.of(1, 6)).unwrap()),
        }
    }
}

/// Returns entries that match one of a target's processes.
fn except(dice: &mut Dice) -> Cond {
    let keep = || Cond::Exes(vec!["/opt/keep"]);
    dice.pick(&[
        keep(),
        Cond::Comms(vec!["worker"]),
        Cond::Not(Box::new(Cond::Exes(vec!["/opt/train", "/opt/worker"]))),
        Cond::All(vec![keep(), Cond::Comms(vec!["worker"])]),
        Cond::All(vec![Cond::Comms(vec!["worker"]), Cond::VramMin(1500)]),
        Cond::All(vec![Cond::Not(Box::new(Cond::Comms(vec!["train"]))), Cond::Not(Box::new(keep()))]),
    ])
}

fn idle() -> Cond {
    Cond::All(vec![Cond::GpuUtilMax(1), Cond::CpuUtilMax(5)])
}

/// Returns a condition. Conditions differ between the rules in a policy, because otherwise it would be ambiguous
/// which rule's window continues after a reload.
fn when(dice: &mut Dice, target: Kind, index: u64) -> Cond {
    let index = u32::try_from(index).unwrap();
    if target == Kind::Gpu {
        return dice.pick(&[
            Cond::VramFreeBelow(8000 + u64::from(index)),
            Cond::GpuUtilMax(5 + index),
            Cond::All(vec![Cond::ProcessCountMax(4), Cond::VramFreeBelow(8000 + u64::from(index))]),
        ]);
    }
    let util = Cond::GpuUtilMax(1 + index);
    match dice.below(10) {
        9 => Cond::Any(vec![Cond::State("stopped"), util]),
        8 => Cond::Any(vec![Cond::State("gone"), util]),
        0..3 => util,
        3 | 4 => Cond::All(vec![util, Cond::CpuUtilMax(5)]),
        5 => Cond::Any(vec![Cond::Orphaned(true), util]),
        6 => Cond::All(vec![util, Cond::Not(Box::new(Cond::State("zombie_leader")))]),
        _ => Cond::All(vec![Cond::AgeMin(dice.of(10, 60)), util]),
    }
}

fn steps(dice: &mut Dice, harmless: bool) -> Vec<Step> {
    let mut after = 0;
    let mut steps = Vec::new();
    let mut put = |dice: &mut Dice, action: Action| {
        if dice.percent(50) {
            after += u32::try_from(dice.below(4)).unwrap();
        }
        let span = if dice.percent(20) {
            Span::Time(Duration::from_millis(u64::from(after) * INTERVAL))
        } else {
            Span::Samples(after)
        };
        steps.push(Step { after: span, action });
    };
    let usr1 = Action::Signal(Signal { number: 10, name: "SIGUSR1" });
    let end = Action::Terminate { grace: Duration::from_mins(1), requires_notice: false };
    if dice.percent(70) {
        put(dice, Action::Flag(Severity::Warning));
    }
    if dice.percent(60) {
        put(dice, Action::Notify(vec!["owner".to_owned()]));
    }
    if !harmless && dice.percent(35) {
        put(dice, usr1);
    }
    if dice.percent(15) {
        put(dice, Action::Notify(vec!["ops".to_owned()]));
    }
    if !harmless && dice.percent(80) {
        put(dice, end);
    }
    if steps.is_empty() {
        let span = Span::Samples(0);
        steps.push(Step { after: span, action: Action::Flag(Severity::Info) });
    }
    steps
}
