//! Holds of owners. The owner of a target can ask that a rule's destructive steps wait, if the rule has `hold`. Such a hold
//! ends at its time or when the rule no longer permits it; it changes no streak, budget or breaker.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::Truth;
use serde::{Deserialize, Serialize};

use super::ledger::Stamp;
use super::{Engine, Now, subject, texts};
use crate::Kind;
use crate::policy::{Field, OwnerLimits, Pattern, Rule, Selector};
use crate::verdict::Subject;
use crate::view::{Target, TargetId, View};

/// Period in which holds are counted.
const DAY: Duration = Duration::from_hours(24);
/// Maximum number of holds of a user within a day.
const MOST_OF_A_USER: usize = 256;

/// A request to hold targets.
#[derive(Debug, Clone)]
pub struct HoldRequest {
    /// The user who asks. Only targets whose processes all belong to this user are held.
    pub uid: u32,
    /// Requested length; each rule limits it.
    pub length: Duration,
    /// Reason, for administrators.
    pub reason: String,
    /// The targets.
    pub which: HeldTargets,
}

/// Targets of a [`HoldRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldTargets {
    /// Those that contain this process.
    Pid(u32),
    /// Those of this Slurm job.
    Job(String),
    /// All of the user.
    Mine,
}

/// A hold of an owner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OwnerHold {
    rule: String,
    target: TargetId,
    uid: u32,
    begun: Stamp,
    length: Duration,
    reason: String,
}

/// An active hold of an owner, or the answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnerHoldStatus {
    /// The rule whose steps wait.
    pub rule: String,
    /// The target.
    pub target: TargetId,
    /// The user who asked.
    pub uid: u32,
    /// Remaining time in seconds; `None` if the request was refused.
    pub left: Option<f64>,
    /// Reason that the user gave or, if the request was refused, why.
    pub reason: String,
}

impl OwnerHold {
    fn status(&self, left: Duration) -> OwnerHoldStatus {
        let Self { rule, target, uid, reason, .. } = self;
        OwnerHoldStatus {
            rule: rule.clone(),
            target: target.clone(),
            uid: *uid,
            left: Some(left.as_secs_f64()),
            reason: reason.clone(),
        }
    }
}

