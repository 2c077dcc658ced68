//! The validated policy: past this module nothing sees an invalid one.

//!
//! The reader goes from the tree of values straight to a [`Policy`], without a mirror of the file in between:
//! the tree has every place already, so such a mirror would be each type once more, with places.

mod channels;
pub mod check;
mod comparisons;
pub mod condition;
mod condition_parser;
mod digest;
mod fault;
mod fields;
mod keys;
mod leases;
mod lints;
mod load;
mod pattern;
pub mod quantity;
mod rule;
mod schema;
mod selectors;
mod steps;
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::State;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::attributes::process::{STATE, STATES};
use crate::value::Test;

pub use condition::{Condition, Field, Leaf, Pattern, Selector};
pub use fault::{Fault, FaultSeverity, FaultStyle, Faults};
pub use leases::{Leases, Server};
pub use load::{LoadContext, Loaded, load};
pub use schema::schema;

/// A policy that can run.
#[derive(Debug, Clone)]
pub struct Policy {
    /// SHA-256 of the file, hexadecimal: the name of this policy.
    pub sha256: String,
    /// The interval that the file was written for; with another one nothing destructive is done.
    pub interval: Option<Duration>,
    /// How much may be done in an hour.
    pub limits: Limits,
    /// Targets that one of these holds of, or is not known not to hold of, are protected from every rule.
    pub protect: Vec<Exception>,
    /// Root's processes outside containers are not protected.
    pub allow_root: bool,
    /// Channels of notices, by name.
    pub channels: BTreeMap<String, Channel>,
    /// The pool of leases.
    pub leases: Option<Arc<Leases>>,
    /// The rules, in the order of the file.
    pub rules: Vec<Rule>,
}

/// How many destructive actions within an hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// That free one GPU.
    pub per_gpu_hour: u32,
    /// Against one user.
    pub per_user_hour: u32,
    /// On this node.
    pub per_node_hour: u32,
    /// A workload of more processes is never ended as a group.
    pub max_processes: usize,
    /// The mass breaker opens where this share of the node's workloads match at once, 0 to 1.
    pub mass_share: f64,
    /// With fewer workloads than this on the node it does not open.
    pub mass_min: u32,
    /// A breaker that failures or unknown opened closes after so long without its cause.
    pub breaker_reset: Duration,
}

/// Mode of a rule; dry-run does everything but the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Evaluates and records.
    DryRun,
    /// And acts.
    Enforce,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::DryRun, Self::Enforce];

    /// Its name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DryRun => "dry-run",
            Self::Enforce => "enforce",
        }
    }
}

/// A number of samples, or a time that is a number of samples at the sampling interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Samples.
    Samples(u32),
    /// A time.
    Time(Duration),
}

impl Span {
    /// How many samples that is: a time is rounded up.
    #[must_use]
    pub fn samples(self, interval: Duration) -> u32 {
        match self {
            Self::Samples(samples) => samples,
            Self::Time(time) if interval.is_zero() => {
                if time.is_zero() {
                    0
                } else {
                    u32::MAX
                }
            }
            Self::Time(time) => {
                u32::try_from(time.as_nanos().div_ceil(interval.as_nanos())).unwrap_or(u32::MAX)
            }
        }
    }
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Unique in the file; it goes into metrics and the audit log.
    pub name: Arc<str>,
    /// Whether it acts.
    pub mode: Mode,
    /// What it is about.
    pub target: Kind,
    /// Only these targets.
    pub select: Option<Condition>,
    /// Not these.
    pub except: Vec<Exception>,
    /// What must be true of a target.
    pub when: Condition,
    /// Names `target` and `when` with all named conditions resolved, and `pick`: windows are kept by it.
    pub condition: String,
    /// For how long.
    pub span: Span,
    /// Unknown samples in a row that a streak outlives.
    pub max_gap: u32,
    /// Targets younger than this are left alone.
    pub startup_grace: Duration,
    /// False samples that clear a flag; unknown ones between them neither count nor interrupt.
    pub clear_after: Span,
    /// After a match with a destructive step, the same target's next match waits this long with its own.
    pub cooldown: Duration,
    /// Which of a GPU's holders the steps are about; without it a GPU's rule may only flag and notify.
    pub pick: Option<Pick>,
    /// What is done, in order.
    pub then: Vec<Step>,
}

impl Exception {
    /// Whether it still holds at this time, since the Unix epoch.
    #[must_use]
    pub fn in_force(&self, now: Duration) -> bool {
        self.until.is_none_or(|until| now <= until)
    }
}

