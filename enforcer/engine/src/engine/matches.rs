//! What the evaluation of a rule yields: matches, the destructive steps that are due, and counts for the breakers.

use super::progress::Progress;

/// A match: places of its owner and its subject in the view, and the length of its streak. Owner and subject
/// differ for a rule with `pick`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Match {
    pub(crate) owner: usize,
    pub(crate) subject: usize,
    pub(crate) streak: u32,
}

/// Counts of one rule for the breakers.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) all: usize,
    pub(crate) unknown: usize,
    /// Places of the matching targets in the view.
    pub(crate) matching: Vec<usize>,
}

/// A destructive step that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Index of the rule in the policy.
    pub(crate) rule: usize,
    /// Place in the view of the target to act on.
    pub(crate) subject: usize,
    /// Place of the target that matched; with `pick`, the GPU.
    pub(crate) owner: usize,
    pub(crate) progress: Progress,
}
