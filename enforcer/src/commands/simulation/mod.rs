//! Simulation of rules: recorded snapshots pass through the daemon's engine with their own clock, and every
//! action is reported as done. A target that would have been ended keeps running in the record; it is ended
//! once per match, and its memory counts as freed from then on.

mod coverage;
mod print;
mod projections;
pub mod report;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::wire;

use self::coverage::Coverage;
use self::projections::{Projections, Scope};
use self::report::{At, Freed, Owner, Period, ProjectedAction, Report, RuleReport};
use self::tally::Tally;
use crate::commands::playback::Playback;
use bailiff_engine::engine::missed;
use bailiff_engine::policy::{Action, Policy};
use bailiff_engine::verdict::{Hold, Verdict, What};
use bailiff_engine::view::View;

pub(super) use coverage::uses;
pub use print::print;

/// Rules at work on the past.
#[derive(Debug)]
pub struct Simulation {
    policy: Arc<Policy>,
    playback: Playback,
    period: Period,
    tallies: Vec<Tally>,
    projections: Projections,
    coverage: Coverage,
    breakers: Breakers,
    held: BTreeMap<Hold, Duration>,
}

/// What an administrator does once a breaker has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// Nothing: all destructive steps are held from then on.
    Away,
    /// An administrator checks, and resumes after this time.
    Resumes(Duration),
}

#[derive(Debug)]
struct Breakers {
    admin: Admin,
    /// When a breaker opened, since boot.
    open: Option<Duration>,
    opened: u64,
}

impl Simulation {
    /// Creates a simulation without history. Each rule runs in its own mode.
    pub fn new(policy: Arc<Policy>, admin: Admin) -> Self {
        Self {
            playback: Playback::new(Arc::clone(&policy)),
            period: Period::default(),
            tallies: policy.rules.iter().map(|_| Tally::default()).collect(),
            projections: Projections::default(),
            coverage: Coverage::of(&policy),
            breakers: Breakers { admin, open: None, opened: 0 },
            held: BTreeMap::new(),
            policy,
        }
    }

    /// Takes the next snapshot.
    pub fn see(&mut self, snapshot: wire::Snapshot) {
        let before = self.playback.last.clone();
        let view = self.playback.next(snapshot);
        let at = At(view.snapshot.wall_ms);
        self.period.snapshots += 1;
        self.period.from.get_or_insert(at);
        self.period.to = Some(at);
        self.resume(&view);
        match self.playback.evaluate(&view) {
            Err(skip) => *self.period.skipped.entry(skip.name()).or_default() += 1,
            Ok(verdicts) => self.judged(&verdicts, (before.as_deref(), &view)),
        }
    }

    /// Counts a line that is no snapshot.
    pub fn bad_line(&mut self) {
        self.period.bad_lines += 1;
    }

    fn judged(&mut self, verdicts: &[Verdict], (before, view): (Option<&View>, &View)) {
        self.walk(before, view);
        self.projections.follow(view);
        for verdict in verdicts {
            self.found(verdict, view);
        }
        let at = At(view.snapshot.wall_ms);
        for (rule, tally) in self.tallies.iter_mut().enumerate() {
            tally.stand(self.playback.engine.target_statuses(rule), at);
        }
        self.coverage.count(view);
    }

    /// Counts intervals, boots and holds.
    fn walk(&mut self, before: Option<&View>, view: &View) {
        self.period.judged += 1;
        self.period.interval_ms = view.snapshot.interval_ms;
        let same = before.filter(|before| before.snapshot.boot_id == view.snapshot.boot_id);
        let passed = same.map(|before| view.boot().saturating_sub(before.boot()));
        if let Some(passed) = passed {
            self.period.missed_intervals += u64::from(missed(passed, view.interval()));
        } else {
            self.period.boots += 1;
            self.tallies.iter_mut().for_each(Tally::forget);
        }
        let holds = self.playback.engine.node_holds(view);
        for hold in &holds {
            *self.held.entry(*hold).or_default() += passed.unwrap_or_default();
        }
        let open = holds
            .iter()
            .any(|hold| matches!(hold, Hold::MassBreaker | Hold::FailureBreaker | Hold::UnknownBreaker));
        if open && self.breakers.open.is_none() {
            self.breakers.open = Some(view.boot());
            self.breakers.opened += 1;
        } else if !open {
            self.breakers.open = None;
        }
    }

    /// The admin has looked.
    fn resume(&mut self, view: &View) {
        if let (Admin::Resumes(after), Some(open)) = (self.breakers.admin, self.breakers.open)
            && view.boot().saturating_sub(open) >= after
        {
            self.breakers.open = None;
            self.playback.engine.resume();
        }
    }

