//! The engine's verdicts, as data. A verdict does nothing by itself: the enforcer's `actions` carry it out, and only they
//! distinguish dry run and enforce.

use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::pod_resources::ObjectName;
use bailiff_snapshot::slurm::JobRecord;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::policy::{Action, Mode, Severity};
use crate::view::TargetId;
use bailiff_snapshot::Truth;

/// Finding of one rule about one target.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Effective mode of the rule.
    pub mode: Mode,
    /// The target; for a rule with `pick`, the picked workload.
    pub subject: Arc<Subject>,
    /// What was found or is due.
    pub what: What,
    /// The observations behind it.
    pub evidence: Evidence,
}

/// What was found or is due.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A flag is raised.
    Flag(Severity),
    /// A flag is cleared.
    Clear(Severity),
    /// Notify channels.
    Notify(Vec<String>),
    /// A destructive step was decided: it is confirmed at the next snapshot, or dropped.
    Due(Action),
    /// A destructive step, confirmed. The id names it in the audit log and in its report.
    Act(u64, Action),
    /// A destructive step is due and withheld; recorded once until the reason changes.
    Withheld(Action, Hold),
    /// The target was notified or due for an action, and is skipped now: it no longer matches or no longer exists.
    Reprieved(&'static str),
}

bailiff_snapshot::label_values! {
/// Why destructive steps are withheld.
pub enum Hold {
    /// Paused by an administrator, or the saved state could not be read; `bailiff-enforcer resume` ends it.
    Paused = "paused",
    /// The enforcer has just started; ends after a few snapshots.
    Started = "started",
    /// The rules were just changed; ends after a few snapshots.
    Reloaded = "reloaded",
    /// The rules file is invalid, or its file system does not respond; the previous rules stay in force;
    /// `bailiff-enforcer status` shows the error.
    InvalidFile = "invalid_file",
    /// The `interval` in the rules file is not the exporter's `--interval`.
    OtherInterval = "other_interval",
    /// The audit log cannot be written; it is tried again every second.
    Audit = "audit",
    /// The state (`--state`) is not on disk, so budgets would not survive a restart.
    State = "state",
    /// `CAP_KILL` is missing, and the target belongs to another user than the enforcer.
    Rights = "rights",
    /// The exporter or the enforcer is not in the host's PID namespace, or there is no boot id.
    Untrusted = "untrusted",
    /// The last snapshot is older than two intervals.
    Stale = "stale",
    /// The GPU's hourly budget is used up (`limits`).
    GpuBudget = "gpu_budget",
    /// The user's hourly budget is used up (`limits`).
    UserBudget = "user_budget",
    /// The node's hourly budget is used up (`limits`).
    NodeBudget = "node_budget",
    /// The last action against this target was less than `cooldown` ago.
    Cooldown = "cooldown",
    /// Too large a share of the workloads matched at once (`limits.mass_share`) and no other was observed busy;
    /// ends with `bailiff-enforcer resume`.
    MassBreaker = "mass_breaker",
    /// Three consecutive actions failed for each of two users, or namespaces of pods; ends after `breaker_reset` without a failure.
    FailureBreaker = "failure_breaker",
    /// Three consecutive actions against the target's user, or the pods of its namespace, failed; ends after `breaker_reset` without a
    /// failure.
    UserFailureBreaker = "user_failure_breaker",
    /// Most outcomes were unknown in ten consecutive snapshots; ends after `breaker_reset` without that.
    UnknownBreaker = "unknown_breaker",
    /// The driver stopped responding within a minute after an action; ends with `bailiff-enforcer resume`.
    DriverHangBreaker = "driver_hang_breaker",
    /// No channel has delivered a notification of this match yet, and the step has `requires_notice`.
    Undelivered = "undelivered",
    /// The owner asked to keep the target (`bailiff hold`), and the rule permits it (`hold`).
    Owner = "owner",
    /// Slurm did not respond to a `cancel_job`; it is queried again after 10 s, and then after twice the previous time, up
    /// to 5 minutes.
    NoAnswer = "no_answer",
    /// The API server of Kubernetes did not respond to an `evict_pod` or `stop_owner`, refused it or failed; it is asked again
    /// after its `Retry-After`, or within 10 minutes. After a refusal, this applies to one pod.
    KubernetesApi = "kubernetes_api",
    /// A PodDisruptionBudget does not permit the eviction; it is tried again within 10 minutes, up to `pdb_max_wait`.
    DisruptionBudget = "disruption_budget",
    /// The pod's annotation asks to keep it (`kubernetes.keep_annotation`); it is read again within 10 minutes.
    Annotation = "annotation",
    /// The pod is being deleted, and its processes still run; it is looked at again within 10 minutes.
    Terminating = "terminating",
    /// The pod's owner has pods that do not match the rule, or that are not on this node, or was read for the first time; it is
    /// looked at again within 10 minutes.
    OtherPods = "other_pods",
    /// The hourly budget of the pod's namespace is used up (`limits`).
    NamespaceBudget = "namespace_budget",
    /// An earlier action against this target failed.
    Failed = "failed",
}
}

