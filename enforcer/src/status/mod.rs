//! The enforcer's status as plain data: the control socket returns it, and both pages are rendered from it.

pub mod tally;

use std::time::Duration;

use bailiff_exposition::human::{Span, ago};
use serde::{Deserialize, Serialize};

use crate::agent;
use bailiff_engine::Kind;
use bailiff_engine::engine::{OwnerHoldStatus, STALE_INTERVALS};
use bailiff_engine::policy::{Mode, Severity};
use bailiff_engine::verdict::{Hold, Outcome};
use tally::{Counters, Reloaded};

/// Heading of the reasons why a rules file was not loaded.
pub const NOT_LOADED: &str = "the rules file was not loaded; the previous rules stay in force";
/// Maximum number of remembered actions.
pub const MOST_ACTIONS: usize = 50;

/// Status of the enforcer. Times are seconds since the Unix epoch; unobserved values are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Name of the host.
    pub node: String,
    /// Version of the enforcer.
    pub version: String,
    /// Highest mode that any rule can have.
    pub cap: Cap,
    /// The policy in force.
    pub policy: PolicyStatus,
    /// Reasons why destructive steps are withheld on the whole node.
    pub holds: Vec<HoldStatus>,
    /// Active holds of owners.
    pub owner_holds: Vec<OwnerHoldStatus>,
    /// Open breakers.
    pub breakers: Vec<Open>,
    /// Actions in the last hour: on the node, and for each user and GPU with at least one action.
    pub budgets: Vec<Budget>,
    /// Rules, in the order of the file.
    pub rules: Vec<RuleStatus>,
    /// Raised flags.
    pub flags: Vec<Flag>,
    /// Pending steps, soonest first.
    pub pending: Vec<Pending>,
    /// Completed actions and dry-run steps, newest first; at most [`MOST_ACTIONS`].
    pub actions: Vec<PastAction>,
    /// Action that is being carried out.
    pub in_flight: Option<InFlight>,
    /// Source of the snapshots.
    pub stream: Stream,
    /// Lease pool; `None` if the policy has none.
    pub leases: Option<agent::AgentStatus>,
    /// Counters.
    pub counters: Counters,
}

impl Status {
    /// Returns whether all destructive steps are withheld for this reason.
    pub fn is_held(&self, hold: Hold) -> bool {
        self.holds.iter().any(|held| held.hold == hold) || self.breakers.iter().any(|open| open.hold == hold)
    }

    /// Returns whether a breaker is open.
    pub fn is_open(&self, breaker: Breaker) -> bool {
        self.breakers.iter().any(|open| open.breaker == breaker)
    }

    /// Adds a completed action.
    pub fn remember(&mut self, action: PastAction) {
        self.actions.insert(0, action);
        self.actions.truncate(MOST_ACTIONS);
    }
}

/// Highest mode that any rule can have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode", content = "why")]
pub enum Cap {
    /// The mode of each rule applies.
    #[default]
    None,
    /// Dry run for all rules, with the reason: `--dry-run` or a missing privilege.
    DryRun(String),
}

/// Status of the policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyStatus {
    /// Path of the file.
    pub path: String,
    /// SHA-256 of the policy in force.
    pub sha256: Option<String>,
    /// Time when it was loaded.
    pub loaded: Option<f64>,
    /// Time when the file was last found valid.
    pub good: Option<f64>,
    /// Result of the last reading.
    pub last: Option<Reloaded>,
    /// Time of the last reading.
    pub read: Option<f64>,
    /// Errors of the file, one line each.
    pub faults: Vec<String>,
}

/// A reason why destructive steps are withheld.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldStatus {
    /// The hold.
    pub hold: Hold,
    /// End of the hold, if known.
    pub until: Option<f64>,
    /// Details for administrators: who paused it and why.
    pub detail: String,
}

impl HoldStatus {
    /// Returns the details in brackets, if they say more than the hold's meaning.
    pub fn more(&self) -> String {
        let more = !self.detail.is_empty() && self.detail != self.hold.meaning();
        if more { format!(" ({})", self.detail) } else { String::new() }
    }

