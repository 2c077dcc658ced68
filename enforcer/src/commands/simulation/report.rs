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
    #[must_use]
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
    /// Each user with a process that would have been ended, and what would have been freed by all of them.
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
    /// Snapshots that were there.
    pub snapshots: u64,
    /// And were evaluated.
    pub judged: u64,
    /// The others, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Lines that are no snapshot.
    pub bad_lines: u64,
    /// Intervals without a snapshot between those that were evaluated: unknown.
    pub missed_intervals: u64,
    /// Boots of the machine.
    pub boots: u64,
    /// Seconds for which something held all destructive steps, by what it was.
    pub held_seconds: BTreeMap<&'static str, u64>,
}

/// What one rule would have done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleReport {
    /// Its name.
    pub name: String,
    /// Whether it acts.
    pub mode: Mode,
    /// What it is about.
    pub target: Kind,
    /// True samples in a row that a match needs, at the last interval's period.
    pub needed: u32,
    /// Matches.
    pub matches: u64,
    /// Flags that went up.
    pub flags: u64,
    /// Notices.
    pub notices: u64,
    /// Targets that were warned or due, and were reprieved.
    pub reprieves: u64,
    /// Would-be kills, of each target once.
    pub kills: u64,
    /// Of these, how many were busy again soon.
    pub regrets: u64,
    /// Every destructive step that would have been taken.
    pub actions: Vec<ProjectedAction>,
    /// Steps that were due and not done, by what held them.
    pub withheld: BTreeMap<&'static str, u64>,
    /// Targets whose longest streak was close to a match without reaching it, the closest first.
    pub near_misses: Vec<NearMiss>,
    /// And how many more of them there are.
    pub more_near_misses: u64,
    /// How often it was asked of a target.
    pub asked: u64,
    /// How often that was true.
    pub held_true: u64,
    /// How often that was unknown.
    pub unknown: u64,
    /// What its would-be kills would have freed.
    pub freed: Freed,
    /// Why it never could match on this data, where that is so.
    pub never: Option<String>,
}

/// GPU time and memory that would have been free: from a would-be kill until the target really ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Freed {
    /// GPUs times hours; a GPU that several held counts once.
    pub gpu_hours: f64,
    /// GiB of GPU memory times hours.
    pub gib_hours: f64,
}

/// A destructive step that would have been taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProjectedAction {
    /// When.
    pub at: At,
    /// `terminate`, `signal` and so on.
    pub action: &'static str,
    /// Its target.
    pub target: String,
    /// The owner's number.
    pub uid: Option<u32>,
    /// The owner's name.
    pub user: Option<String>,
    /// Names of its processes that hold memory.
    pub comms: Vec<String>,
    /// UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// GPU memory that it held, in bytes.
    pub vram: Option<u64>,
    /// True samples in the streak.
    pub streak: u32,
    /// True samples that a match needed.
    pub needed: u32,
    /// The rule would have ended it already: in truth this would not have happened.
    pub again: bool,
    /// When it really ended, where it did.
    pub ended: Option<At>,
    /// It was busy again soon.
    pub regret: Option<Regret>,
    /// What it would have freed.
    pub freed: Freed,
}

/// A target that was busy again soon after it would have been ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Regret {
    /// Seconds after the would-be kill.
    pub after_seconds: u64,
    /// How busy, as a ratio.
    pub gpu_util: f64,
}

/// A target that came close.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NearMiss {
    /// The target.
    pub target: String,
    /// True samples of its longest streak.
    pub longest: u32,
    /// Samples that a match needs.
    pub needed: u32,
    /// When it was that long.
    pub at: At,
}

/// What would-be kills cost and would have freed, of one owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Owner {
    /// Name, else number, else `unknown`.
    pub user: String,
    /// Targets that would have been ended.
    pub kills: u64,
    /// Of these, how many were busy again soon.
    pub regrets: u64,
    /// What that would have freed.
    pub freed: Freed,
}

/// What rules ask for and was not always observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unknown {
    /// The attribute or selector.
    pub name: &'static str,
    /// Of what kind of target.
    pub kind: Kind,
    /// How often it was asked for.
    pub asked: u64,
    /// How often it was unknown.
    pub unknown: u64,
}

impl Unknown {
    /// It was never observed.
    #[must_use]
    pub const fn throughout(&self) -> bool {
        self.asked > 0 && self.asked == self.unknown
    }
}
