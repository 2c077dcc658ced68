//! Which GPUs are lost in a sample, and which processes held them before.

use std::time::Duration;

use crate::identity::millis;
use crate::{Fault, Gpu, LastListed, LostGpu, ProcessId, Snapshot};

/// Data of one sample, and the snapshot before it.
pub(crate) struct LostInput<'a> {
    pub(crate) previous: Option<&'a Snapshot>,
    /// Time since boot when the sample was complete.
    pub(crate) end: Duration,
    /// Whether the driver as a whole answered.
    pub(crate) answered: bool,
    pub(crate) gpus: &'a [Gpu],
}

impl LostInput<'_> {
    /// Returns the lost GPUs: those that the driver reports as lost, and those that it no longer lists.
    pub(crate) fn lost(&self) -> Vec<LostGpu> {
        let named = self.gpus.iter().filter(|gpu| gpu.fault == Some(Fault::Lost));
        let mut lost: Vec<LostGpu> = named.map(|gpu| self.remembered(LostGpu::named(&gpu.about))).collect();
        let Some(previous) = self.previous else { return lost };
        let known: Vec<LostGpu> = previous.gpus.iter().map(|gpu| LostGpu::named(&gpu.about)).collect();
        let unlisted =
            previous.lost.iter().filter(|gpu| !previous.gpus.iter().any(|of| gpu.is_about(&of.about)));
        for gpu in known.into_iter().chain(unlisted.cloned()) {
            if !self.gpus.iter().any(|now| gpu.is_about(&now.about)) {
                lost.extend(self.missing(gpu));
            }
        }
        lost
    }

    /// Returns the state of a GPU that this sample does not list; `None` for a MIG instance that was removed.
    fn missing(&self, gpu: LostGpu) -> Option<LostGpu> {
        let parent = gpu.parent_uuid.as_ref().and_then(|uuid| {
            self.gpus.iter().find(|now| now.about.id.as_ref().is_some_and(|id| id.0 == *uuid))
        });
        let certain = match parent {
            Some(parent) if parent.fault.is_none() && parent.lists_processes() => return None,
            Some(parent) => parent.fault == Some(Fault::Lost),
            None => self.answered,
        };
        Some(if certain { self.remembered(gpu) } else { LostGpu { since_ms: None, last: None, ..gpu } })
    }

    /// Returns a lost GPU with what the previous snapshot shows about its loss or its holders.
    fn remembered(&self, gpu: LostGpu) -> LostGpu {
        let earlier = self.previous.and_then(|previous| {
            let same = |other: &&LostGpu| other.is(&gpu.index, gpu.uuid.as_deref());
            previous.lost.iter().find(same).filter(|earlier| earlier.since_ms.is_some())
        });
        earlier.cloned().unwrap_or_else(|| LostGpu {
            since_ms: Some(millis(self.end)),
            last: self.last_listed(&gpu),
            ..gpu
        })
    }

    fn last_listed(&self, gpu: &LostGpu) -> Option<LastListed> {
        let previous = self.previous.filter(|previous| previous.namespace.attributes())?;
        let before = previous.gpus.iter().find(|before| gpu.is_about(&before.about))?;
        let listed = before.fault.is_none() && before.lists_processes();
        let holder = |id: ProcessId| match id {
            ProcessId::Live(key) => (key.pid, Some(key.start_ticks)),
            ProcessId::Unconfirmed { pid, .. } => (pid, None),
        };
        listed.then(|| LastListed {
            at_ms: millis(previous.at.boot),
            holders: before.holders.iter().map(|of| holder(of.process)).collect(),
        })
    }
}
