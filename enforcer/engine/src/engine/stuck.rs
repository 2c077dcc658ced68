//! What remained after an action: a process that no signal ends, or that the driver still lists.

use std::sync::Arc;

use crate::verdict::{ActionReport, Outcome, Subject};
use crate::view::View;

/// What remained after an action: a process that no signal ends, or that the driver still lists.
#[derive(Debug, Clone)]
pub(crate) struct Stuck {
    pub(crate) rule: Arc<str>,
    pub(crate) subject: Arc<Subject>,
}

impl Stuck {
    /// Returns what remained after an action, if anything did.
    pub(crate) fn after(report: &ActionReport, rule: &Arc<str>, subject: &Arc<Subject>) -> Option<Self> {
        let is_left = matches!(
            report.outcome,
            Outcome::GoneNotReleased | Outcome::Unkillable | Outcome::Completing | Outcome::NotTerminated
        );
        is_left.then(|| Self { rule: Arc::clone(rule), subject: Arc::clone(subject) })
    }

    /// Returns whether the process still exists, or the driver still lists its pid without one.
    pub(crate) fn remains(&self, view: &View) -> bool {
        view.snapshot.processes.iter().any(|process| {
            let mut members = self.subject.members.iter();
            members.any(|member| match process.key() {
                Some(key) => member.key == Some(key),
                None => member.pid == process.pid,
            })
        })
    }
}
