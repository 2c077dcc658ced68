//! What actions have left behind, as long as it is there.

use std::sync::Arc;

use super::ActionTracker;
use crate::verdict::Subject;
use crate::view::View;

/// What an action has left behind: a process that no signal ends, or memory that did not come back.
#[derive(Debug, Clone)]
pub(crate) struct Stuck {
    pub(crate) rule: Arc<str>,
    pub(crate) subject: Arc<Subject>,
    /// Bytes that did not come back; none if the process is still there.
    pub(in crate::engine) missing: Option<u64>,
}

impl ActionTracker {
    pub(crate) fn forget_stuck(&mut self) {
        self.stuck.clear();
        self.failed.clear();
    }

    /// What has ended or come back after all is stuck no longer.
    pub(in crate::engine) fn forget_returned(&mut self, view: &View) {
        self.stuck.retain(|stuck| match stuck.missing {
            Some(missing) => unaccounted(&stuck.subject, view).is_none_or(|bytes| bytes > missing / 2),
            None => view.snapshot.processes.iter().any(|process| {
                stuck.subject.members.iter().any(|member| member.key == crate::view::key(process))
            }),
        });
    }
}

/// Unaccounted memory on the GPUs of a subject.
fn unaccounted(subject: &Subject, view: &View) -> Option<u64> {
    let of_it = view.snapshot.gpus.iter().filter(|gpu| {
        let uuid = gpu.uuid.as_ref();
        uuid.is_some_and(|uuid| subject.gpus.contains(uuid))
    });
    let mut bytes = of_it.map(|gpu| gpu.memory.as_ref().and_then(|memory| memory.unaccounted));
    let sum = bytes.try_fold(0_i64, |sum, bytes| Some(sum.saturating_add(bytes?)));
    sum.map(|bytes| u64::try_from(bytes).unwrap_or_default())
}
