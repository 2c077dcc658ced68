//! How the enforcer stands, as plain data: the control socket answers with it, and both pages are made from it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::tally::{Counters, Reloaded};
use crate::agent;
use bailiff_engine::Kind;
use bailiff_engine::engine::STALE_INTERVALS;
use bailiff_engine::policy::{Mode, Severity};
use bailiff_engine::verdict::{Hold, Outcome};

/// Actions that are remembered.
pub const MOST_ACTIONS: usize = 50;

/// How the enforcer stands. Times are seconds since the Unix epoch; what was not observed is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The host's name.
    pub node: String,
    /// The enforcer's version.
    pub version: String,
    /// What any rule may do at most, whatever the file says.
    pub cap: Cap,
    /// What is in force.
    pub policy: PolicyStatus,
    /// Why nothing destructive is done on the whole node; nothing, if it may be.
    pub holds: Vec<HoldStatus>,
    /// Breakers that are open.
    pub breakers: Vec<Open>,
    /// Actions of the last hour: the node's, then those of users and GPUs that have used some.
    pub budgets: Vec<Budget>,
    /// The rules, in the order of the file.
    pub rules: Vec<RuleStatus>,
    /// All flags that are up.
    pub flags: Vec<Flag>,
    /// What is coming, the soonest first.
    pub pending: Vec<Pending>,
    /// What was done or watched, the newest first; at most [`MOST_ACTIONS`].
    pub actions: Vec<PastAction>,
    /// What is being done.
    pub in_flight: Option<InFlight>,
    /// Where snapshots come from.
    pub stream: Stream,
    /// The pool of leases; none if the policy names none.
    pub leases: Option<agent::AgentStatus>,
    /// What is counted.
    pub counters: Counters,
}

impl Status {
    /// Everything destructive is withheld for this reason.
    #[must_use]
    pub fn is_held(&self, hold: Hold) -> bool {
        self.holds.iter().any(|held| held.hold == hold) || self.breakers.iter().any(|open| open.hold == hold)
    }

    /// The breaker is open.
    #[must_use]
    pub fn is_open(&self, breaker: Breaker) -> bool {
        self.breakers.iter().any(|open| open.breaker == breaker)
    }

    /// Puts an action before those that are remembered.
    pub fn remember(&mut self, action: PastAction) {
        self.actions.insert(0, action);
        self.actions.truncate(MOST_ACTIONS);
    }
}

/// What any rule may do at most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode", content = "why")]
pub enum Cap {
    /// What its own mode says.
    #[default]
    None,
    /// Dry run for all rules, and why: `--dry-run`, a missing permission.
    DryRun(String),
}

/// The policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyStatus {
    /// Its file.
    pub path: String,
    /// SHA-256 of what is in force.
    pub sha256: Option<String>,
    /// When what is in force was loaded.
    pub loaded: Option<f64>,
    /// When the file was last read and found good.
    pub good: Option<f64>,
    /// How the last reading ended.
    pub last: Option<Reloaded>,
    /// When that was.
    pub read: Option<f64>,
    /// What is wrong with the file, a line each; nothing, if it is good.
    pub faults: Vec<String>,
}

/// A reason to withhold destructive steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldStatus {
    /// Which.
    pub hold: Hold,
    /// Until when, where that is known.
    pub until: Option<f64>,
    /// Details for administrators: who paused it and why.
    pub detail: String,
}

/// Breakers that stop destructive steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Breaker {
    /// Half of all workloads matched at once.
    Mass,
    /// Three actions in a row against one user failed.
    Failures,
    /// Too much is unknown.
    Unknown,
}

impl Breaker {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mass, Self::Failures, Self::Unknown];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mass => "mass",
            Self::Failures => "failures",
            Self::Unknown => "unknown",
        }
    }

    /// How it closes.
    #[must_use]
    pub const fn closes(self) -> &'static str {
        match self {
            Self::Mass => "resume closes it",
            Self::Failures | Self::Unknown => "breaker_reset without its cause, or resume, closes it",
        }
    }

    /// What it withholds the node's steps as.
    #[must_use]
    pub const fn hold(self) -> Hold {
        match self {
            Self::Mass => Hold::MassBreaker,
            Self::Failures => Hold::FailureBreaker,
            Self::Unknown => Hold::UnknownBreaker,
        }
    }
}

