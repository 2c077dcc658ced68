//! Picks one workload of a GPU at a time, and takes the rule's steps for it.

use std::collections::HashSet;

use bailiff_snapshot::Truth;

use super::{EvalContext, RuleEvaluator};
use crate::Kind;
use crate::engine::Tick;
use crate::engine::matches::Match;
use crate::engine::picking::{Candidate, Picked, Picking, holds};
use crate::engine::population::Absent;
use crate::engine::program::{self, Column, ConditionTable, Gate};
use crate::engine::progress::Progress;
use crate::engine::subject;
use crate::verdict::What;
use crate::view::TargetId;

/// State of one GPU in one tick.
#[derive(Clone, Copy)]
struct Needy {
    place: usize,
    need: Truth,
    streak: u32,
}

impl RuleEvaluator {
    /// Evaluates the candidates, and takes the steps of picked targets.
    pub(crate) fn pick(&mut self, context: &mut EvalContext<'_>) {
        let Some(mut picking) = self.picking.take() else { return };
        let seen = self.candidates(&mut picking, context);
        let view = context.tick.view;
        for (gpu, target) in view.targets.iter().enumerate() {
            if target.kind == Kind::Gpu {
                self.pick_on(gpu, (&mut picking, &seen), context);
            }
        }
        picking.prune(context.tick);
        self.picking = Some(picking);
    }

    /// Returns the outcome and streak of every candidate workload.
    fn candidates(&self, picking: &mut Picking, context: &EvalContext<'_>) -> Vec<Candidate> {
        let gaps = (context.tick.missed, self.rule.max_gap);
        let view = context.tick.view;
        for (number, fate) in &context.absent[Kind::Workload as usize] {
            let outcome = if *fate == Absent::Gone { Truth::False } else { Truth::Unknown };
            picking.feed(*number, outcome, gaps);
        }
        let gates = self.gates_of_pick(picking, (context.table, context.tick));
        let outcomes = program::passed(gates.into_iter().map(|(_, column)| column));
        let workloads = view.targets.iter().zip(outcomes).enumerate();
        let workloads = workloads.filter(|(_, (target, _))| target.kind == Kind::Workload);
        let holds = context.owner_holds.iter().filter(|hold| *hold.rule == *self.rule.name);
        let held: HashSet<&TargetId> = holds.map(|hold| &hold.target).collect();
        let seen = workloads.filter_map(|(place, (target, outcome))| {
            let streak = picking.feed(*context.seen.get(place)?, outcome, gaps);
            let held = held.contains(&target.id);
            let withheld = self.kills() && context.withheld.contains(&place);
            Some(Candidate { place, outcome, streak, held, withheld })
        });
        seen.collect()
    }