    fn found(&mut self, verdict: &Verdict, view: &View) {
        let Some(rule) = self.policy.rules.iter().position(|rule| rule.name == verdict.rule) else { return };
        let Some(tally) = self.tallies.get_mut(rule) else { return };
        tally.note(&verdict.what);
        let What::Act(_, action) = &verdict.what else { return };
        let again = !tally.done.insert((verdict.subject.id.clone(), action.name()));
        let projection = projection(verdict, action, (At(view.snapshot.wall_ms), again));
        self.projections.add((rule, projection), &verdict.subject, view.snapshot.boot_ms);
    }

    /// What came of it, of this source.
    pub fn finish(mut self, source: String) -> Report {
        self.period.held_seconds =
            self.held.iter().map(|(hold, time)| (hold.name(), time.as_secs())).collect();
        let mut notes = Vec::new();
        if self.breakers.opened > 0 {
            notes.push(self.breakers.describe());
        }
        let policy = Arc::clone(&self.policy);
        let rules = policy.rules.iter().enumerate().map(|(place, _)| self.rule(place)).collect();
        Report {
            source,
            policy_sha256: policy.sha256.clone(),
            rules,
            freed: self.projections.freed(&Scope::All),
            owners: self.owners(),
            unknown: self.coverage.unknown_of(),
            notes,
            period: self.period,
        }
    }

    fn rule(&self, place: usize) -> RuleReport {
        let (rule, tally) = (&self.policy.rules[place], &self.tallies[place]);
        let actions = self.projections.actions.iter().enumerate().filter(|(_, done)| done.rule == place);
        let actions: Vec<ProjectedAction> = actions
            .map(|(number, done)| ProjectedAction {
                freed: self.projections.freed(&Scope::ProjectedAction(number)),
                ..done.projection.clone()
            })
            .collect();
        let kills =
            || actions.iter().filter(|projection| projection.action == "terminate" && !projection.again);
        let (near_misses, more_near_misses) = tally.near_misses();
        RuleReport {
            name: rule.name.to_string(),
            mode: rule.mode,
            target: rule.target,
            needed: tally.needed,
            matches: tally.matches,
            flags: tally.flags,
            notices: tally.notices,
            reprieves: tally.reprieves,
            kills: kills().count() as u64,
            regrets: kills().filter(|projection| projection.regret.is_some()).count() as u64,
            withheld: tally.withheld.clone(),
            near_misses,
            more_near_misses,
            asked: tally.asked,
            held_true: tally.held_true,
            unknown: tally.unknown,
            freed: self.projections.freed(&Scope::Rule(place)),
            never: self.coverage.never(rule),
            actions,
        }
    }

    fn owners(&self) -> Vec<Owner> {
        let mut owners: BTreeMap<&str, Owner> = BTreeMap::new();
        for done in self.projections.actions.iter().filter(|done| done.first) {
            let owner = owners.entry(&done.owner).or_insert_with(|| Owner {
                user: done.owner.clone(),
                kills: 0,
                regrets: 0,
                freed: self.projections.freed(&Scope::Owner(done.owner.clone())),
            });
            owner.kills += 1;
            owner.regrets += u64::from(done.projection.regret.is_some());
        }
        let mut owners: Vec<Owner> = owners.into_values().collect();
        owners.sort_by(|one, other| other.freed.gpu_hours.total_cmp(&one.freed.gpu_hours));
        owners
    }
}

impl Breakers {
    fn describe(&self) -> String {
        let times = match self.opened {
            1 => "a breaker opened".to_owned(),
            opened => format!("breakers opened {opened} times"),
        };
        match self.admin {
            Admin::Away => format!(
                "{times}; all destructive steps after that are withheld, because no administrator runs `resume`"
            ),
            Admin::Resumes(after) => {
                format!(
                    "{times}; an administrator is assumed to run `resume` {} later",
                    crate::commands::layout::length(after)
                )
            }
        }
    }
}

fn projection(verdict: &Verdict, action: &Action, (at, again): (At, bool)) -> ProjectedAction {
    let subject = &verdict.subject;
    let holders = || subject.members.iter().filter(|member| member.holds);
    let mut comms: Vec<String> = holders().map(|member| member.comm.clone()).collect();
    comms.sort_unstable();
    comms.dedup();
    ProjectedAction {
        at,
        action: action.name(),
        target: subject.id.to_string(),
        uid: subject.uid,
        user: subject.user.clone(),
        comms,
        gpus: subject.gpus.clone(),
        vram: holders().map(|member| member.vram).sum(),
        streak: verdict.evidence.streak,
        needed: verdict.evidence.needed,
        again,
        ended: None,
        regret: None,
        freed: Freed::default(),
    }
}
