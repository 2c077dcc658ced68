//! GPU time of each user, over all snapshots of a boot.

use serde::{Deserialize, Serialize};

use crate::Facts;

/// GPU time of one user so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct UserTotals {
    /// GPU-seconds in which the user had at least one process on the GPU.
    pub held_seconds: f64,
    /// Part of `held_seconds` in which all of the user's processes on the GPU were observed idle.
    pub idle_seconds: f64,
}

/// Returns the label of a process's owner: the name if known, else the uid.
#[must_use]
pub fn user_label(facts: &Facts) -> Option<String> {
    facts.user.clone().or_else(|| facts.uid.map(|uid| uid.to_string()))
}
