//! A random history of a node. The engine processes it, and the oracle checks the result.

use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::engine::{Engine, Holds, Now};
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{ActionReport, Hold, Outcome};
use bailiff_engine::view::View;
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::dice::Dice;
use crate::oracle::{Oracle, ensure};
use crate::plan::{Plan, Weather};
use crate::world::{Change, INTERVAL, SLOTS, World};

/// An event.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Some changes, a pause of this many milliseconds, and a snapshot with this delay.
    Interval {
        changes: Vec<Change>,
        ms: u64,
        late: u64,
    },
    /// The last snapshot is sent again.
    Again,
    /// A snapshot from the future.
    Ahead,
    /// The result of the action in flight, and whether its target is gone.
    ActionReport(Outcome, bool),
    /// The result of an action that was not requested.
    StrayReport(Outcome),
    Reload(Box<Plan>, Mode),
    Restart {
        reboot: bool,
    },
    Pause(Option<u64>),
    Resume,
    Hold(Hold, bool),
    WallStep(i64),
}

#[derive(Debug, Clone)]
pub(crate) struct Trace {
    pub(crate) plan: Plan,
    pub(crate) cap: Mode,
    pub(crate) world: World,
    pub(crate) events: Vec<Event>,
}

/// Counts of events in a walk, so that a test can check that the events occurred.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WalkStats {
    pub(crate) intervals: u64,
    pub(crate) acts: u64,
    pub(crate) enforced: u64,
    pub(crate) flags: u64,
}

impl Trace {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        let mut dice = Dice::new(seed);
        let dice = &mut dice;
        // A selector by owner is ambiguous for a target with several owners.
        let foreign = dice.percent(30);
        let plan = Plan::new(dice, weather, foreign);
        let mut world = World::new(dice);
        if weather == Weather::Calm {
            for slot in &mut world.slots {
                slot.workload = slot.workload.map(|workload| workload % 3);
                slot.uid = Some(1000);
                slot.child = None;
            }
            world.slots.truncate(SLOTS);
            world.slots.iter_mut().skip(3).for_each(|slot| slot.alive = false);
        }
        let cap = if dice.percent(90) { Mode::Enforce } else { Mode::DryRun };
        let length = dice.of(20, 120).min(dice.of(20, 120));
        let mut events = Vec::new();
        let mut edited = plan.clone();
        let mut fixes: Vec<Change> = Vec::new();
        for _ in 0..length {
            let interval = interval(dice, (weather, foreign), &mut fixes, &world);
            events.push(interval);
            events.extend(report(dice, weather));
            if weather == Weather::Rough && dice.percent(12) {
                events.push(rare(dice, &mut edited, foreign));
            }
        }
        Self { plan, cap, world, events }
    }

    /// Formats the trace for readers: the policy, then one event per line.
    pub(crate) fn render(&self) -> String {
        let slots = self.world.slots.iter().filter(|slot| slot.alive);
        let mut text = format!("cap {:?}\n", self.cap);
        text.extend(self.plan.rules.iter().map(|rule| format!("{rule:?}\n")));
        let plan = &self.plan;
        text.extend([format!("{:?} {:?} {:?}\n", plan.interval, plan.limits, plan.protect)]);
        text.extend(slots.map(|slot| format!("{slot:?}\n")));
        text.extend(self.events.iter().map(|event| format!("{event:?}\n")));
        text
    }

    /// Runs the trace. Fails if the engine and the oracle differ.
    pub(crate) fn walk(&self) -> Result<WalkStats, String> {
        let mut walk = Walk {
            engine: Engine::new(self.plan.policy(), self.cap),
            oracle: Oracle::new(self.plan.clone(), self.cap),
            world: self.world.clone(),
            cap: self.cap,
            shown: None,
            stats: WalkStats::default(),
            acting: None,
            called_off: None,
        };
        for (index, event) in self.events.iter().enumerate() {
            walk.take(event).map_err(|error| format!("event {index}, {event:?}: {error}"))?;
        }
        Ok(WalkStats {
            acts: walk.oracle.acts,
            enforced: walk.oracle.enforced,
            flags: walk.oracle.flags,
            ..walk.stats
        })
    }
}

fn interval(
    dice: &mut Dice,
    (weather, foreign): (Weather, bool),
    fixes: &mut Vec<Change>,
    world: &World,
) -> Event {
    let calm = weather == Weather::Calm;
    let mut changes: Vec<Change> = std::mem::take(fixes);
    let often = if calm { 12 } else { 25 };
    if dice.percent(often) {
        changes.push(ordinary(dice, calm));
    }
    if !calm && dice.percent(12) {
        let (change, fix) = error(dice, foreign, world);
        changes.push(change);
        fixes.push(fix);
    }
    let ms = match dice.below(100) {
        _ if calm => INTERVAL,
        0..85 => INTERVAL,
        85..90 => dice.of(1, 2 * INTERVAL),
        90..95 => INTERVAL * dice.of(2, 5),
        95..98 => INTERVAL * dice.of(5, 200),
        _ => dice.of(1, 4_000_000),
    };
    let late = match dice.below(100) {
        _ if calm => 10,
        0..94 => dice.of(0, 3000),
        94..97 => dice.of(9_900, 10_100),
        _ => dice.of(10_001, 60_000),
    };
    Event::Interval { changes, ms, late }
}

