//! Report of what rules would have done: the JSON of `replay` and `backtest`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::commands::layout;
use bailiff_engine::Kind;
use bailiff_engine::policy::Mode;

/// A time in milliseconds since the Unix epoch; serialized as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(pub u64);

impl At {
    /// Creates it from a time since the Unix epoch.
    pub const fn since_epoch(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Serialize for At {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&layout::moment(self.since_epoch()))
    }
}

/// What rules would have done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Source of the data: a file, or a node's exporter.
    pub source: String,
    /// SHA-256 of the rules file.
    pub policy_sha256: String,
    /// Period of the data.
    pub period: Period,
    /// Result of each rule, in the order of the file.
    pub rules: Vec<RuleReport>,
    /// Result of all rules together.
    pub freed: Freed,
    /// Results for each user who owns a target that would have been ended.
    pub owners: Vec<Owner>,
    /// Attributes that rules use and that were not always observed.
    pub unknown: Vec<Unknown>,
    /// Notes for readers.
    pub notes: Vec<String>,
}

/// Period of the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Period {
    /// Time of the first snapshot.
    pub from: Option<At>,
    /// Time of the last snapshot.
    pub to: Option<At>,
    /// Sampling interval in milliseconds, from the last snapshot.
    pub interval_ms: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Number of evaluated snapshots.
    pub judged: u64,
    /// Number of the others, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Number of invalid lines.
    pub bad_lines: u64,
    /// Number of intervals without a snapshot between the evaluated ones.
    pub missed_intervals: u64,
    /// Number of boots of the machine.
    pub boots: u64,
    /// Seconds in which destructive steps were withheld, by hold.
    pub held_seconds: BTreeMap<&'static str, u64>,
}

/// Result of one rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleReport {
    /// Name of the rule.
    pub name: String,
    /// Mode of the rule.
    pub mode: Mode,
    /// Kind of its targets.
    pub target: Kind,
    /// Consecutive true samples that a match needs, at the last interval.
    pub needed: u32,
    /// Number of matches.
    pub matches: u64,
    /// Number of raised flags.
    pub flags: u64,
    /// Number of notifications.
    pub notices: u64,
    /// Number of targets that were notified or due, and were reprieved.
    pub reprieves: u64,
    /// Number of targets that would have been ended.
    pub kills: u64,
    /// Number of them that were busy again soon.
    pub regrets: u64,
    /// Every destructive step that would have been taken.
    pub actions: Vec<ProjectedAction>,
    /// Number of due steps that were withheld, by hold.
    pub withheld: BTreeMap<&'static str, u64>,
    /// Targets whose longest streak nearly reached a match, closest first.
    pub near_misses: Vec<NearMiss>,
    /// Number of further near misses.
    pub more_near_misses: u64,
    /// Number of evaluations.
    pub asked: u64,
    /// Number of true outcomes.
    pub held_true: u64,
    /// Number of unknown outcomes.
    pub unknown: u64,
    /// What would have been freed.
    pub freed: Freed,
    /// Why the rule could never match on this data.
    pub never: Option<String>,
}

/// GPU time and memory that would have been free, from the action until the target really exited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Freed {
    /// GPU hours; a GPU with several holders counts once.
    pub gpu_hours: f64,
    /// GiB of GPU memory times hours.
    pub gib_hours: f64,
}

/// A destructive step that would have been taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProjectedAction {
    /// Time of the step.
    pub at: At,
    /// Name of the step: `terminate`, `signal` and others.
    pub action: &'static str,
    /// Name of the target.
    pub target: String,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// Name of the owner.
    pub user: Option<String>,
    /// Names of its processes with memory.
    pub comms: Vec<String>,
    /// UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// GPU memory in bytes.
    pub vram: Option<u64>,
    /// True samples in the streak.
    pub streak: u32,
    /// True samples that a match needs.
    pub needed: u32,
    /// Whether the rule would have ended the target before, so that this step would not have happened.
    pub again: bool,
    /// When the target really exited.
    pub ended: Option<At>,
    /// Whether and how it was busy again soon.
    pub regret: Option<Regret>,
    /// What would have been freed.
    pub freed: Freed,
}

/// A target that was busy again soon after it would have been ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Regret {
    /// Seconds after the action.
    pub after_seconds: u64,
    /// Utilization as a ratio.
    pub gpu_util: f64,
}

/// A target that nearly matched.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NearMiss {
    /// Name of the target.
    pub target: String,
    /// True samples of its longest streak.
    pub longest: u32,
    /// Samples that a match needs.
    pub needed: u32,
    /// End of that streak.
    pub at: At,
}

/// Results for one owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Owner {
    /// Name, else uid, else `unknown`.
    pub user: String,
    /// Number of targets that would have been ended.
    pub kills: u64,
    /// Number of them that were busy again soon.
    pub regrets: u64,
    /// What would have been freed.
    pub freed: Freed,
}

/// An attribute that rules use and that was not always observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unknown {
    /// Attribute or selector.
    pub name: &'static str,
    /// Kind of target.
    pub kind: Kind,
    /// Number of evaluations.
    pub asked: u64,
    /// Number of unknown values.
    pub unknown: u64,
}

impl Unknown {
    /// Returns whether it was never observed.
    pub const fn throughout(&self) -> bool {
        self.asked > 0 && self.asked == self.unknown
    }
}
