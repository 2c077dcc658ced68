//! Result of an action, for the report and the audit log.

use crate::audit::After;
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

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
}

impl ActionResult {
    pub(crate) fn new(outcome: Outcome, detail: impl Into<String>) -> Self {
        Self { outcome, detail: detail.into(), released: None, after: After::default(), acted: false }
    }
}

impl From<Refusal> for ActionResult {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.outcome, refusal.why)
    }
}
