//! What the engine tells of itself: how many match, what is flagged, who is waiting for what, and why.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bailiff_snapshot::Truth;
use serde::{Deserialize, Serialize};

use super::judge::{Gate, Judge, Track};
use super::population::Population;
use super::subject::{self, Leaves};
use super::{Engine, Now, Tick, protection};
use crate::policy::{Ask, Kind, Mode, Severity};
use crate::verdict::{Asked, Hold, Subject};
use crate::view::{Target, TargetId, View};

/// How many of a rule's targets are in which state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Its mode, capped.
    pub mode: Mode,
    /// What it is about.
    pub of: Kind,
    /// They match now.
    pub matches: usize,
    /// They are on their way to a match.
    pub pending: usize,
    /// Nobody can tell.
    pub unknown: usize,
}

/// A flag that is up.
#[derive(Debug, Clone, PartialEq)]
pub struct FlagUp {
    /// The rule that raised it.
    pub rule: Arc<str>,
    /// How bad it is.
    pub severity: Severity,
    /// Whom it is about.
    pub subject: Subject,
}

/// A match, and the step that is next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The rule.
    pub rule: String,
    /// Its mode, capped.
    pub mode: Mode,
    /// The target.
    pub target: TargetId,
    /// The owner.
    pub user: Option<String>,
    /// The name of its first process that holds memory.
    pub comm: Option<String>,
    /// True samples so far.
    pub streak: u32,
    /// True samples that a match needs.
    pub needed: u32,
    /// The step that is next; none where all are taken.
    pub next: Option<String>,
    /// True samples until then.
    pub samples_left: u32,
    /// Why a step that is due is not done.
    pub hold: Option<Hold>,
}

/// What is asked of [`Engine::explain`].
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Targets that this process is a part of.
    pub pid: Option<u32>,
    /// This rule alone.
    pub rule: Option<String>,
}

/// What one rule says of one target, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The rule's match.
    #[serde(flatten)]
    pub pending: Pending,
    /// What it is.
    pub of: Kind,
    /// Its gates, in order, up to the one that stopped it.
    pub gates: Vec<GateTold>,
    /// The outcome of all gates now.
    pub outcome: Truth,
    /// Unknown samples in a row, and how many a streak outlives.
    pub unknown: (u32, u32),
    /// What would hold a destructive step now.
    pub holds: Vec<Hold>,
}

/// One gate and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateTold {
    /// Its name.
    pub gate: String,
    /// Whether it lets the target through.
    pub passes: Truth,
    /// Why, for gates that are not comparisons.
    pub why: Option<String>,
    /// Its comparisons.
    pub leaves: Vec<Asked>,
}

impl Engine {
    /// How many targets of each rule are in which state.
    #[must_use]
    pub fn counts(&self) -> Vec<Counts> {
        let interval = self.last.as_ref().map(|view| view.interval()).unwrap_or_default();
        let count = |judge: &Judge| {
            let needed = judge.rule.span.samples(interval).max(1);
            let population = &self.populations[judge.rule.of as usize];
            let mut counts = Counts {
                rule: Arc::clone(&judge.rule.name),
                mode: judge.mode,
                of: judge.rule.of,
                matches: 0,
                pending: 0,
                unknown: 0,
            };
            for track in tracks(judge, population).map(|(_, track)| track) {
                counts.matches += usize::from(track.streak.count >= needed);
                counts.pending += usize::from(track.streak.count > 0 && track.streak.count < needed);
                counts.unknown += usize::from(track.outcome == Some(Truth::Unknown));
            }
            counts
        };
        self.judges.iter().map(count).collect()
    }

    /// All flags that are up.
    #[must_use]
    pub fn flags(&self) -> Vec<FlagUp> {
        let Some(view) = self.last.as_deref() else { return Vec::new() };
        let targets = by_id(view);
        let raised = self.judges.iter().flat_map(|judge| {
            let population = &self.populations[judge.rule.of as usize];
            let own = tracks(judge, population).filter_map(|(id, track)| Some((id, track.progress.flagged?)));
            let picked = judge.picking.iter().flat_map(super::pick::Picking::flagged);
            let targets = &targets;
            own.chain(picked).filter_map(move |(id, severity)| {
                let subject = targets.get(id).map(|target| subject::of(target, view)).or_else(|| {
                    let slot = population.slot(population.number(id)?)?;
                    Some(subject::absent(judge.rule.of, slot))
                });
                Some(FlagUp { rule: Arc::clone(&judge.rule.name), severity, subject: subject? })
            })
        });
        let stuck = self.deeds.stuck.iter().map(|stuck| FlagUp {
            rule: Arc::clone(&stuck.rule),
            severity: Severity::Critical,
            subject: Subject::clone(&stuck.subject),
        });
        raised.chain(stuck).collect()
    }