fn slot(dice: &mut Dice) -> usize {
    usize::try_from(dice.below(SLOTS as u64)).unwrap()
}

fn ordinary(dice: &mut Dice, calm: bool) -> Change {
    let index = if calm { slot(dice) % 3 } else { slot(dice) };
    match dice.below(if calm { 6 } else { 12 }) {
        0 | 1 => Change::Util(index, Some(dice.pick(&[0, 0, 0, 1, 2, 60]))),
        2 => Change::Cpu(index, dice.pick(&[0.0, 0.0, 0.01, 0.9])),
        3 => Change::Memory(index, Some(dice.pick(&[100, 600, 2000]))),
        4 => Change::Orphaned(index, Some(dice.percent(50))),
        5 => Change::Free(index, Some(dice.pick(&[1000, 7000, 9000]))),
        6 => Change::End(index),
        7 => Change::Begin(index),
        8 => Change::Reuse(index),
        9 => Change::CardUtil(index, Some(dice.pick(&[0, 3, 90]))),
        10 => Change::Gpus(index, dice.pick(&[1, 1, 2, 3, 7])),
        _ => Change::State(
            index,
            dice.pick(&["sleeping", "sleeping", "zombie_leader", "disk_sleep", "stopped", "frozen"]),
        ),
    }
}

/// Returns an error, and the change that repairs it at the next interval.
fn error(dice: &mut Dice, foreign: bool, world: &World) -> (Change, Change) {
    let index = slot(dice);
    match dice.below(20) {
        0 | 1 => (Change::Util(index, None), Change::Util(index, Some(0))),
        2 => (Change::Memory(index, None), Change::Memory(index, Some(600))),
        3 if dice.percent(30) => (Change::ListedButGone(index, true), Change::ListedButGone(index, false)),
        3 => (Change::Confirmed(index, false), Change::Confirmed(index, true)),
        4 => (Change::Fault(index, Some("timeout")), Change::Fault(index, None)),
        5 => (Change::Listed(index, false), Change::Listed(index, true)),
        6 => (Change::Nvml(false), Change::Nvml(true)),
        7 => (Change::Proc(false), Change::Proc(true)),
        8 => (Change::Relatives(false), Change::Relatives(true)),
        9 => (Change::Fault(index, Some("lost")), Change::Fault(index, None)),
        10 if dice.percent(50) => (Change::Mig(index, true), Change::Mig(index, false)),
        10 => (Change::Free(index, None), Change::Free(index, Some(1000))),
        11 => (Change::Host(false), Change::Host(true)),
        12 => (Change::BootKnown(false), Change::BootKnown(true)),
        13 => (Change::Interval(15_000), Change::Interval(INTERVAL)),
        14 => (Change::Comm(index, dice.pick(&["sshd", "nv-hostengine"])), Change::Comm(index, "train")),
        15 if foreign => {
            let child = dice.pick(&[
                ("sshd", None),
                ("sshd", Some(998)),
                ("worker", Some(1007)),
                ("worker", Some(0)),
            ]);
            (Change::Child(index, Some(child)), Change::Child(index, world.slots[index].child))
        }
        15 => (Change::Absent(index, true), Change::Absent(index, false)),
        17 => (
            Change::Exe(index, dice.pick(&[None, Some("/opt/keep")])),
            Change::Exe(index, Some("/opt/train")),
        ),
        18 | 19 => {
            let exe = dice.pick(&[None, Some("/opt/keep")]);
            (Change::ChildExe(index, exe), Change::ChildExe(index, Some("/opt/worker")))
        }
        _ => {
            let uid = dice.pick(&[None, Some(0)]);
            (Change::Owner(index, uid), Change::Owner(index, Some(1000)))
        }
    }
}

fn report(dice: &mut Dice, weather: Weather) -> Option<Event> {
    if !dice.percent(60) {
        return None;
    }
    let outcome = if weather == Weather::Calm {
        Outcome::Done
    } else {
        dice.pick(&[
            Outcome::Released,
            Outcome::Released,
            Outcome::Done,
            Outcome::Done,
            Outcome::Undetermined,
            Outcome::GoneNotReleased,
            Outcome::Unkillable,
            Outcome::Failed,
            Outcome::IdentityChanged,
            Outcome::Refused,
            Outcome::Gone,
            Outcome::Cancelled,
            Outcome::Reprieved,
        ])
    };
    Some(Event::ActionReport(outcome, dice.percent(70)))
}

