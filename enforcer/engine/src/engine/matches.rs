//! What the evaluation of a rule yields: matches, the destructive steps that are due, and counts for the breakers.

use super::progress::Progress;

/// The owner of a match, its subject (places in the view), and the length of its streak.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Match {
    pub(crate) owner: usize,
    pub(crate) subject: usize,
    pub(crate) streak: u32,
}

/// What the breakers need of one rule.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) all: usize,
    pub(crate) unknown: usize,
    /// Places in the view.
    pub(crate) matching: Vec<usize>,
}

/// A destructive step that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// The rule's place.
    pub(crate) rule: usize,
    /// Whom it would be done to: a place in the view.
    pub(crate) subject: usize,
    /// The target that matched; with `pick` the GPU.
    pub(crate) owner: usize,
    pub(crate) progress: Progress,
}