    /// Those who match or are on the way to it, so many at most, the nearest to a step first.
    #[must_use]
    pub fn pending(&self, most: usize) -> Vec<Pending> {
        let Some(view) = self.last.as_deref() else { return Vec::new() };
        let each = self.judges.iter().flat_map(|judge| {
            let population = &self.populations[judge.rule.of as usize];
            let running = tracks(judge, population).filter(|(_, track)| track.streak.count > 0);
            running.map(move |(id, track)| (left(judge, track, view), judge, id, track))
        });
        let mut nearest: Vec<_> = each.collect();
        nearest.sort_by_key(|(left, ..)| left.unwrap_or(u32::MAX));
        nearest.truncate(most);
        let targets = by_id(view);
        let told = |(_, judge, id, track)| pending(judge, (id, targets.get(id).copied()), track, view);
        nearest.into_iter().map(told).collect()
    }

    /// Node-wide holds now.
    #[must_use]
    pub fn holds(&self) -> BTreeSet<Hold> {
        if let Some(view) = &self.last {
            return self.node_holds(view);
        }
        let paused = self.paused.as_ref().map(|_| Hold::Paused);
        let outside = self.outside.iter().copied().chain(self.deeds.breakers.open());
        outside.chain([Hold::Started]).chain(paused).collect()
    }

    /// Deeds of the last hour.
    #[must_use]
    pub fn deeds_of_the_hour(&self) -> usize {
        self.deeds.ledger.used()
    }

    /// Why, and why not, gate by gate and leaf by leaf; none before a snapshot was judged by this policy.
    #[must_use]
    pub fn explain(&self, now: Now, question: &Question) -> Option<Vec<Explained>> {
        let view = self.last.as_deref().filter(|view| self.table.covers(view))?;
        let tick = Tick { now, view, number: self.tick, missed: 0, interval: view.interval() };
        let mut told = Vec::new();
        let asked = |judge: &&Judge| question.rule.as_deref().is_none_or(|rule| *judge.rule.name == *rule);
        for judge in self.judges.iter().filter(asked) {
            let gates = judge.gates(&self.table, &tick);
            for (place, target) in view.targets.iter().enumerate() {
                if target.kind == judge.rule.of && question.is_about(target, view) {
                    let mut stops = gates.iter().map(|(gate, column)| (*gate, column[place]));
                    let stopped = stops.find(|(_, outcome)| *outcome != Truth::True);
                    let found = stopped.unwrap_or((Gate::When, Truth::True));
                    told.push(self.explain_one(judge, found, (target, view)));
                }
            }
        }
        Some(told)
    }

    fn explain_one(
        &self,
        judge: &Judge,
        (gate, outcome): (Gate, Truth),
        (target, view): (&Target, &View),
    ) -> Explained {
        let seen = (view, &self.table.ours);
        let protected = protection::of(&self.policy, target, seen);
        let number = self.populations[target.kind as usize].number(&target.id);
        let track = number.and_then(|number| judge.tracks.get(number)).copied().unwrap_or_default();
        let builtin = protection::builtin(&self.policy, target, seen);
        let gone = protection::is_gone(target, view);
        let (why, leaves) = exemption(self.policy.protect.as_ref().filter(|_| !gone), target, view);
        let why = if gone { Some(NOBODY) } else { builtin }.map(str::to_owned).or(why);
        let mut gates = vec![GateTold { gate: "protection".to_owned(), passes: !protected, why, leaves }];
        if gate != Gate::Protection {
            gates.extend(later_gates(judge, (gate, outcome), (target, view)));
        }
        Explained {
            pending: pending(judge, (&target.id, Some(target)), &track, view),
            of: target.kind,
            gates,
            outcome,
            unknown: (track.streak.unknown, judge.rule.max_gap),
            holds: if judge.mode == Mode::Enforce {
                self.node_holds(view).into_iter().collect()
            } else {
                Vec::new()
            },
        }
    }
}

