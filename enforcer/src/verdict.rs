//! What the engine found, as data. Nobody is harmed by a verdict: [`crate::actions`] carries it out, and that
//! is the only place where watching and enforcing part.

use std::sync::Arc;

use bailiff_snapshot::ProcessKey;
use serde::{Deserialize, Serialize};

use crate::policy::{Action, Kind, Mode, Severity};
use crate::view::TargetId;
use bailiff_snapshot::Truth;

/// One finding of one rule about one target.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Whether it may act.
    pub mode: Mode,
    /// Whom it is about: for a rule with `pick`, the workload that was picked.
    pub subject: Arc<Subject>,
    /// What is to be done, or was found.
    pub what: What,
    /// How sure it is.
    pub evidence: Evidence,
}

/// What is to be done, or was found.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A flag goes up.
    Flag(Severity),
    /// A flag comes down.
    Clear(Severity),
    /// Channels are told.
    Notify(Vec<String>),
    /// A destructive step was decided: it is confirmed at the next snapshot, or dropped.
    Due(Action),
    /// A destructive step, confirmed. The id names it in the audit log and in its report.
    Act(u64, Action),
    /// A destructive step is due and is not done; told once until the reason changes.
    Withheld(Action, Hold),
    /// It was warned or due, and is spared: it was seen not to match, or is gone.
    Reprieved(&'static str),
}

/// Why destructive steps wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// An admin said so.
    Paused,
    /// The enforcer has just begun.
    Started,
    /// The policy was just changed.
    Reloaded,
    /// The file on disk is invalid, and the last good policy goes on.
    InvalidFile,
    /// The file was written for another beat.
    OtherInterval,
    /// The audit log cannot be written.
    Audit,
    /// The state cannot be written, so budgets would not outlive a restart.
    State,
    /// The right to act upon this user's processes is missing.
    Rights,
    /// Not the host's PID namespace, or no boot id.
    Untrusted,
    /// The snapshot is too old to act on.
    Stale,
    /// The GPU's deeds of this hour are used up.
    GpuBudget,
    /// The user's.
    UserBudget,
    /// The node's.
    NodeBudget,
    /// The same target had its turn a short while ago.
    Cooldown,
    /// Half of all workloads matched at once; closes by an admin's word.
    MassBreaker,
    /// Three deeds in a row failed.
    FailureBreaker,
    /// Too much is unknown.
    UnknownBreaker,
    /// An earlier deed against this target failed and is not tried again.
    Failed,
}

impl Hold {
    /// All of them, in the order of the docs.
    pub const ALL: [Self; 18] = [
        Self::Paused,
        Self::Started,
        Self::Reloaded,
        Self::InvalidFile,
        Self::OtherInterval,
        Self::Audit,
        Self::State,
        Self::Rights,
        Self::Untrusted,
        Self::Stale,
        Self::GpuBudget,
        Self::UserBudget,
        Self::NodeBudget,
        Self::Cooldown,
        Self::MassBreaker,
        Self::FailureBreaker,
        Self::UnknownBreaker,
        Self::Failed,
    ];

    /// It withholds everything destructive, whoever it is against.
    #[must_use]
    pub const fn node_wide(self) -> bool {
        !matches!(self, Self::Rights | Self::GpuBudget | Self::UserBudget | Self::Cooldown | Self::Failed)
    }

