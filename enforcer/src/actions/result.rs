//! How an action ended, on its way to the report and the audit log.

use crate::audit::After;
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

/// How an action ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ActionResult {
    pub(crate) outcome: Outcome,
    /// For people.
    pub(crate) detail: String,
    /// Bytes seen to come back.
    pub(crate) released: Option<u64>,
    /// For the audit log.
    pub(crate) after: After,
    /// Something was done.
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