    /// Returns the gates of a candidate workload in order, each with the targets that pass it.
    pub(crate) fn gates_of_pick<'t>(
        &self,
        picking: &Picking,
        (table, tick): (&'t ConditionTable, &Tick<'_>),
    ) -> Vec<(Gate, Column<'t>)> {
        let mut gates = vec![(Gate::Protection, table.unprotected())];
        gates.extend(self.not_exempt(table, tick));
        gates.push((Gate::Grace, self.grace.condition(table)));
        gates.extend(self.running(table).map(|column| (Gate::OnHold, column)));
        gates.push((Gate::From, picking.from.condition(table)));
        gates
    }

    fn pick_on(
        &self,
        gpu: usize,
        (picking, seen): (&mut Picking, &[Candidate]),
        context: &mut EvalContext<'_>,
    ) {
        let Some(number) = context.seen.get(gpu).copied() else { return };
        let Some(track) = self.tracks.get(number).copied() else { return };
        let needed = self.rule.span.samples(context.tick.interval);
        let need = match track.outcome.unwrap_or(Truth::Unknown) {
            Truth::True if track.streak.count >= needed => Truth::True,
            Truth::Unknown if track.streak.count >= needed => Truth::Unknown,
            _ => Truth::False,
        };
        let still = picking.picked.remove(&number).and_then(|picked| {
            let gpu = Needy { place: gpu, need, streak: track.streak.count };
            self.still_picked((gpu, picked), (&mut *picking, seen), context)
        });
        if need != Truth::True {
            let kept = still.map(|(picked, _)| (number, Picked { outcome: need, ..picked }));
            picking.picked.extend(kept);
            return;
        }
        let chosen = still.or_else(|| {
            let seen = picking.best(gpu, seen, (context.tick, context.subordinate))?;
            let view = context.tick.view;
            let found = &view.targets[seen.place];
            let author = subject::author(found, view, context.subordinate);
            let (target, since, progress) = (found.id.clone(), 0, Progress::default());
            Some((Picked { target, since, progress, outcome: Truth::True, author, is_ended: false }, seen))
        });
        if let Some((mut picked, seen)) = chosen {
            picked.outcome = seen.outcome.and(holds(seen.place, gpu, context.tick.view));
            if picked.outcome == Truth::True {
                // A reload may have made `for` longer, so that less time counts.
                picked.since = picked.since.min(track.streak.count.saturating_sub(needed));
                let matched = Match { owner: gpu, subject: seen.place, streak: seen.streak.count };
                self.steps(matched, (&mut picked.progress, picked.since), context);
                picked.since = picked.since.saturating_add(1);
            }
            picking.picked.insert(number, picked);
        }
    }

    /// Returns the pick if it remains valid; otherwise records why it ended.
    fn still_picked(
        &self,
        (gpu, picked): (Needy, Picked),
        (picking, others): (&mut Picking, &[Candidate]),
        context: &mut EvalContext<'_>,
    ) -> Option<(Picked, Candidate)> {
        let view = context.tick.view;
        // A workload that no longer exists needs no verdict; the audit log has the action that ended it.
        let Some(seen) = others.iter().find(|seen| view.targets[seen.place].id == picked.target).copied()
        else {
            picking.end_early(&picked, context.tick);
            return None;
        };
        let stalls = picked.progress.stalls(&self.rule, picked.since, context.tick.interval);
        let comes_last = picking.comes_last(&seen, (view, context.subordinate));
        let why = if picked.progress.failed {
            picking.given_up.insert(picked.target.clone());
            "an earlier action failed, and no other step is left"
        } else if seen.held {
            // Otherwise a user could shield large workloads with a hold of a small one.
            "its owner holds it"
        } else if gpu.need == Truth::False {
            "the GPU no longer matches"
        } else if let Some(why) = unfit(&picked, (gpu, seen), (picking, context.tick)) {
            picking.end_early(&picked, context.tick);
            why
        } else if (stalls || comes_last)
            && !picked.progress.in_flight
            && gpu.need == Truth::True
            && picking.has_other((gpu.place, seen.place), others, (context.tick, context.subordinate))
        {
            // Otherwise a user could shield large workloads with a small one against which no step is taken.
            if stalls {
                picking.pass_over(picked.target.clone(), context.tick);
            }
            "steps against it are withheld, and another workload is eligible"
        } else {
            return Some((picked, seen));
        };
        let matched = Match { owner: gpu.place, subject: seen.place, streak: seen.streak.count };
        if picked.progress.warned {
            context.verdicts.push(self.finding(matched, What::Reprieved(why), context.tick));
        }
        if let Some(severity) = picked.progress.flagged {
            context.verdicts.push(self.finding(matched, What::Clear(severity), context.tick));
        }
        None
    }
}

/// Returns why a workload is no longer a candidate for the GPU on which it was picked.
fn unfit(
    picked: &Picked,
    (gpu, seen): (Needy, Candidate),
    (picking, tick): (&Picking, &Tick<'_>),
) -> Option<&'static str> {
    let needed = picking.idle_for.samples(tick.interval);
    if picked.since >= gpu.streak.min(seen.streak.count) && seen.outcome == Truth::True {
        // Both streaks must cover the time since the pick; otherwise one of them restarted after a gap.
        Some("the condition was unknown for too long")
    } else if seen.outcome == Truth::False || seen.streak.count < needed {
        Some("the workload no longer matches")
    } else {
        let is_free = holds(seen.place, gpu.place, tick.view) == Truth::False;
        is_free.then_some("the workload no longer holds memory on this GPU")
    }
}
