//! Execution of verdicts. One thread runs destructive actions one at a time; each notification channel has
//! its own thread. Callers do not wait: results are returned as reports.

mod activity;
mod cancel_job;
mod cgroup;
mod cgroup_kill;
mod client;
mod context;
mod evict_pod;
mod exec;
mod executor;
mod formats;
mod freezer;
mod group;
mod inbox;
mod job_record;
mod mail;
mod memory;
mod message;
mod mps;
pub mod notices;
mod owner_looks;
mod permit;
mod pods;
mod release;
mod request;
mod signal;
mod slurm;
mod smtp;
mod stop_owner;
mod stopped;
mod terminate;
#[cfg(test)]
mod tests;
mod tty;
mod webhook;
pub(crate) mod wording;

use std::time::Duration;

use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

use crate::audit::After;

pub use context::ExecutorSettings;
pub use executor::{Channels, Executor};
pub(crate) use formats::check as check_body;
pub use inbox::Inbox;
pub(crate) use mail::is_address as is_mail_address;
pub(crate) use message::check as check_template;
pub use permit::{Permission, Question, Stage};
pub(crate) use pods::requests as pod_requests;
pub use request::{ActionRequest, PeerPod};
pub use stopped::continue_stopped;

/// Result of an action.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ActionResult {
    pub(crate) outcome: Outcome,
    /// Details for people.
    pub(crate) detail: String,
    /// Bytes of GPU memory that were observed to be released.
    pub(crate) released: Option<u64>,
    /// Effects for the audit log.
    pub(crate) after: After,
    /// Whether the action had an effect.
    pub(crate) acted: bool,
    /// How long to wait before the action is tried again, if the API server of Kubernetes said so.
    pub(crate) retry_after: Option<Duration>,
    /// UID of the owner that `stop_owner` had stopped.
    pub(crate) stopped: Option<String>,
}

impl ActionResult {
    pub(crate) fn new(outcome: Outcome, detail: impl Into<String>) -> Self {
        let (detail, after) = (detail.into(), After::default());
        Self { outcome, detail, released: None, after, acted: false, retry_after: None, stopped: None }
    }
}

impl From<Refusal> for ActionResult {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.outcome, refusal.why)
    }
}

impl From<Refusal> for Box<ActionResult> {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.into())
    }
}