impl Rule {
    /// Whether a step is held until a notice of the match was delivered: a `terminate` that asks for it, and a `signal` before it,
    /// which may end a process as well.
    #[must_use]
    pub fn requires_notice(&self, step: usize) -> bool {
        let ends = |step: &Step| matches!(step.action, Action::Signal(_) | Action::Terminate { .. });
        let required = |step: &Step| matches!(step.action, Action::Terminate { requires_notice: true, .. });
        let from = self.then.get(step..).unwrap_or_default();
        from.first().is_some_and(ends) && from.iter().any(required)
    }

    /// Whether what is stopped, traced or frozen is exempt from it: its condition rests on idleness and names none of
    /// these states, and a process was put on hold on purpose.
    #[must_use]
    pub fn exempts_on_hold(&self) -> bool {
        let pick = self.pick.iter().map(|pick| &pick.from);
        let leaves =
            || self.select.iter().chain([&self.when]).chain(pick.clone()).flat_map(Condition::leaves);
        let idle = |leaf: &Leaf| matches!(leaf.attribute.name, "gpu_util" | "cpu_util" | "io_rate");
        leaves().any(idle) && !leaves().any(names_on_hold)
    }
}

/// Which targets a rule exempts, why, and until when.
#[derive(Debug, Clone)]
pub struct Exception {
    /// Whom.
    pub condition: Condition,
    /// Why; for the audit log and `explain`. None in a `protect` without entries.
    pub reason: Option<String>,
    /// Until then, since the Unix epoch.
    pub until: Option<Duration>,
}

/// How one of a GPU's workloads is chosen.
#[derive(Debug, Clone)]
pub struct Pick {
    /// Only those of which this is true ...
    pub from: Condition,
    /// ... for so long.
    pub idle_for: Span,
    /// The first that differs decides.
    pub order: Vec<Order>,
}

/// An order of candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The lowest priority of a lease first; 0 without one.
    LowestPriority,
    /// Of those that hold enough, the one that holds least; if none does, the one that holds most.
    SmallestSufficient,
    /// The longest idle first.
    LongestIdle,
    /// The one that holds most first.
    Largest,
    /// The youngest first.
    Youngest,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::LowestPriority, Self::SmallestSufficient, Self::LongestIdle, Self::Largest, Self::Youngest];

    /// Its name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LowestPriority => "lowest_priority",
            Self::SmallestSufficient => "smallest_sufficient",
            Self::LongestIdle => "longest_idle",
            Self::Largest => "largest",
            Self::Youngest => "youngest",
        }
    }
}

/// One step of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Number of true samples after the match.
    pub after: Span,
    /// What is done.
    pub action: Action,
}

/// What can be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A metric and an entry in the audit log, until it is no longer true.
    Flag(Severity),
    /// A notice on these channels.
    Notify(Vec<String>),
    /// A signal (its number) to every process of the target.
    Signal(Signal),
    /// SIGTERM, grace, SIGKILL, then verification that process and memory are gone.
    Terminate {
        /// Between TERM and KILL.
        grace: Duration,
        /// Held until a channel has delivered a notice of the match.
        requires_notice: bool,
    },
    /// Compare-and-delete of a lease.
    ReleaseLease,
    /// Through the MPS control daemon, and only without clients.
    ShutdownMps,
    /// A program, without a shell.
    Exec(Vec<String>),
}

impl Action {
    /// It may do harm: budgets, holds and breakers are for these.
    #[must_use]
    pub const fn destructive(&self) -> bool {
        !matches!(self, Self::Flag(_) | Self::Notify(_))
    }

    /// Its name in files, metrics and the audit log.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Flag(_) => "flag",
            Self::Notify(_) => "notify",
            Self::Signal(_) => "signal",
            Self::Terminate { .. } => "terminate",
            Self::ReleaseLease => "release_lease",
            Self::ShutdownMps => "shutdown_mps",
            Self::Exec(_) => "exec",
        }
    }
}

/// A signal that a rule may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Its number on this machine.
    pub number: i32,
    /// `SIGUSR1`.
    pub name: &'static str,
}

/// How bad a flag is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Should be looked at.
    Warning,
    /// Now.
    Critical,
}

impl Severity {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Where notices go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// The owner's terminals.
    Tty,
    /// An HTTP POST of JSON; the address is a secret where it is in a file.
    Webhook(Address),
    /// A program, with the notice as JSON on its standard input.
    Exec(Vec<String>),
}

/// An address of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// As it stands.
    Url(String),
    /// In the first line of a file, read again for each notice.
    File(PathBuf),
}

/// Whether a comparison names a state in which a process is on hold.
fn names_on_hold(leaf: &Leaf) -> bool {
    let on_hold = |(bit, word): (usize, &&str)| {
        let held = State::of_name(word).is_some_and(State::on_hold);
        held && matches!(leaf.test, Test::AnyOf(bits) if bits & (1 << bit) != 0)
    };
    leaf.attribute.name == STATE.name && STATES.iter().enumerate().any(on_hold)
}