    /// What it means, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Paused => "an admin paused it",
            Self::Started => "it has just started",
            Self::Reloaded => "the policy was just changed",
            Self::InvalidFile => "the file on disk is invalid; the last good policy goes on",
            Self::OtherInterval => "the file was written for another beat",
            Self::Audit => "the audit log cannot be written",
            Self::State => "the state is not on the disk, and budgets would not outlive a restart",
            Self::Rights => {
                "CAP_KILL is missing, so only the enforcer's own user's processes can be acted upon"
            }
            Self::Untrusted => "this is not the host's PID namespace, or there is no boot id",
            Self::Stale => "the last snapshot is too old to act on",
            Self::GpuBudget => "the GPU's deeds of this hour are used up",
            Self::UserBudget => "the user's deeds of this hour are used up",
            Self::NodeBudget => "the node's deeds of this hour are used up",
            Self::Cooldown => "the same target had its turn a short while ago",
            Self::MassBreaker => "half of all workloads matched at once",
            Self::FailureBreaker => "three deeds in a row failed",
            Self::UnknownBreaker => "too much is unknown",
            Self::Failed => "an earlier deed against this target failed",
        }
    }

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Started => "started",
            Self::Reloaded => "reloaded",
            Self::InvalidFile => "invalid_file",
            Self::OtherInterval => "other_interval",
            Self::Audit => "audit",
            Self::State => "state",
            Self::Rights => "rights",
            Self::Untrusted => "untrusted",
            Self::Stale => "stale",
            Self::GpuBudget => "gpu_budget",
            Self::UserBudget => "user_budget",
            Self::NodeBudget => "node_budget",
            Self::Cooldown => "cooldown",
            Self::MassBreaker => "mass_breaker",
            Self::FailureBreaker => "failure_breaker",
            Self::UnknownBreaker => "unknown_breaker",
            Self::Failed => "failed",
        }
    }
}

/// Whom a verdict is about, as seen when it was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Subject {
    /// Its name.
    pub id: TargetId,
    /// What it is.
    pub kind: Kind,
    /// The owner, where all its processes have one and the same.
    pub uid: Option<u32>,
    /// The owner's name.
    pub user: Option<String>,
    /// UUIDs of the GPUs it holds or is.
    pub gpus: Vec<String>,
    /// Its processes: those that hold memory, then the others.
    pub members: Vec<Member>,
}

/// One process of a subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Member {
    /// Who; none for a pid that the driver alone knows.
    pub key: Option<ProcessKey>,
    /// The pid.
    pub pid: u32,
    /// Its owner.
    pub uid: Option<u32>,
    /// Its name.
    pub comm: String,
    /// Its program, where known.
    pub exe: Option<String>,
    /// Its cgroup.
    pub cgroup: String,
    /// GPU memory in bytes; none where the driver does not say. A member that holds none has 0.
    pub vram: Option<u64>,
    /// It is listed by the driver.
    pub holds: bool,
}

/// Why a verdict was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// Number of the snapshot.
    pub seq: u64,
    /// True samples in the streak.
    pub streak: u32,
    /// True samples that a match needs.
    pub needed: u32,
    /// Each comparison of the condition.
    pub leaves: Vec<Asked>,
}

/// One comparison and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The attribute or selector.
    pub name: String,
    /// What was observed, for people.
    pub value: String,
    /// What is wanted: `max 5%`.
    pub wish: String,
    /// Whether it is.
    pub outcome: Truth,
    /// Where the value comes from.
    pub source: String,
}

/// How a deed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was ended, and its memory is back; of a lease: its GPUs are no longer its.
    Released,
    /// It was ended, and its memory is not.
    GoneNotReleased,
    /// KILL did not end it.
    Unkillable,
    /// It was ended; others changed meanwhile, so nobody can tell whose memory came back.
    Undetermined,
    /// Somebody else has its pid now, or it is not what was judged; nothing was done.
    IdentityChanged,
    /// The guard refused; nothing was done.
    Refused,
    /// It had ended already.
    Gone,
    /// A signal was sent, a server shut down, a program run.
    Done,
    /// It was tried and did not work.
    Failed,
    /// A reload, a pause or the enforcer's end stopped it half-way.
    Cancelled,
    /// All but the deed was done: the rule watches.
    Watched,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Released,
        Self::GoneNotReleased,
        Self::Unkillable,
        Self::Undetermined,
        Self::IdentityChanged,
        Self::Refused,
        Self::Gone,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
        Self::Watched,
    ];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::GoneNotReleased => "gone_not_released",
            Self::Unkillable => "unkillable",
            Self::Undetermined => "undetermined",
            Self::IdentityChanged => "identity_changed",
            Self::Refused => "refused",
            Self::Gone => "gone",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Watched => "watched",
        }
    }

    /// It counts towards the breaker of failures, and the target is not tried again.
    #[must_use]
    pub const fn failure(self) -> bool {
        matches!(self, Self::GoneNotReleased | Self::Unkillable | Self::Failed)
    }
}

/// What came of a deed.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The id of [`What::Act`].
    pub id: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// More, for people.
    pub detail: String,
    /// Bytes seen to come back.
    pub released: Option<u64>,
}