/// A breaker that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Which.
    pub breaker: Breaker,
    /// What it withholds steps as: for the whole node, or for one user.
    pub hold: Hold,
    /// Since when.
    pub since: f64,
    /// What opened it.
    pub detail: String,
}

/// What a budget is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The node.
    Node,
    /// A user.
    User,
    /// A GPU.
    Gpu,
}

impl Scope {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::User => "user",
            Self::Gpu => "gpu",
        }
    }
}

/// Actions of the last hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// What it is for.
    pub scope: Scope,
    /// A user or a GPU's UUID; empty for the node.
    pub of: String,
    /// Actions that count.
    pub used: u32,
    /// Actions that it allows.
    pub limit: u32,
}

/// A rule and how many it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub target: Kind,
    /// Whether it may act, in the end.
    pub mode: Mode,
    /// True samples that a match needs.
    pub needed: Option<u32>,
    /// Targets that match; none before it evaluated a snapshot.
    pub matches: Option<u64>,
    /// Targets of which it is true, but not for long enough.
    pub pending: Option<u64>,
    /// Targets of which it is not known.
    pub unknown: Option<u64>,
    /// What it does, a text each: `terminate after 25m`.
    pub steps: Vec<String>,
}

/// A flag that is up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flag {
    /// Of which rule.
    pub rule: String,
    /// How bad.
    pub severity: Severity,
    /// Its target.
    pub target: String,
    /// UUIDs of the GPUs that it holds or is.
    pub gpus: Vec<String>,
    /// Its process, where it is one.
    pub pid: Option<u32>,
    /// Its owner, where it has one.
    pub user: Option<String>,
    /// Its name.
    pub comm: Option<String>,
    /// Since when.
    pub since: f64,
}

/// A destructive step that is coming.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// Its target.
    pub target: String,
    /// Its owner, where it has one.
    pub user: Option<String>,
    /// Its name.
    pub comm: Option<String>,
    /// By which rule.
    pub rule: String,
    /// Whether that may act.
    pub mode: Mode,
    /// Which.
    pub step: String,
    /// True samples so far.
    pub streak: u32,
    /// True samples that the step needs.
    pub needed: u32,
    /// Earliest time in seconds; none if it cannot be determined.
    pub due_in: Option<f64>,
    /// Why it is due and not done.
    pub hold: Option<Hold>,
}

/// What was done or watched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastAction {
    /// Its id in the audit log.
    pub id: u64,
    /// When it ended.
    pub at: f64,
    /// By which rule.
    pub rule: String,
    /// Whether that may act.
    pub mode: Mode,
    /// Which.
    pub step: String,
    /// Its target.
    pub target: String,
    /// Its owner, where it has one.
    pub user: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// More, for people.
    pub detail: String,
    /// Bytes that were seen to come back.
    pub released: Option<u64>,
}

impl PastAction {
    /// It held memory and was ended, and it cannot be determined how much was released.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.released.is_none() && matches!(self.outcome, Outcome::GoneNotReleased | Outcome::Undetermined)
    }
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Its id in the audit log.
    pub id: u64,
    /// By which rule.
    pub rule: String,
    /// Which step.
    pub step: String,
    /// Its target.
    pub target: String,
    /// Since when.
    pub since: f64,
    /// Why its SIGKILL waits, while it does.
    #[serde(default)]
    pub waits: Option<String>,
}

/// Where snapshots come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// The socket.
    pub path: String,
    /// It is being read.
    pub connected: bool,
    /// Why it is not.
    pub error: Option<String>,
    /// Number of the snapshot that was evaluated last.
    pub seq: Option<u64>,
    /// When that was seen, in milliseconds since boot.
    pub seen_boot_ms: Option<u64>,
    /// The interval, in milliseconds.
    pub interval_ms: Option<u64>,
    /// How long it took to evaluate, in seconds.
    pub tick_seconds: Option<f64>,
    /// Its sources that did not answer, and why.
    #[serde(default)]
    pub silent: Vec<String>,
}

impl Stream {
    /// How long ago the snapshot that was evaluated last was seen, at this time since boot.
    #[must_use]
    pub fn age(&self, boot: Duration) -> Option<Duration> {
        self.seen_boot_ms.map(|seen| boot.saturating_sub(Duration::from_millis(seen)))
    }

    /// Its interval.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.interval_ms.map(Duration::from_millis)
    }

    /// The snapshot that was evaluated last is older than any that would be, at this time since boot.
    #[must_use]
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