    /// Returns a phrase about the time that is left, if the end is known; `wall` is the wall-clock time.
    pub fn left(&self, wall: Duration) -> String {
        let left = |until| Duration::try_from_secs_f64(until).unwrap_or_default().saturating_sub(wall);
        self.until.map(|until| format!(", for {} more", Span(left(until)))).unwrap_or_default()
    }
}

/// Describes a hold of an owner.
pub fn held_by_owner(hold: &OwnerHoldStatus) -> String {
    let left = hold.left.and_then(|left| Duration::try_from_secs_f64(left).ok());
    let left = left.map_or_else(|| "an unknown time".to_owned(), |left| Span(left).to_string());
    let reason = if hold.reason.is_empty() { String::new() } else { format!(": {}", hold.reason) };
    format!("held by its owner (uid {}) for {left} more{reason}", hold.uid)
}

bailiff_snapshot::label_values! {
/// Breakers that stop destructive steps.
pub enum Breaker {
    /// Too large a share of the workloads matched at once.
    Mass = "mass",
    /// Three consecutive actions against one user failed.
    Failures = "failures",
    /// Too many outcomes are unknown.
    Unknown = "unknown",
    /// The driver stopped responding after an action.
    DriverHang = "driver_hang",
}
}

impl Breaker {
    /// Describes how the breaker closes.
    pub const fn closes(self) -> &'static str {
        match self {
            Self::Mass | Self::DriverHang => "resume closes it",
            Self::Failures | Self::Unknown => {
                "closes on resume, or when its cause has been absent for limits.breaker_reset"
            }
        }
    }

    /// Hold of the node when the breaker is open.
    pub const fn hold(self) -> Hold {
        match self {
            Self::Mass => Hold::MassBreaker,
            Self::Failures => Hold::FailureBreaker,
            Self::Unknown => Hold::UnknownBreaker,
            Self::DriverHang => Hold::DriverHangBreaker,
        }
    }
}

/// An open breaker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// The breaker.
    pub breaker: Breaker,
    /// Its hold: for the node, or for one user.
    pub hold: Hold,
    /// Time when it opened.
    pub since: f64,
    /// Cause.
    pub detail: String,
}

bailiff_snapshot::label_values! {
/// Scope of a budget.
pub enum Scope {
    /// The whole node.
    Node = "node",
    /// One user.
    User = "user",
    /// One GPU.
    Gpu = "gpu",
}
}

/// Use of a budget in the last hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Scope.
    pub scope: Scope,
    /// Name of the user, or UUID of the GPU; empty for the node.
    pub of: String,
    /// Number of actions.
    pub used: u32,
    /// Limit.
    pub limit: u32,
}

/// Status of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Name.
    pub name: String,
    /// Kind of target.
    pub target: Kind,
    /// Effective mode.
    pub mode: Mode,
    /// True samples that a match needs.
    pub needed: Option<u32>,
    /// Targets that match; `None` before the first evaluated snapshot.
    pub matches: Option<u64>,
    /// Targets whose condition is true, but not for long enough yet.
    pub pending: Option<u64>,
    /// Targets that could not be evaluated.
    pub unknown: Option<u64>,
    /// Targets that their owners hold; `None` if the rule does not permit it.
    #[serde(default)]
    pub owner_holds: Option<u64>,
    /// Steps as text: `terminate after 25m`.
    pub steps: Vec<String>,
}

/// A raised flag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flag {
    /// Name of the rule.
    pub rule: String,
    /// Severity.
    pub severity: Severity,
    /// Name of the target.
    pub target: String,
    /// UUIDs of the GPUs that it holds or is.
    pub gpus: Vec<String>,
    /// Pid, for a process.
    pub pid: Option<u32>,
    /// Owner, if any.
    pub user: Option<String>,
    /// Process name.
    pub comm: Option<String>,
    /// Time when it was raised.
    pub since: f64,
}

/// A pending destructive step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// Name of the target.
    pub target: String,
    /// Owner, if any.
    pub user: Option<String>,
    /// Process name.
    pub comm: Option<String>,
    /// Name of the rule.
    pub rule: String,
    /// Effective mode of the rule.
    pub mode: Mode,
    /// The step.
    pub step: String,
    /// True samples so far.
    pub streak: u32,
    /// True samples that the step needs.
    pub needed: u32,
    /// Earliest time of the step, in seconds from now; `None` if unknown.
    pub due_in: Option<f64>,
    /// Hold that withholds the due step.
    pub hold: Option<Hold>,
}

