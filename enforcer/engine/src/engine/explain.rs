//! Explains why a rule acts on a target or does not: its gates in order, each with its comparisons.

use bailiff_snapshot::{Streak, Truth};
use serde::{Deserialize, Serialize};

use super::evaluator::RuleEvaluator;
use super::owner_holds::OwnerHoldStatus;
use super::picking::Picking;
use super::program::{Column, Gate};
use super::report::{Coming, Pending};
use super::subject::{self, Leaves};
use super::{Engine, Now, Tick, protection};
use crate::Kind;
use crate::policy::{Condition, Exception, Mode};
use crate::verdict::{Asked, Hold, Outcome};
use crate::view::{Target, View};

const ON_HOLD: &str = "not stopped, traced or frozen; stopped, traced and frozen processes are exempt from rules on idleness, unless the rule names the state";
const NO_PROCESS: &str =
    "the driver lists a pid for which no process exists, so there is nothing to exempt or to signal";

/// Question to [`Engine::explain`].
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Only targets that contain this process.
    pub pid: Option<u32>,
    /// Only this rule.
    pub rule: Option<String>,
    /// Only targets of this user.
    pub owner: Option<u32>,
    /// Only targets with a streak, without the gates, because these cost much time.
    pub brief: bool,
}

/// Explanation of one rule for one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Progress of the rule for this target.
    #[serde(flatten)]
    pub pending: Pending,
    /// Kind of the target.
    pub kind: Kind,
    /// Gates in order, up to the first that the target does not pass.
    pub gates: Vec<GateReport>,
    /// Outcome of all gates now.
    pub outcome: Truth,
    /// Current number of consecutive unknown samples, and the maximum that a streak survives.
    pub unknown: (u32, u32),
    /// Holds that would withhold a destructive step now.
    pub holds: Vec<Hold>,
    /// Hold of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_hold: Option<OwnerHoldStatus>,
    /// For a rule with `pick`: the workload picked on each GPU, or why none was picked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pick: Option<String>,
    /// Last action of the rule against the target, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAction>,
}

/// Last action of a rule against a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastAction {
    /// Seconds since its end.
    pub seconds_ago: f64,
    /// Name of the action.
    pub step: String,
    /// Result.
    pub outcome: Outcome,
    /// Details for people.
    pub detail: String,
}

/// One gate with the data it depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// Name of the gate.
    pub gate: String,
    /// Whether the target passes the gate.
    pub passes: Truth,
    /// Reason, for gates without comparisons.
    pub why: Option<String>,
    /// Comparisons of the gate.
    pub leaves: Vec<Asked>,
}

/// The target that is explained.
#[derive(Clone, Copy)]
struct About<'a> {
    now: Now,
    place: usize,
    target: &'a Target,
    view: &'a View,
    /// Whether the gates are wanted.
    gates: bool,
}

impl Engine {
    /// Returns the explanations of all matching rules and targets; `None` before the first snapshot was
    /// evaluated with this policy.
    pub fn explain(&self, now: Now, question: &Question) -> Option<Vec<Explained>> {
        let view = self.last.as_deref().filter(|view| self.table.covers(view))?;
        let tick = Tick { now, view, number: self.tick, missed: 0, interval: view.interval() };
        let mut explanations = Vec::new();
        let is_wanted = |target: &Target| {
            question.pid.is_none_or(|pid| subject::has_process(target, pid, view))
                && question.owner.is_none_or(|uid| self.is_owner(uid, target, view))
        };
        let wanted: Vec<(usize, &Target)> =
            view.targets.iter().enumerate().filter(|(_, target)| is_wanted(target)).collect();
        let asked = |evaluator: &&RuleEvaluator| {
            question.rule.as_deref().is_none_or(|rule| *evaluator.rule.name == *rule)
        };
        for evaluator in self.evaluators.iter().filter(asked) {
            let about = |kind| {
                let these = wanted.iter().filter(move |(_, target)| target.kind == kind);
                these.map(move |(place, target)| About {
                    now,
                    place: *place,
                    target,
                    view,
                    gates: !question.brief,
                })
            };
            let gates = evaluator.gates(&self.table, &tick);
            explanations.extend(
                about(evaluator.rule.target)
                    .filter_map(|about| self.explain_target(evaluator, &gates, about)),
            );
            if let Some(picking) = &evaluator.picking {
                let gates = evaluator.gates_of_pick(picking, (&self.table, &tick));
                let of = (evaluator, picking);
                explanations.extend(
                    about(Kind::Workload).filter_map(|about| self.explain_workload(of, &gates, about)),
                );
            }
        }
        Some(explanations)
    }