fn rare(dice: &mut Dice, edited: &mut Plan, foreign: bool) -> Event {
    const OUTSIDE: [Hold; 4] = [Hold::InvalidFile, Hold::Audit, Hold::State, Hold::Rights];
    match dice.below(16) {
        0 | 1 => Event::Again,
        2 => Event::Ahead,
        3 => Event::StrayReport(Outcome::Failed),
        4..7 => {
            *edited = reloaded(dice, edited, foreign);
            let cap = if dice.percent(85) { Mode::Enforce } else { Mode::DryRun };
            Event::Reload(Box::new(edited.clone()), cap)
        }
        7 | 8 => Event::Restart { reboot: dice.percent(25) },
        9 => Event::Pause(dice.percent(50).then(|| dice.of(1, 60_000))),
        10 | 11 => Event::Resume,
        12 => Event::Hold(dice.pick(&OUTSIDE), true),
        13 | 14 => Event::Hold(dice.pick(&OUTSIDE), false),
        _ => Event::WallStep(dice.pick(&[-7_200_000, -1000, 1000, 7_200_000])),
    }
}

fn reloaded(dice: &mut Dice, before: &Plan, foreign: bool) -> Plan {
    let mut plan = before.clone();
    match dice.below(5) {
        0 => {}
        1 if plan.rules.len() > 1 => drop(plan.rules.remove(0)),
        2 => plan.rules.reverse(),
        3 if dice.percent(30) => plan = Plan::new(dice, Weather::Rough, foreign),
        _ => {
            let index = usize::try_from(dice.below(plan.rules.len() as u64)).unwrap();
            Arc::make_mut(&mut plan.rules[index]).edit(dice);
        }
    }
    let mut conditions: Vec<_> = plan.rules.iter().map(|rule| rule.condition.clone()).collect();
    let mut names: Vec<&String> = plan.rules.iter().map(|rule| &rule.name).collect();
    let all = conditions.len();
    conditions.sort();
    conditions.dedup();
    names.sort();
    names.dedup();
    if conditions.len() == all && names.len() == all { plan } else { before.clone() }
}

struct Walk {
    engine: Engine,
    oracle: Oracle,
    world: World,
    cap: Mode,
    shown: Option<Arc<View>>,
    stats: WalkStats,
    /// The action in flight: id, target, mode.
    acting: Option<(u64, String, Mode)>,
    /// Action that a reload has cancelled.
    called_off: Option<u64>,
}

/// Returns the report of an action that was not requested.
fn stray(outcome: Outcome) -> ActionReport {
    ActionReport { acted: true, ..ActionReport::new(u64::MAX, outcome, "") }
}