impl Question {
    fn is_about(&self, target: &Target, view: &View) -> bool {
        self.pid.is_none_or(|pid| {
            let holds = view.processes(target).any(|process| process.pid == pid);
            let belongs = view.relatives(target).any(|relative| relative.pid == pid);
            let on_it = target.kind == Kind::Gpu
                && view.gpus(target).any(|gpu| gpu.holders.iter().any(|holder| holder.pid == pid));
            holds || belongs || on_it
        })
    }
}

const ON_HOLD: &str =
    "not stopped, traced or frozen: idleness that was ordered is exempt unless the rule names the state";
const NOBODY: &str = "the driver lists a pid, and no process is there: nobody to spare, nobody to signal";

/// The gates after the first, up to the one that stopped the target.
fn later_gates(
    judge: &Judge,
    (gate, outcome): (Gate, Truth),
    (target, view): (&Target, &View),
) -> Vec<GateTold> {
    let mut gates = Vec::new();
    let mut told = |at: Gate, name: &str, (why, leaves): (Option<String>, Vec<Asked>)| {
        let passes = if gate == at { outcome } else { Truth::True };
        gates.push(GateTold { gate: name.to_owned(), passes, why, leaves });
        gate == at
    };
    let rule = &judge.rule;
    if rule.select.is_some()
        && told(Gate::Select, "select", (None, leaves(rule.select.as_ref(), target, view)))
    {
        return gates;
    }
    for (place, exception) in rule.except.iter().enumerate() {
        let (member, asked) = exemption(Some(&exception.of), target, view);
        let why =
            [Some(exception.reason.clone()), member].into_iter().flatten().collect::<Vec<_>>().join("; ");
        if told(Gate::Except(place), "except", (Some(why), asked)) {
            return gates;
        }
    }
    let grace = humantime::format_duration(rule.startup_grace);
    let age =
        if protection::is_gone(target, view) { NOBODY.to_owned() } else { format!("older than {grace}") };
    if told(Gate::Grace, "startup_grace", (Some(age), Vec::new())) {
        return gates;
    }
    if rule.exempts_on_hold() && told(Gate::OnHold, "on_hold", (Some(ON_HOLD.to_owned()), Vec::new())) {
        return gates;
    }
    told(Gate::When, "when", (None, leaves(Some(&rule.when), target, view)));
    gates
}

fn leaves(ask: Option<&Ask>, target: &Target, view: &View) -> Vec<Asked> {
    ask.map(|ask| Leaves { target, view }.of(ask)).unwrap_or_default()
}

/// Which member an entry of `protect` or `except` exempts its target for, and the comparisons that say so.
fn exemption(entry: Option<&Ask>, target: &Target, view: &View) -> (Option<String>, Vec<Asked>) {
    match entry.and_then(|entry| protection::decisive(entry, target, view)) {
        Some((member, asked)) => (Some(member), asked),
        None => (None, leaves(entry, target, view)),
    }
}

/// A rule's targets that are known.
fn tracks<'a>(
    judge: &'a Judge,
    population: &'a Population,
) -> impl Iterator<Item = (&'a TargetId, &'a Track)> {
    judge.tracks.iter().enumerate().filter_map(|(number, track)| Some((&population.slot(number)?.id, track)))
}

fn by_id(view: &View) -> HashMap<&TargetId, &Target> {
    view.targets.iter().map(|target| (&target.id, target)).collect()
}

/// True samples until the next step; none where all are taken.
fn left(judge: &Judge, track: &Track, view: &View) -> Option<u32> {
    let step = judge.rule.then.get(usize::from(track.progress.step))?;
    let needed = judge.rule.span.samples(view.interval());
    Some(needed.saturating_add(step.after.samples(view.interval())).saturating_sub(track.streak.count))
}

fn pending(judge: &Judge, (id, target): (&TargetId, Option<&Target>), track: &Track, view: &View) -> Pending {
    let rule = &judge.rule;
    let next = rule.then.get(usize::from(track.progress.step));
    Pending {
        rule: rule.name.to_string(),
        mode: judge.mode,
        target: id.clone(),
        user: target.and_then(|target| subject::of(target, view).user),
        comm: target.and_then(|target| {
            view.processes(target).find_map(|process| Some(process.facts.as_ref()?.comm.clone()))
        }),
        streak: track.streak.count,
        needed: rule.span.samples(view.interval()),
        next: next.map(|step| step.action.name().to_owned()),
        samples_left: left(judge, track, view).unwrap_or_default(),
        hold: track.progress.told,
    }
}