impl Hold {
    /// Returns whether it withholds all destructive steps while it lasts; the others apply to one action.
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
                | Self::Owner
                | Self::NoAnswer
                | Self::KubernetesApi
                | Self::DisruptionBudget
                | Self::Annotation
                | Self::Terminating
                | Self::OtherPods
                | Self::NamespaceBudget
                | Self::Failed
        )
    }

    /// Returns the explanation for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Paused => "paused by an administrator",
            Self::Started => "the enforcer has just started",
            Self::Reloaded => "the rules were just changed",
            Self::InvalidFile => {
                "the rules file is invalid or cannot be read; the previous rules stay in force"
            }
            Self::OtherInterval => "the rules file was written for another sampling interval",
            Self::Audit => "the audit log cannot be written",
            Self::State => "the state is not on disk, so budgets would not survive a restart",
            Self::Rights => "CAP_KILL is missing, so the enforcer can act only on processes of its own user",
            Self::Untrusted => {
                "the exporter or the enforcer is not in the host's PID namespace, or there is no boot id"
            }
            Self::Stale => "the last snapshot is too old to act on",
            Self::GpuBudget => "the hourly budget of actions for the GPU is used up",
            Self::UserBudget => "the hourly budget of actions for the user is used up",
            Self::NodeBudget => "the hourly budget of actions for the node is used up",
            Self::Cooldown => "the cooldown after the previous action against this target has not ended",
            Self::MassBreaker => "nearly all workloads matched at once",
            Self::FailureBreaker => {
                "three consecutive actions failed for each of two users, or namespaces of pods"
            }
            Self::UserFailureBreaker => {
                "three consecutive actions against the user, or the pods of the namespace, failed"
            }
            Self::UnknownBreaker => "most targets are unknown",
            Self::DriverHangBreaker => "the driver stopped responding after an action",
            Self::Undelivered => "no channel has delivered a notification yet",
            Self::Owner => "held by its owner (bailiff hold)",
            Self::NoAnswer => "Slurm did not respond; it is queried again within 5 minutes",
            Self::KubernetesApi => {
                "the API server of Kubernetes did not respond or refused; it is asked again within 10 minutes"
            }
            Self::DisruptionBudget => "a disruption budget does not permit the eviction; it is tried again",
            Self::Annotation => "the pod's annotation asks to keep it; it is read again within 10 minutes",
            Self::Terminating => "the pod is being deleted, and its processes still run",
            Self::OtherPods => {
                "the pod's owner has other pods, or was read for the first time; it is looked at again"
            }
            Self::NamespaceBudget => "the hourly budget of actions for the namespace is used up",
            Self::Failed => "an earlier action against this target failed",
        }
    }
}

/// Subject of a verdict, as seen in its snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Name of the target.
    pub id: TargetId,
    /// Kind of the target.
    pub kind: Kind,
    /// Owner, if all its processes have the same one.
    pub uid: Option<u32>,
    /// Name of the owner.
    pub user: Option<String>,
    /// UUIDs of the GPUs that it holds or is.
    pub gpus: Vec<String>,
    /// Record of the job, for a Slurm job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobRecord>,
    /// Name, for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ObjectName>,
    /// Its processes: those with memory first.
    pub members: Vec<Member>,
}

impl Subject {
    /// Returns whether it is a Slurm job or a pod, which may have no process.
    pub fn may_have_no_process(&self) -> bool {
        self.job.is_some() || self.kind == Kind::Pod
    }

