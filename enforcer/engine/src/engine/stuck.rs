//! What remained after an action: a process that no signal ends, or memory that was not released.

use std::sync::Arc;

use crate::verdict::{ActionReport, Outcome, Subject};
use crate::view::View;

/// What remained after an action: a process that no signal ends, or memory that was not released.
#[derive(Debug, Clone)]
pub(crate) struct Stuck {
    pub(crate) rule: Arc<str>,
    pub(crate) subject: Arc<Subject>,
    /// Bytes that were not released; `None` if the process still exists.
    missing: Option<u64>,
}

impl Stuck {
    /// Returns what remained after an action, if anything did.
    pub(crate) fn after(report: &ActionReport, rule: &Arc<str>, subject: &Arc<Subject>) -> Option<Self> {
        let is_left = matches!(
            report.outcome,
            Outcome::GoneNotReleased | Outcome::Unkillable | Outcome::Completing | Outcome::NotTerminated
        );
        let each = subject.members.iter().filter_map(|member| member.vram);
        let held = each.fold(0, u64::saturating_add);
        let missing = held.saturating_sub(report.released.unwrap_or_default());
        is_left.then(|| Self {
            rule: Arc::clone(rule),
            subject: Arc::clone(subject),
            missing: (report.outcome == Outcome::GoneNotReleased).then_some(missing),
        })
    }

    /// Returns whether the process still exists, or the memory is still held.
    pub(crate) fn remains(&self, view: &View) -> bool {
        match self.missing {
            Some(missing) => unaccounted(&self.subject, view).is_none_or(|bytes| bytes > missing / 2),
            None => view
                .snapshot
                .processes
                .iter()
                .any(|process| self.subject.members.iter().any(|member| member.key == process.key())),
        }
    }
}

/// Returns the unaccounted memory on the GPUs of a subject.
fn unaccounted(subject: &Subject, view: &View) -> Option<u64> {
    let of_it = view.snapshot.gpus.iter().filter(|gpu| {
        let uuid = gpu.uuid.as_ref();
        uuid.is_some_and(|uuid| subject.gpus.contains(uuid))
    });
    let mut bytes = of_it.map(|gpu| gpu.memory.as_ref().and_then(|memory| memory.unaccounted));
    let sum = bytes.try_fold(0_i64, |sum, bytes| Some(sum.saturating_add(bytes?)));
    sum.map(|bytes| u64::try_from(bytes).unwrap_or_default())
}