impl Pending {
    /// Returns the earliest time until the step.
    pub fn due_in(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.due_in?).ok()
    }
}

/// A completed action, or a dry-run step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastAction {
    /// Id in the audit log.
    pub id: u64,
    /// Time when it ended.
    pub at: f64,
    /// Name of the rule.
    pub rule: String,
    /// Effective mode of the rule.
    pub mode: Mode,
    /// The step.
    pub step: String,
    /// Name of the target.
    pub target: String,
    /// Owner, if any.
    pub user: Option<String>,
    /// Result.
    pub outcome: Outcome,
    /// Details for people.
    pub detail: String,
    /// Bytes observed as released.
    pub released: Option<u64>,
}

impl PastAction {
    /// Returns whether the target was ended and the released memory is unknown.
    pub const fn is_unknown(&self) -> bool {
        self.released.is_none() && matches!(self.outcome, Outcome::GoneNotReleased | Outcome::Undetermined)
    }
}

/// An action that is being carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Id in the audit log.
    pub id: u64,
    /// Name of the rule.
    pub rule: String,
    /// The step.
    pub step: String,
    /// Name of the target.
    pub target: String,
    /// Time when it began.
    pub since: f64,
    /// Why SIGKILL is delayed.
    pub waits: Option<String>,
}

impl InFlight {
    /// Describes the action; `wall` is the wall-clock time.
    pub fn describe(&self, wall: Duration) -> String {
        let since = ago(self.since, wall);
        format!("{} by rule {} against {}, begun {since}", self.step, self.rule, self.target)
    }
}

/// Source of the snapshots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// Path of the socket.
    pub path: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Error of the connection.
    pub error: Option<String>,
    /// Number of the last evaluated snapshot.
    pub seq: Option<u64>,
    /// Time of that snapshot in milliseconds since boot.
    pub seen_boot_ms: Option<u64>,
    /// Sampling interval in milliseconds.
    pub interval_ms: Option<u64>,
    /// Duration of its evaluation in seconds.
    pub tick_seconds: Option<f64>,
    /// Sources that did not respond, with the reason.
    #[serde(default)]
    pub silent: Vec<String>,
}

impl Stream {
    /// Returns the age of the last evaluated snapshot at this time since boot.
    pub fn age(&self, boot: Duration) -> Option<Duration> {
        self.seen_boot_ms.map(|seen| boot.saturating_sub(Duration::from_millis(seen)))
    }

    /// Returns the sampling interval.
    pub fn interval(&self) -> Option<Duration> {
        self.interval_ms.map(Duration::from_millis)
    }

    /// Returns whether the last evaluated snapshot is outdated at this time since boot.
    pub fn is_stale(&self, boot: Duration) -> bool {
        self.age(boot).zip(self.interval()).is_some_and(|(age, interval)| age > interval * STALE_INTERVALS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_actions_are_remembered() {
        let mut status = Status::default();
        let action = |id| PastAction {
            id,
            at: 0.0,
            rule: "idle".into(),
            mode: Mode::DryRun,
            step: "terminate".into(),
            target: "process:1@1".into(),
            user: None,
            outcome: Outcome::DryRun,
            detail: String::new(),
            released: None,
        };
        for id in 0..60 {
            status.remember(action(id));
        }
        let ids: Vec<u64> = status.actions.iter().map(|action| action.id).collect();
        assert_eq!(ids, (10..60).rev().collect::<Vec<u64>>());
    }

    #[test]
    fn it_survives_the_socket() {
        let status = Status { cap: Cap::DryRun("--dry-run".into()), ..Status::default() };
        let json = serde_json::to_string(&status).expect("it is plain data");
        assert_eq!(serde_json::from_str::<Status>(&json).expect("it was just written"), status);
        assert_eq!(serde_json::from_str::<Status>("{}").expect("all has a default"), Status::default());
    }
}
