//! The policy: parsed and validated rules.

//! The parser converts the tree of values directly to a [`Policy`]; the tree contains the place of every value.

mod channels;
pub mod check;
mod comparisons;
pub mod condition;
mod condition_parser;
mod context;
mod digest;
mod keys;
mod kubernetes;
mod leases;
mod lints;
mod load;
pub mod mail;
mod path;
mod pattern;
mod program;
mod rule;
mod schema;
mod selectors;
mod slurm;
mod span;
mod steps;
pub mod webhook;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::State;

use crate::Kind;
use crate::value::Test;
pub use crate::yaml::{Fault, FaultSeverity, FaultStyle, Faults};

pub use condition::{Condition, Field, Leaf, Pattern, Selector};
pub use context::LoadContext;
pub use kubernetes::{Keep, Kubernetes};
pub use leases::Leases;
pub use load::{Loaded, load};
use mail::Mail;
pub use schema::schema;
pub use slurm::{JobComment, Slurm};
pub use span::Span;
use webhook::Webhook;

/// A valid policy.
#[derive(Debug, Clone)]
pub struct Policy {
    /// SHA-256 of the file in hexadecimal, which identifies the policy.
    pub sha256: String,
    /// Sampling interval that the file was written for; at another interval, no destructive step is taken.
    pub interval: Option<Duration>,
    /// Budgets and breaker limits.
    pub limits: Limits,
    /// Targets that match one of these, or may match, are exempt from every rule.
    pub protect: Vec<Exception>,
    /// Whether root's processes outside containers may be acted upon.
    pub allow_root: bool,
    /// Channels of notifications, by name.
    pub channels: BTreeMap<String, Channel>,
    /// The lease pool.
    pub leases: Option<Arc<Leases>>,
    /// Where Slurm is, for `cancel_job`.
    pub slurm: Arc<Slurm>,
    /// How the API server of Kubernetes is asked; `None` if it never is.
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// Rules, in the order of the file.
    pub rules: Vec<Rule>,
}

/// Limits of destructive actions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Actions per hour that free one GPU.
    pub per_gpu_hour: u32,
    /// Actions per hour against one user.
    pub per_user_hour: u32,
    /// Actions per hour on this node.
    pub per_node_hour: u32,
    /// Actions per hour against pods of one namespace.
    pub per_namespace_hour: u32,
    /// Maximum number of processes of a workload that is ended.
    pub max_processes: usize,
    /// Share of the node's workloads, 0 to 1, at which the mass breaker opens.
    pub mass_share: f64,
    /// With fewer workloads on the node, the mass breaker does not open.
    pub mass_min: u32,
    /// A breaker closes once its cause has been absent for this time.
    pub breaker_reset: Duration,
}

bailiff_snapshot::label_values! {
/// Mode of a rule.
pub enum Mode {
    /// Flags and notifications only.
    DryRun = "dry-run",
    /// Also destructive steps.
    Enforce = "enforce",
}
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Unique name, used in metrics and the audit log.
    pub name: Arc<str>,
    /// Mode.
    pub mode: Mode,
    /// Kind of target.
    pub target: Kind,
    /// Only targets that match this.
    pub select: Option<Condition>,
    /// Targets that are exempt.
    pub except: Vec<Exception>,
    /// Condition of the rule.
    pub when: Condition,
    /// Identity of `target`, `when` (with all named conditions resolved) and `pick`; a reload keeps streaks by it.
    pub condition: String,
    /// How long the condition must be true.
    pub span: Span,
    /// Number of consecutive unknown samples that a streak survives.
    pub max_gap: u32,
    /// Minimum age of a target.
    pub startup_grace: Duration,
    /// Samples without a match after which a flag is cleared.
    pub clear_after: Span,
    /// Minimum time between destructive steps against the same target.
    pub cooldown: Duration,
    /// How long owners may hold a target; without it, they may not.
    pub hold: Option<OwnerLimits>,
    /// Which workload of a GPU the steps apply to; without it, a rule for GPUs can only flag and notify.
    pub pick: Option<Pick>,
    /// Steps, in order.
    pub then: Vec<Step>,
}