impl Walk {
    fn take(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Interval { changes, ms, late } => {
                for change in changes {
                    self.world.apply(change);
                }
                self.world.pass(*ms);
                let view = View::between(self.shown.as_deref(), self.world.snapshot());
                self.show(&Arc::new(view), *late)
            }
            Event::Again => match self.shown.clone() {
                Some(view) => self.show(&view, 20),
                None => Ok(()),
            },
            Event::Ahead => {
                let mut snapshot = self.world.snapshot();
                snapshot.boot_ms += 3000;
                let view = View::between(self.shown.as_deref(), snapshot);
                self.evaluate(&Arc::new(view), self.now(0))
            }
            Event::ActionReport(outcome, ends) => {
                self.report(*outcome, *ends);
                Ok(())
            }
            Event::StrayReport(outcome) => {
                let stray = stray(*outcome);
                self.engine.report(&stray);
                Ok(())
            }
            Event::Reload(plan, cap) => self.reload(plan, *cap),
            Event::Restart { reboot } => self.restart(*reboot),
            Event::Pause(ms) => self.pause(*ms),
            Event::Resume => {
                self.engine.resume();
                self.oracle.resume();
                Ok(())
            }
            Event::Hold(hold, holds) => {
                self.engine.hold(*hold, if *holds { Holds::Yes } else { Holds::No });
                self.oracle.hold(*hold, *holds);
                Ok(())
            }
            Event::WallStep(ms) => {
                self.world.wall_offset += ms;
                Ok(())
            }
        }
    }

    fn pause(&mut self, ms: Option<u64>) -> Result<(), String> {
        let length = ms.map(Duration::from_millis);
        let cancel = self.engine.pause(self.now(0), length, "a test".to_owned());
        self.oracle.pause(self.now(0), ms);
        let flying = self.acting.as_ref().map(|(id, ..)| *id);
        ensure!(cancel == flying, "a pause cancels {cancel:?}, not {flying:?}");
        Ok(())
    }

    fn now(&self, late: u64) -> Now {
        Now {
            boot: Duration::from_millis(self.world.boot_ms + late),
            wall: Duration::from_millis(self.world.wall_ms() + late),
        }
    }

    fn show(&mut self, view: &Arc<View>, late: u64) -> Result<(), String> {
        let now = self.now(late);
        self.stats.intervals += 1;
        self.shown = Some(view.clone());
        self.evaluate(view, now)
    }

    fn evaluate(&mut self, view: &Arc<View>, now: Now) -> Result<(), String> {
        let result = self.engine.tick(now, view.clone());
        self.oracle.check_tick(now, view, &result)?;
        for verdict in result.iter().flatten() {
            if let bailiff_engine::verdict::What::Act(id, _) = &verdict.what {
                self.acting = Some((*id, verdict.subject.id.to_string(), verdict.mode));
            }
        }
        let flying = self.acting.as_ref().map(|(id, ..)| *id);
        ensure!(
            self.engine.in_flight() == flying,
            "in flight: {:?}, not {flying:?}",
            self.engine.in_flight()
        );
        Ok(())
    }

    fn report(&mut self, outcome: Outcome, ends: bool) {
        let Some((id, target, mode)) = self.acting.take() else { return };
        let outcome = if mode == Mode::DryRun { Outcome::DryRun } else { outcome };
        // In half of the cases, a cancelled action had already sent a signal.
        let acted = match outcome {
            Outcome::Gone
            | Outcome::IdentityChanged
            | Outcome::Refused
            | Outcome::Reprieved
            | Outcome::DryRun => false,
            Outcome::Cancelled => ends,
            _ => true,
        };
        self.engine.report(&ActionReport { acted, ..ActionReport::new(id, outcome, "") });
        self.oracle.reported(id, outcome);
        if outcome == Outcome::Released && ends {
            for slot in &mut self.world.slots {
                let process = format!("process:{}@{}", slot.pid, slot.ticks);
                slot.alive &= target != process;
            }
        }
    }

    fn reload(&mut self, plan: &Plan, cap: Mode) -> Result<(), String> {
        let reloaded = self.engine.reload(plan.policy(), cap);
        self.cap = cap;
        self.oracle.reload(plan.clone(), cap);
        // The exemptions in the new file apply, so any action in flight is cancelled.
        let flying = self.acting.as_ref().map(|(id, ..)| *id);
        ensure!(
            reloaded.cancel.is_none_or(|id| Some(id) == flying),
            "a reload cancels {:?}",
            reloaded.cancel
        );
        let expected = flying.filter(|id| self.called_off != Some(*id));
        ensure!(expected.is_none() || reloaded.cancel == flying, "a reload does not cancel {flying:?}");
        self.called_off = reloaded.cancel.or(self.called_off);
        Ok(())
    }

    fn restart(&mut self, reboot: bool) -> Result<(), String> {
        let text = serde_json::to_string(&self.engine.saved()).map_err(|error| error.to_string())?;
        let saved = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        if reboot {
            self.world.reboot();
            self.shown = None;
        }
        self.engine = Engine::new(self.oracle.plan().policy(), self.cap);
        self.engine.restore(saved, self.now(0));
        self.acting = None;
        self.oracle.restarted();
        Ok(())
    }
}

/// Traces from seeds. Proptest shrinks a failing trace by omitting events.
#[derive(Debug)]
pub(crate) struct Traces(pub Weather);

impl Strategy for Traces {
    type Tree = Shrinking;
    type Value = Trace;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        use proptest::prelude::Rng as _;
        let trace = Trace::new(runner.rng().next_u64(), self.0);
        let chunk = trace.events.len();
        Ok(Shrinking { trace, at: 0, chunk, before: None })
    }
}

/// A trace whose events can be omitted, large parts first.
#[derive(Debug)]
pub(crate) struct Shrinking {
    trace: Trace,
    at: usize,
    chunk: usize,
    before: Option<Vec<Event>>,
}

impl ValueTree for Shrinking {
    type Value = Trace;

    fn current(&self) -> Trace {
        self.trace.clone()
    }

    fn simplify(&mut self) -> bool {
        if self.at >= self.trace.events.len() {
            self.chunk /= 2;
            self.at = 0;
        }
        if self.chunk == 0 || self.trace.events.is_empty() {
            return false;
        }
        let end = (self.at + self.chunk).min(self.trace.events.len());
        self.before = Some(self.trace.events.clone());
        self.trace.events.drain(self.at..end);
        true
    }

    fn complicate(&mut self) -> bool {
        let Some(before) = self.before.take() else { return false };
        self.trace.events = before;
        self.at += self.chunk;
        self.simplify()
    }
}