impl Engine {
    /// Grants or refuses the holds that an owner requests, one for each target and each rule that permits holds of such
    /// targets.
    ///
    /// # Errors
    /// If the user has no such target, or no rule permits to hold it.
    pub fn hold_for_owner(
        &mut self,
        now: Now,
        request: &HoldRequest,
    ) -> Result<Vec<OwnerHoldStatus>, &'static str> {
        if request.length.is_zero() {
            return Err("the length of a hold must be greater than 0");
        }
        let view = self.last.clone().ok_or("the rules have not evaluated a snapshot yet")?;
        let begun = Stamp::new(now, self.boot_id());
        let boot_id = self.boot_id().map(str::to_owned);
        self.owner_holds.retain(|hold| hold.begun.ago(now, boot_id.as_deref()) < DAY);
        let theirs: Vec<&Target> =
            view.targets.iter().filter(|target| self.is_requested(target, request, &view)).collect();
        if theirs.is_empty() {
            return Err("in the last snapshot, you have no such process with GPU memory and no such job");
        }
        let permits = |target: &Target| {
            let rules = self.policy.rules.iter().filter(|rule| held_kind(rule) == Some(target.kind));
            let limits = rules.filter_map(|rule| Some((rule.name.to_string(), rule.hold?)));
            limits.map(|(rule, limits)| (rule, limits, target.id.clone())).collect::<Vec<_>>()
        };
        let permitted: Vec<_> = theirs.into_iter().flat_map(permits).collect();
        if permitted.is_empty() {
            return Err("no rule permits to hold it (rules permit this with `hold`)");
        }
        if permitted.len() > MOST_OF_A_USER {
            return Err("you have too many processes to hold them all; hold one process or job");
        }
        let grant = |(rule, limits, target): (String, OwnerLimits, TargetId)| {
            let length = request.length.min(limits.max);
            let (uid, reason, begun) = (request.uid, request.reason.clone(), begun.clone());
            self.grant(limits.per_day, OwnerHold { rule, target, uid, begun, length, reason })
        };
        Ok(permitted.into_iter().map(grant).collect())
    }

    /// Adds a hold unless there are too many.
    fn grant(&mut self, per_day: u32, hold: OwnerHold) -> OwnerHoldStatus {
        let holds = &self.owner_holds;
        let same = holds.iter().filter(|other| other.rule == hold.rule && other.target == hold.target);
        let user = |hold: &OwnerHold| self.actions.user(Some(hold.uid));
        let of_user = holds.iter().filter(|other| user(other) == user(&hold));
        let refused = if same.count() >= per_day as usize {
            let most = if per_day == 1 { "one hold".to_owned() } else { format!("{per_day} holds") };
            Some(format!("the rule permits {most} within 24 hours"))
        } else if of_user.count() >= MOST_OF_A_USER {
            Some("too many holds within 24 hours".to_owned())
        } else {
            None
        };
        let granted = hold.status(hold.length);
        if let Some(reason) = refused {
            return OwnerHoldStatus { left: None, reason, ..granted };
        }
        self.owner_holds.push(hold);
        granted
    }

    /// Returns a target of the last snapshot, for the audit log.
    pub fn subject(&self, id: &TargetId) -> Option<Subject> {
        let view = self.last.as_deref()?;
        view.targets.iter().find(|target| target.id == *id).map(|target| subject::of(target, view))
    }

    /// Returns the active holds of owners: the longest one for each target and rule, as long as the target exists.
    pub fn owner_holds(&self, now: Now) -> impl Iterator<Item = OwnerHoldStatus> + '_ {
        let mut longest: BTreeMap<(&str, &TargetId), (Duration, &OwnerHold)> = BTreeMap::new();
        for hold in self.owner_holds.iter().filter(|hold| self.exists(&hold.target)) {
            let Some(left) = self.left_of(hold, now) else { continue };
            let one = longest.entry((&hold.rule, &hold.target)).or_insert((left, hold));
            if left > one.0 {
                *one = (left, hold);
            }
        }
        longest.into_values().map(|(left, hold)| hold.status(left))
    }

    /// Returns whether a target is known: in the last snapshot, or only unknown there.
    fn exists(&self, id: &TargetId) -> bool {
        self.populations.iter().any(|population| population.number(id).is_some())
    }

    /// Returns the active hold of a target's owner for a rule.
    pub(super) fn owner_hold(&self, rule: &str, target: &TargetId, now: Now) -> Option<OwnerHoldStatus> {
        let these = self.owner_holds.iter().filter(|hold| hold.rule == rule && hold.target == *target);
        these
            .filter_map(|hold| Some((hold, self.left_of(hold, now)?)))
            .max_by_key(|(_, left)| *left)
            .map(|(hold, left)| hold.status(left))
    }

    /// Returns the remaining time of a hold; `None` if it has ended, or if the rule no longer permits it.
    fn left_of(&self, hold: &OwnerHold, now: Now) -> Option<Duration> {
        let rule = self.policy.rules.iter().find(|rule| *rule.name == *hold.rule)?;
        // A rule that now permits less ends the holds that are longer.
        let length = hold.length.min(rule.hold?.max);
        length.checked_sub(hold.begun.ago(now, self.boot_id())).filter(|left| !left.is_zero())
    }

    /// Returns whether all processes of a target belong to a user.
    pub(super) fn is_owner(&self, uid: u32, target: &Target, view: &View) -> bool {
        let owner = subject::owner(target, view);
        owner.is_some() && self.actions.user(owner) == self.actions.user(Some(uid))
    }

    fn is_requested(&self, target: &Target, request: &HoldRequest, view: &View) -> bool {
        if !self.is_owner(request.uid, target, view) {
            return false;
        }
        match &request.which {
            HeldTargets::Mine => true,
            HeldTargets::Pid(pid) => subject::has_process(target, *pid, view),
            HeldTargets::Job(job) => {
                let selector =
                    Selector { field: Field::SlurmJobs, patterns: vec![Pattern::Text(job.clone())] };
                texts::select(&selector, target, view) == Truth::True
            }
        }
    }
}

/// Returns the kind of the targets that a rule's steps apply to; `None` if these have no owner who could hold them.
fn held_kind(rule: &Rule) -> Option<Kind> {
    match rule.target {
        Kind::Process | Kind::Workload | Kind::SlurmJob | Kind::Pod => Some(rule.target),
        Kind::Gpu => rule.pick.as_ref().map(|_| Kind::Workload),
        Kind::Lease | Kind::MpsServer => None,
    }
}