impl Exception {
    /// Returns whether the exception is in force at this time, since the Unix epoch.
    pub fn in_force(&self, now: Duration) -> bool {
        self.until.is_none_or(|until| now <= until)
    }
}

impl Rule {
    /// Returns whether a step waits until a notification of the match was delivered: a step with `requires_notice`, and a
    /// `signal` before it, which may end a process as well.
    pub fn requires_notice(&self, step: usize) -> bool {
        let ends = |step: &Step| step.action.ends_processes();
        let required = |step: &Step| step.action.requires_notice();
        let from = self.then.get(step..).unwrap_or_default();
        from.first().is_some_and(ends) && from.iter().any(required)
    }

    /// Returns whether targets that are stopped, traced or frozen are exempt: the rule is about idleness and
    /// does not name one of these states.
    pub fn exempts_on_hold(&self) -> bool {
        let pick = self.pick.iter().map(|pick| &pick.from);
        let leaves =
            || self.select.iter().chain([&self.when]).chain(pick.clone()).flat_map(Condition::leaves);
        let idle = |leaf: &Leaf| matches!(leaf.attribute.name, "gpu_util" | "cpu_util" | "io_rate");
        leaves().any(idle) && !leaves().any(names_on_hold)
    }
}

/// Limits of holds that owners request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerLimits {
    /// Maximum length.
    pub max: Duration,
    /// Maximum number for a target within 24 hours.
    pub per_day: u32,
}

/// Targets that a rule exempts, with reason and end.
#[derive(Debug, Clone)]
pub struct Exception {
    /// Condition of the exemption.
    pub condition: Condition,
    /// Reason, for the audit log and `explain`.
    pub reason: Option<String>,
    /// End, since the Unix epoch.
    pub until: Option<Duration>,
}

/// How one workload of a GPU is picked.
#[derive(Debug, Clone)]
pub struct Pick {
    /// Condition of the candidates.
    pub from: Condition,
    /// How long it must be true.
    pub idle_for: Span,
    /// Orders, by precedence: a later order applies only to candidates that are equal in all earlier orders.
    pub order: Vec<Order>,
}

bailiff_snapshot::label_values! {
/// An order of candidates.
pub enum Order {
    /// The lowest lease priority first; 0 without a lease.
    LowestPriority = "lowest_priority",
    /// Candidates that hold enough memory first, the smallest of them first; then the others, the largest first.
    SmallestSufficient = "smallest_sufficient",
    /// The longest idle first.
    LongestIdle = "longest_idle",
    /// The one with most memory first.
    Largest = "largest",
    /// The youngest first.
    Youngest = "youngest",
}
}

/// A step of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Number of true samples after the match.
    pub after: Span,
    /// The action.
    pub action: Action,
}

/// An action.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A metric and a line in the audit log, until the condition is no longer true.
    Flag(Severity),
    /// A notification on these channels.
    Notify(Vec<String>),
    /// Send a signal to every process of the target.
    Signal(Signal),
    /// SIGTERM, grace period, SIGKILL; then verification that processes and memory are gone.
    Terminate {
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
        /// Waits until a channel has delivered a notification of the match.
        requires_notice: bool,
    },
    /// Has Slurm cancel the job; no process is signalled.
    CancelJob {
        /// On how many nodes the job may run.
        nodes: JobNodes,
        /// Waits until a channel has delivered a notification of the match.
        requires_notice: bool,
    },
    /// Has Kubernetes evict the pod; no process is signalled.
    EvictPod {
        /// Whether a pod is evicted that will be created again.
        recreated: Recreated,
        /// Waits until a channel has delivered a notification of the match.
        requires_notice: bool,
    },
    /// Has Kubernetes stop the owner of the pod; no process is signalled.
    StopOwner {
        /// Waits until a channel has delivered a notification of the match.
        requires_notice: bool,
    },
    /// Releases a lease, if its fencing token is unchanged.
    ReleaseLease,
    /// Shuts down an MPS server through its control daemon, if it has no clients.
    ShutdownMps,
    /// Runs a program, without a shell.
    Exec(Vec<String>),
}

