//! The only place that distinguishes dry run from enforcement. An action with consequences needs a
//! [`Permit`], which [`carry_out`] creates once the action is in the audit log on disk.

use bailiff_proc::Pidfd;
use rustix::process::Signal;

use super::ActionResult;
use super::request::ActionRequest;
use crate::audit::{Audit, BEGUN};
use crate::privileged::{self, SignalError};
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Outcome;

/// Right to carry out the action in flight.
#[derive(Debug)]
pub(crate) struct Permit(());

impl Permit {
    /// Creates a permit to continue processes that an interrupted action had stopped, which is harmless.
    pub(super) const fn to_continue() -> Self {
        Self(())
    }
}

/// Sends a signal; returns false if the process had exited.
pub(super) fn send(process: &Pidfd, signal: Signal, _: &Permit) -> Result<bool, SignalError> {
    privileged::send(process, signal)
}

/// Stage of an action that needs permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// First signal or other effect.
    First,
    /// SIGKILL, after SIGTERM and the grace period.
    Kill,
}

/// A question from the executor: whether an action may enter a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Id of the action.
    pub id: u64,
    /// Stage that the action is about to enter.
    pub stage: Stage,
}

/// Answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// The action may continue.
    Granted,
    /// The action must not start, for this reason.
    Denied(String),
    /// The action must ask again later, for this reason.
    Later(String),
}

/// Records the start of an action and carries it out; in dry run, does neither.
pub(super) fn carry_out(
    audit: &Audit,
    request: &ActionRequest,
    act: impl FnOnce(&Permit) -> ActionResult,
) -> ActionResult {
    match request.mode {
        Mode::DryRun => ActionResult::new(Outcome::DryRun, "dry run: everything except the action was done"),
        Mode::Enforce => match audit.record(&request.record(BEGUN, "", None)) {
            Ok(()) => act(&Permit(())),
            // Nothing was done; the step is due again once the log can be written.
            Err(error) => ActionResult::new(Outcome::Cancelled, error.to_string()),
        },
    }
}

/// Returns a permit for tests, which have no audit log.
#[cfg(test)]
pub(super) const fn for_a_test() -> Permit {
    Permit(())
}
