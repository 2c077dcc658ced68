//! The engine's verdicts, as data. A verdict does nothing by itself: the enforcer's `actions` carry it out, and only they
//! distinguish dry run and enforce.

use std::sync::Arc;

use bailiff_snapshot::ProcessKey;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::policy::{Action, Mode, Severity};
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
    /// Notify channels.
    Notify(Vec<String>),
    /// A destructive step was decided: it is confirmed at the next snapshot, or dropped.
    Due(Action),
    /// A destructive step, confirmed. The id names it in the audit log and in its report.
    Act(u64, Action),
    /// A destructive step is due and is withheld; recorded once until the reason changes.
    Withheld(Action, Hold),
    /// It was warned or due, and is skipped: it was seen not to match, or is gone.
    Reprieved(&'static str),
}

bailiff_snapshot::label_values! {
/// Why destructive steps wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// An admin paused it, or the state of an earlier run could not be taken up; `bailiff-enforcer resume` ends it.
    Paused = "paused",
    /// The enforcer has just begun; it ends by itself after a few snapshots.
    Started = "started",
    /// The rules were just changed; it ends by itself after a few snapshots.
    Reloaded = "reloaded",
    /// The file of rules is invalid, or its file system does not answer, and the last good rules go on; `bailiff-enforcer status`
    /// says what is wrong.
    InvalidFile = "invalid_file",
    /// The rules were written for another interval: their `interval` is not the exporter's `--interval`.
    OtherInterval = "other_interval",
    /// The audit log cannot be written, or its disk hangs; it is tried again every second.
    Audit = "audit",
    /// The state (`--state`) is not on the disk, so budgets would not outlive a restart.
    State = "state",
    /// `CAP_KILL` is missing, and the target is not of the enforcer's own user.
    Rights = "rights",
    /// The exporter or the enforcer is not in the host's PID namespace, or there is no boot id.
    Untrusted = "untrusted",
    /// The last snapshot is older than two intervals: the exporter is silent, or late.
    Stale = "stale",
    /// The GPU's actions of this hour are used up (`limits`).
    GpuBudget = "gpu_budget",
    /// The user's actions of this hour are used up (`limits`).
    UserBudget = "user_budget",
    /// The node's actions of this hour are used up (`limits`).
    NodeBudget = "node_budget",
    /// The same target had its turn less than `cooldown` ago.
    Cooldown = "cooldown",
    /// Nearly all workloads matched at once (`limits.mass_share`), and no other was observed busy; until `bailiff-enforcer resume`.
    MassBreaker = "mass_breaker",
    /// Three actions in a row against one user failed, for each of two users; until nothing failed for `breaker_reset`.
    FailureBreaker = "failure_breaker",
    /// Three actions in a row against the target's user failed; until none failed for `breaker_reset`.
    UserFailureBreaker = "user_failure_breaker",
    /// Most of what was asked was unknown at ten snapshots in a row; until that was not so for `breaker_reset`.
    UnknownBreaker = "unknown_breaker",
    /// No channel has delivered a notice of this match yet, and the step has `requires_notice`.
    Undelivered = "undelivered",
    /// An earlier action against this target failed and is not tried again.
    Failed = "failed",
}
}

impl Hold {
    /// It withholds everything destructive for as long as it is there; the others are met when an action is to be done.
    #[must_use]
    pub const fn node_wide(self) -> bool {
        !matches!(
            self,
            Self::Rights
                | Self::GpuBudget
                | Self::UserBudget
                | Self::NodeBudget
                | Self::Cooldown
                | Self::UserFailureBreaker
                | Self::Undelivered
                | Self::Failed
        )
    }

    /// What it means, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Paused => "an admin paused it",
            Self::Started => "it has just started",
            Self::Reloaded => "the policy was just changed",
            Self::InvalidFile => {
                "the file on disk is invalid or does not answer; the last good policy goes on"
            }
            Self::OtherInterval => "the file was written for another interval",
            Self::Audit => "the audit log cannot be written, or its disk hangs",
            Self::State => "the state is not on the disk, and budgets would not outlive a restart",
            Self::Rights => {
                "CAP_KILL is missing, so only the enforcer's own user's processes can be acted upon"
            }
            Self::Untrusted => "this is not the host's PID namespace, or there is no boot id",
            Self::Stale => "the last snapshot is too old to act on",
            Self::GpuBudget => "the GPU's actions of this hour are used up",
            Self::UserBudget => "the user's actions of this hour are used up",
            Self::NodeBudget => "the node's actions of this hour are used up",
            Self::Cooldown => "the same target had its turn a short while ago",
            Self::MassBreaker => "nearly all workloads matched at once",
            Self::FailureBreaker => "three actions in a row failed against each of two users",
            Self::UserFailureBreaker => "three actions in a row against the user failed",
            Self::UnknownBreaker => "too much is unknown",
            Self::Undelivered => "no channel has delivered a notice yet",
            Self::Failed => "an earlier action against this target failed",
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
    /// Its identity; none for a pid that only the driver lists.
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
    /// The part of that which it cannot leave by itself; empty if that is not known, and of those that hold nothing.
    #[serde(skip)]
    pub confinement: String,
    /// GPU memory in bytes; none if the driver does not say. A member that holds none has 0.
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
    pub comparison: String,
    /// Whether it is.
    pub outcome: Truth,
    /// Where the value comes from.
    pub source: String,
}

bailiff_snapshot::label_values! {
/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was ended, and its memory is back; of a lease: its GPUs are no longer its.
    Released = "released",
    /// It was ended, and its memory was not back in time (`--verify`).
    GoneNotReleased = "gone_not_released",
    /// SIGKILL did not end it in time (`--verify`).
    Unkillable = "unkillable",
    /// It was ended; others changed meanwhile, so it cannot be determined whose memory was released.
    Undetermined = "undetermined",
    /// Its pid belongs to another process now, or it is not what was evaluated; nothing was done.
    IdentityChanged = "identity_changed",
    /// It was not permitted, for example because of a protection seen at the last check; nothing was done, and the audit log has the reason.
    Refused = "refused",
    /// It had ended already.
    Gone = "gone",
    /// A flag went up, a notice was queued, a signal sent, a server shut down, a program run.
    Done = "done",
    /// It was tried and did not work; the audit log has why.
    Failed = "failed",
    /// A reload, a pause or the enforcer's end stopped it half-way, or it could not begin in time or be recorded.
    Cancelled = "cancelled",
    /// The newest snapshot before the first signal no longer agreed, or a hold had come up; nothing was done.
    Reprieved = "reprieved",
    /// Everything but the action was done: the rule is in dry-run mode.
    DryRun = "dry_run",
}
}

impl Outcome {
    /// The step stays due while the match lasts.
    #[must_use]
    pub const fn may_be_tried_again(self) -> bool {
        matches!(self, Self::Cancelled | Self::Reprieved)
    }

    /// It counts towards the breaker of failures, and the target is not tried again.
    #[must_use]
    pub const fn failure(self) -> bool {
        matches!(self, Self::GoneNotReleased | Self::Unkillable | Self::Failed)
    }
}

/// What came of an action.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionReport {
    /// The id of [`What::Act`].
    pub id: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// More, for people.
    pub detail: String,
    /// Bytes seen to come back.
    pub released: Option<u64>,
    /// Something was done: a signal was sent, a program started, a lease or a server asked to end.
    pub acted: bool,
}