    /// Returns the uid that budgets and failures are counted for: of the owner or, if there is more than one, of the first
    /// process with memory.
    pub fn charged(&self) -> Option<u32> {
        self.uid.or_else(|| self.members.first()?.uid)
    }

    /// Returns the memory of its processes; `None` if it is unknown.
    pub(crate) fn memory(&self) -> Option<u64> {
        let mut each = self.members.iter().filter(|member| member.holds).map(|member| member.vram).peekable();
        if each.peek().is_none() && !self.may_have_no_process() {
            return None;
        }
        each.try_fold(0_u64, |sum, memory| Some(sum.saturating_add(memory?)))
    }
}

/// One process of a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Identity; `None` for a pid that only the driver lists.
    pub key: Option<ProcessKey>,
    /// Pid.
    pub pid: u32,
    /// Effective owner.
    pub uid: Option<u32>,
    /// Process name.
    pub comm: String,
    /// Path of its program, if known.
    pub exe: Option<String>,
    /// Path of its cgroup.
    pub cgroup: String,
    /// The part of the cgroup path that the process cannot leave by itself; empty if unknown or without memory.
    #[serde(skip)]
    pub confinement: String,
    /// Notebook that its environment names, if the exporter publishes it. The user can choose any text.
    #[serde(skip)]
    pub notebook: Option<String>,
    /// GPU memory in bytes; `None` if the driver does not report it, 0 for a member without memory.
    pub vram: Option<u64>,
    /// Whether the driver lists it.
    pub holds: bool,
}

/// Observations behind a verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// Sequence number of the snapshot.
    pub seq: u64,
    /// True samples in the streak.
    pub streak: u32,
    /// True samples that a match needs.
    pub needed: u32,
    /// Each comparison of the condition.
    pub leaves: Vec<Asked>,
}

/// One comparison with its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Attribute or selector.
    pub name: String,
    /// Observed value, formatted.
    pub value: String,
    /// Required value, such as `max 5%`.
    pub comparison: String,
    /// Outcome of the comparison.
    pub outcome: Truth,
    /// Source of the value.
    pub source: String,
}

bailiff_snapshot::label_values! {
/// Result of an action.
pub enum Outcome {
    /// The process exited and its memory was released; for a lease: its GPUs were released.
    Released = "released",
    /// The process exited, but the driver still listed its memory at the end of `--verify`.
    GoneNotReleased = "gone_not_released",
    /// SIGKILL did not end it in time (`--verify`).
    Unkillable = "unkillable",
    /// The process exited. Other processes changed, or unaccounted memory rose, so it is unknown whether its memory was
    /// released.
    Undetermined = "undetermined",
    /// The pid belongs to another process now, or the process has changed since the evaluation; nothing was
    /// done.
    IdentityChanged = "identity_changed",
    /// Not permitted, for example because of a protection found in the last check; nothing was done, and the
    /// audit log has the reason.
    Refused = "refused",
    /// The process had already exited.
    Gone = "gone",
    /// A flag was raised, a notification queued, a signal sent, a server shut down, or a program run.
    Done = "done",
    /// The action failed; the audit log has the reason.
    Failed = "failed",
    /// Stopped halfway by a reload, a pause or the enforcer's exit, or it could not begin in time or be recorded.
    Cancelled = "cancelled",
    /// The newest snapshot before the first signal no longer agreed, or a hold became active; nothing was done.
    Reprieved = "reprieved",
    /// Everything but the action was done: the rule is in dry-run mode.
    DryRun = "dry_run",
    /// `cancel_job`: the job runs on several nodes, or is heterogeneous; nothing was done.
    SpansNodes = "spans_nodes",
    /// `cancel_job`: Slurm does not show the job, but its processes are running; nothing was done.
    NotVisible = "not_visible",
    /// `cancel_job`: slurmctld or munge did not answer; `evict_pod`, `stop_owner`: the API server did not; nothing was done, and
    /// it is tried again.
    NoAnswer = "no_answer",
    /// `cancel_job`: the enforcer's user may not cancel the job.
    NotPermitted = "not_permitted",
    /// `cancel_job`: Slurm cancelled the job, but processes still ran after Slurm's time limits.
    Completing = "completing",
    /// `cancel_job`: it is unknown whether Slurm has cancelled, or will cancel, the job; `evict_pod`, `stop_owner`: whether
    /// Kubernetes has evicted the pod or stopped its owner. Its state is queried before it is tried again.
    Unknown = "unknown",
    /// `evict_pod`: its owner would create the pod again; also `stop_owner`: it belongs to the system; nothing was done.
    NotEvictable = "not_evictable",
    /// `evict_pod`, `stop_owner`: the pod's annotation asks to keep it (`kubernetes.keep_annotation`); nothing was done, and it is read again
    /// within 10 minutes.
    Kept = "kept",
    /// `evict_pod`: a disruption budget does not permit the eviction; nothing was done, and it is tried again.
    BlockedByPdb = "blocked_by_pdb",
    /// `evict_pod`, `stop_owner`: the API server does not permit the request; nothing was done, and it is tried again after 10 minutes.
    Forbidden = "forbidden",
    /// `evict_pod`, `stop_owner`: the API server does not understand the request; nothing was done, and it is tried again after 10
    /// minutes.
    Invalid = "invalid",
    /// `evict_pod`, `stop_owner`: the API server failed, for example because two disruption budgets apply; it is tried again after
    /// 10 minutes.
    ApiError = "api_error",
    /// `evict_pod`, `stop_owner`: the pod is being deleted, or will be, and its processes still run within its own grace period. It
    /// is looked at again within 10 minutes.
    Terminating = "terminating",
    /// `evict_pod`, `stop_owner`: Kubernetes accepted the request, but processes still ran 30 s after the pod's own grace period,
    /// of which at most an hour counts.
    NotTerminated = "not_terminated",
    /// `stop_owner`: the pod has no owner that can be stopped; nothing was done.
    NotStoppable = "not_stoppable",
    /// `stop_owner`: the owner has pods that do not match the rule, or that are not on this node, or was read for the first time;
    /// nothing was done, and it is looked at again within 10 minutes.
    OtherPods = "other_pods",
    /// `stop_owner`: the owner was stopped before, and the pod was created within the rule's `cooldown` after that; nothing was done.
    Undone = "undone",
}
}