impl Action {
    /// Returns whether it can do harm, so that budgets, holds and breakers apply.
    pub const fn destructive(&self) -> bool {
        !matches!(self, Self::Flag(_) | Self::Notify(_))
    }

    /// Returns whether it may end the processes of its target.
    pub const fn ends_processes(&self) -> bool {
        matches!(self, Self::Signal(_)) || self.ends_target()
    }

    /// Returns whether it ends its target if it succeeds.
    pub(crate) const fn ends_target(&self) -> bool {
        matches!(self, Self::Terminate { .. }) || self.is_by_request()
    }

    /// Returns whether it waits until a notification of the match was delivered.
    const fn requires_notice(&self) -> bool {
        matches!(
            self,
            Self::Terminate { requires_notice: true, .. }
                | Self::CancelJob { requires_notice: true, .. }
                | Self::EvictPod { requires_notice: true, .. }
                | Self::StopOwner { requires_notice: true }
        )
    }

    /// Name in files, metrics and the audit log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Flag(_) => "flag",
            Self::Notify(_) => "notify",
            Self::Signal(_) => "signal",
            Self::Terminate { .. } => "terminate",
            Self::CancelJob { .. } => "cancel_job",
            Self::EvictPod { .. } => "evict_pod",
            Self::StopOwner { .. } => "stop_owner",
            Self::ReleaseLease => "release_lease",
            Self::ShutdownMps => "shutdown_mps",
            Self::Exec(_) => "exec",
        }
    }
}

bailiff_snapshot::label_values! {
/// On how many nodes a job may run that `cancel_job` cancels.
pub enum JobNodes {
    /// Only on this node.
    One = "one",
    /// Also on others; the whole job is cancelled.
    Any = "any",
}
}

bailiff_snapshot::label_values! {
/// Whether `evict_pod` evicts a pod that its owner will create again.
pub enum Recreated {
    /// It does not.
    Skip = "skip",
    /// It does.
    Allow = "allow",
}
}

impl Action {
    /// Returns whether another program ends the processes, so that no permission to signal them is needed.
    pub const fn is_by_request(&self) -> bool {
        matches!(self, Self::CancelJob { .. }) || self.asks_kubernetes()
    }

    /// Returns whether the API server of Kubernetes is asked.
    pub const fn asks_kubernetes(&self) -> bool {
        matches!(self, Self::EvictPod { .. } | Self::StopOwner { .. })
    }
}

/// A signal that a rule may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Signal number on this machine.
    pub number: i32,
    /// Name, such as `SIGUSR1`.
    pub name: &'static str,
}

bailiff_snapshot::label_values! {
/// Severity of a flag.
pub enum Severity {
    /// Informational.
    Info = "info",
    /// Should be checked.
    Warning = "warning",
    /// Needs immediate attention.
    Critical = "critical",
}
}

/// Where notices go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// The owner's terminals.
    Tty,
    /// An HTTP POST of JSON. The address is a secret, and can be kept in a separate file.
    Webhook(Webhook),
    /// Mail to the owner.
    Mail(Box<Mail>),
    /// A program, with the notice as JSON on its standard input.
    Exec(Vec<String>),
    /// An Event about the pod, written through this socket of `bailiff-kubernetes`.
    Event(PathBuf),
}

/// Address of a server: of a webhook or of Redis.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// In the rules file.
    Url(String),
    /// In the first line of another file, read again for each use.
    File(PathBuf),
}

/// Hides the address, which may contain a password.
impl fmt::Debug for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => out.write_str("Url(..)"),
            Self::File(path) => write!(out, "File({})", path.display()),
        }
    }
}

/// Whether a comparison names a state in which a process is on hold.
fn names_on_hold(leaf: &Leaf) -> bool {
    let named = |state: State| matches!(leaf.test, Test::AnyOf(bits) if bits & (1 << state as u32) != 0);
    leaf.attribute.name == "state" && State::ALL.into_iter().any(|state| state.on_hold() && named(state))
}
