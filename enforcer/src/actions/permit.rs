//! Where dry run and enforcement part, and the only place that knows of it: an action with consequences needs a
//! [`Permit`], and nothing but [`carry_out`] makes one, once the audit log has the action on disk.

use super::request::ActionRequest;
use super::result::ActionResult;
use crate::audit::{Audit, BEGUN};
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Outcome;

/// The right to carry out the action in flight.
#[derive(Debug)]
pub(crate) struct Permit(());

impl Permit {
    /// To continue what an action has stopped and did not live to end: that harms nothing.
    pub(super) const fn to_continue() -> Self {
        Self(())
    }
}

/// What an action is about to do, and asks the engine's side for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its first signal, or whatever else it does.
    First,
    /// SIGKILL, after TERM and the grace.
    Kill,
}

/// Which action asks, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The id of the action.
    pub id: u64,
    /// What it is about to do.
    pub stage: Stage,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// Go on.
    Granted,
    /// Do not begin, for this reason.
    Denied(String),
    /// Not yet, for this reason: ask again.
    Later(String),
}

/// Carries the action out, or in dry run all but it.
pub(super) fn carry_out(
    audit: &Audit,
    request: &ActionRequest,
    act: impl FnOnce(&Permit) -> ActionResult,
) -> ActionResult {
    match request.mode {
        Mode::DryRun => ActionResult::new(Outcome::DryRun, "dry run: everything but the action was done"),
        Mode::Enforce => match audit.record(&request.record(BEGUN, "", None)) {
            Ok(()) => act(&Permit(())),
            // Nothing was done, and the step is due again as soon as the log can be written.
            Err(error) => ActionResult::new(Outcome::Cancelled, error.to_string()),
        },
    }
}

/// The actions of tests have no audit log.
#[cfg(test)]
pub(super) const fn for_a_test() -> Permit {
    Permit(())
}
