//! Lost GPUs, and the processes that may still hold them, taken from the last sample that listed them. They
//! mark values as unknown, and are not exported as a metric.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{About, Fault, Gpu, ProcessId, Snapshot};

/// Milliseconds per clock tick of `start_ticks`: `USER_HZ` is 100.
const MILLIS_PER_TICK: u64 = 10;

/// A GPU or MIG instance that fell off the bus, or that the driver no longer lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostGpu {
    /// Index that the GPU had.
    pub index: String,
    /// UUID; `None` if it was never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// UUID of the GPU that contains the MIG instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_uuid: Option<String>,
    /// End of the first sample that found it lost, in milliseconds since boot. A process that started later
    /// does not hold it. `None` while it is uncertain whether it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Processes that held it in the sample before; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastListed>,
}

/// Last process list of a GPU before it was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastListed {
    /// Start of that sample, in milliseconds since boot. Processes that started later are not in the list.
    pub at_ms: u64,
    /// Pid and start tick of each process. There is no start tick if `/proc` did not confirm the process.
    pub holders: Vec<(u32, Option<u64>)>,
}

impl LostGpu {
    fn named(about: &About) -> Self {
        let parent = about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        Self {
            index: about.index.clone(),
            uuid: about.id.as_ref().map(|id| id.0.clone()),
            parent_uuid: parent.map(|id| id.0.clone()),
            ..Self::default()
        }
    }

    /// Returns whether this is the GPU with this UUID, or with this index if a UUID is unknown.
    #[must_use]
    pub fn is(&self, index: &str, uuid: Option<&str>) -> bool {
        match (self.uuid.as_deref(), uuid) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.index == index,
        }
    }

    fn is_about(&self, about: &About) -> bool {
        self.is(&about.index, about.id.as_ref().map(|id| id.0.as_str()))
    }

    /// Returns whether the process with this pid and start tick may hold the GPU.
    #[must_use]
    pub fn may_be_held_by(&self, pid: u32, start_ticks: Option<u64>) -> bool {
        let started = start_ticks.map(|ticks| ticks.saturating_mul(MILLIS_PER_TICK));
        if let (Some(started), Some(since)) = (started, self.since_ms)
            && started >= since
        {
            return false;
        }
        let Some(last) = &self.last else { return true };
        let listed = |(other, ticks): &(u32, Option<u64>)| {
            *other == pid && (ticks.is_none() || start_ticks.is_none() || *ticks == start_ticks)
        };
        started.is_none_or(|started| started.saturating_add(MILLIS_PER_TICK) > last.at_ms)
            || last.holders.iter().any(listed)
    }
}

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

    /// Returns a lost GPU with what the previous snapshot shows of its loss or its holders.
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