impl Outcome {
    /// Returns whether the step stays due while the match lasts.
    pub const fn may_be_tried_again(self) -> bool {
        matches!(
            self,
            Self::Cancelled
                | Self::Reprieved
                | Self::NoAnswer
                | Self::Unknown
                | Self::BlockedByPdb
                | Self::Kept
                | Self::Terminating
                | Self::Forbidden
                | Self::Invalid
                | Self::ApiError
                | Self::OtherPods
        )
    }

    /// Returns whether it counts for the failure breaker, so that the target is not tried again.
    pub const fn failure(self) -> bool {
        matches!(
            self,
            Self::GoneNotReleased
                | Self::Unkillable
                | Self::Failed
                | Self::NotPermitted
                | Self::Completing
                | Self::NotTerminated
        )
    }

    /// Returns whether a check did not permit the action because of something that can pass, and that users can cause.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::IdentityChanged | Self::Refused)
    }

    /// Returns whether a target that is not tried again because of it is flagged.
    pub const fn raises_flag(self) -> bool {
        matches!(self, Self::NotEvictable | Self::NotStoppable | Self::Undone | Self::BlockedByPdb)
    }

    /// Returns whether a check before the action did not permit it.
    pub const fn refusal(self) -> bool {
        matches!(
            self,
            Self::IdentityChanged
                | Self::Refused
                | Self::SpansNodes
                | Self::NotVisible
                | Self::NotEvictable
                | Self::NotStoppable
                | Self::Undone
        )
    }
}

/// Report of an action.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionReport {
    /// Id from [`What::Act`].
    pub id: u64,
    /// Result.
    pub outcome: Outcome,
    /// Details for people.
    pub detail: String,
    /// Bytes observed as released.
    pub released: Option<u64>,
    /// Whether something was done: a signal sent, a program started, a lease released, a server asked to exit.
    pub acted: bool,
    /// How long to wait before the action is tried again, if the API server of Kubernetes said so.
    pub retry_after: Option<Duration>,
    /// UID of the owner that `stop_owner` had stopped.
    pub stopped: Option<String>,
}

impl ActionReport {
    /// Returns the report of an action without an effect.
    pub fn new(id: u64, outcome: Outcome, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { id, outcome, detail, released: None, acted: false, retry_after: None, stopped: None }
    }
}