    /// Explains a target of the rule's own kind; `None` if it has no streak and only those with one are wanted.
    fn explain_target(
        &self,
        evaluator: &RuleEvaluator,
        gates: &[(Gate, Column<'_>)],
        about: About<'_>,
    ) -> Option<Explained> {
        let target = about.target;
        let number = self.populations[target.kind as usize].number(&target.id);
        let track = number.and_then(|number| evaluator.tracks.get(number)).copied().unwrap_or_default();
        if !about.gates && track.streak.count == 0 {
            return None;
        }
        let coming = Coming::of_track(evaluator, (&target.id, &track), about.view);
        let picked =
            evaluator.picking.as_ref().map(|picking| match number.and_then(|at| picking.picked.get(&at)) {
                Some(picked) => format!("picked: {}", picked.target),
                None => "no workload is picked".to_owned(),
            });
        let explanations = self.explained((coming, track.streak), gates, about);
        Some(Explained { pick: picked, ..explanations })
    }

    /// Explains a workload that the rule may pick.
    fn explain_workload(
        &self,
        (evaluator, picking): (&RuleEvaluator, &Picking),
        gates: &[(Gate, Column<'_>)],
        about: About<'_>,
    ) -> Option<Explained> {
        let target = about.target;
        let number = self.populations[target.kind as usize].number(&target.id);
        let streak = number.and_then(|number| picking.streaks.get(number)).copied().unwrap_or_default();
        if !about.gates && streak.count == 0 {
            return None;
        }
        let picked = picking.picked.values().find(|picked| picked.target == target.id);
        let coming = Coming::of_pick(evaluator, (&target.id, picked, streak), about.view);
        let explanations = self.explained((coming, streak), gates, about);
        let pick = about.gates.then(|| self.where_picked((evaluator, picking), about));
        Some(Explained { pick, ..explanations })
    }

    /// Returns, for each GPU of a workload, whether the workload was picked there, and if not, why.
    fn where_picked(&self, (evaluator, picking): (&RuleEvaluator, &Picking), about: About<'_>) -> String {
        let gpus = about.view.targets.iter().filter(|gpu| {
            gpu.kind == Kind::Gpu && gpu.gpus.iter().any(|held| about.target.gpus.contains(held))
        });
        let explanations = gpus.map(|gpu| {
            let number = self.populations[Kind::Gpu as usize].number(&gpu.id);
            let picked = number.and_then(|number| picking.picked.get(&number));
            let track = number.and_then(|number| evaluator.tracks.get(number)).copied().unwrap_or_default();
            let needed = evaluator.rule.span.samples(about.view.interval());
            match picked {
                Some(picked) if picked.target == about.target.id => format!("picked on {}", gpu.id),
                Some(picked) => format!("not picked on {}: {} was picked", gpu.id, picked.target),
                None if track.streak.count < needed => {
                    format!(
                        "not picked: {} has matched for {} of {needed} samples",
                        gpu.id, track.streak.count
                    )
                }
                None => format!("not picked on {}", gpu.id),
            }
        });
        explanations.collect::<Vec<_>>().join("; ")
    }

    fn explained(
        &self,
        (coming, streak): (Coming<'_>, Streak),
        gates: &[(Gate, Column<'_>)],
        about: About<'_>,
    ) -> Explained {
        let evaluator = coming.evaluator;
        let mut explanations = Vec::new();
        let (mut outcome, mut exempt) = (Truth::True, false);
        for (gate, column) in gates {
            outcome = column.get(about.place).copied().unwrap_or(Truth::Unknown);
            if about.gates {
                explanations.push(GateReport { passes: outcome, ..self.gate(evaluator, *gate, about) });
            }
            if outcome != Truth::True {
                exempt = gate.exempts();
                break;
            }
        }
        let coming = if exempt { coming.without_steps() } else { coming };
        let holds = || self.node_holds(about.view).into_iter().collect();
        Explained {
            pending: coming.describe(Some(about.target), about.view),
            kind: about.target.kind,
            gates: explanations,
            outcome,
            unknown: (streak.unknown, evaluator.rule.max_gap),
            holds: if evaluator.mode == Mode::Enforce { holds() } else { Vec::new() },
            owner_hold: self.owner_hold(&evaluator.rule.name, &about.target.id, about.now),
            pick: None,
            last: None,
        }
    }

    /// Returns the data that a gate depends on.
    fn gate(
        &self,
        evaluator: &RuleEvaluator,
        gate: Gate,
        About { target, view, .. }: About<'_>,
    ) -> GateReport {
        let rule = &evaluator.rule;
        let leaves = |condition: Option<&Condition>| leaves(condition, target, view);
        let because = |why: &str| (Some(why.to_owned()), Vec::new());
        let gone = protection::is_gone(target, view);
        let (name, (why, leaves)) = match gate {
            Gate::Protection => ("protection", self.protection(target, view)),
            Gate::Select => ("select", (None, leaves(rule.select.as_ref()))),
            Gate::Except(place) => {
                ("except", rule.except.get(place).map(|it| exception(it, target, view)).unwrap_or_default())
            }
            Gate::Grace if gone => ("startup_grace", because(NO_PROCESS)),
            Gate::Grace => {
                let grace = humantime::format_duration(rule.startup_grace);
                ("startup_grace", because(&format!("older than {grace}")))
            }
            Gate::OnHold => ("on_hold", because(ON_HOLD)),
            Gate::When => ("when", (None, leaves(Some(&rule.when)))),
            Gate::From => ("from", (None, leaves(rule.pick.as_ref().map(|pick| &pick.from)))),
        };
        GateReport { gate: name.to_owned(), passes: Truth::True, why, leaves }
    }

    fn protection(&self, target: &Target, view: &View) -> (Option<String>, Vec<Asked>) {
        let gone = protection::is_gone(target, view);
        let builtin = protection::builtin(&self.policy, target, (view, &self.table.ours));
        let entries = || protection::in_force(&self.policy, view).filter(|_| !gone);
        let decisive = entries().find(|entry| protection::decisive(&entry.condition, target, view).is_some());
        let (why, leaves) = match decisive {
            Some(entry) => exception(entry, target, view),
            None => {
                (None, entries().flat_map(|entry| leaves(Some(&entry.condition), target, view)).collect())
            }
        };
        let why = if gone { Some(NO_PROCESS) } else { builtin }.map(str::to_owned).or(why);
        (why, leaves)
    }
}

/// Returns why an entry of `protect` or `except` exempts a target, with the deciding comparisons.
fn exception(entry: &Exception, target: &Target, view: &View) -> (Option<String>, Vec<Asked>) {
    let (member, asked) = exemption(&entry.condition, target, view);
    let why: Vec<String> = [entry.reason.clone(), member].into_iter().flatten().collect();
    ((!why.is_empty()).then(|| why.join("; ")), asked)
}

fn leaves(condition: Option<&Condition>, target: &Target, view: &View) -> Vec<Asked> {
    condition.map(|condition| Leaves { target, view }.of(condition)).unwrap_or_default()
}

/// Returns the process because of which an entry of `protect` or `except` exempts, or may exempt, the target,
/// with the comparisons for that process. Without such a process, returns all comparisons of the entry.
fn exemption(entry: &Condition, target: &Target, view: &View) -> (Option<String>, Vec<Asked>) {
    match protection::decisive(entry, target, view) {
        Some((member, asked)) => (Some(member), asked),
        None => (None, leaves(Some(entry), target, view)),
    }
}
