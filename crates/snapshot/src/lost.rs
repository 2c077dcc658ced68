//! Lost GPUs, and the processes that may still hold them, taken from the last sample that listed them. The
//! values of these processes, and of workloads with such a process, are treated as unknown. This list is not
//! exported as a metric.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::About;
use crate::identity::MILLIS_PER_TICK;

/// A GPU or MIG instance that fell off the bus, or that the driver no longer lists.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostGpu {
    /// Index that the GPU had.
    pub index: String,
    /// UUID; `None` if it was never read.
    pub uuid: Option<String>,
    /// UUID of the GPU that contains the MIG instance.
    pub parent_uuid: Option<String>,
    /// End of the first sample that found it lost, in milliseconds since boot. A process that started later
    /// does not hold it. `None` while it is uncertain whether it is lost.
    pub since_ms: Option<u64>,
    /// Processes that held it in the sample before; `None` if unknown.
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
    pub(crate) fn named(about: &About) -> Self {
        let parent = about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        Self {
            index: about.index.clone(),
            uuid: about.id.as_ref().map(|id| id.0.clone()),
            parent_uuid: parent.map(|id| id.0.clone()),
            ..Self::default()
        }
    }

    /// Returns whether this is the GPU with this UUID, or with this index if a UUID is unknown.
    pub fn is(&self, index: &str, uuid: Option<&str>) -> bool {
        match (self.uuid.as_deref(), uuid) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.index == index,
        }
    }

    pub(crate) fn is_about(&self, about: &About) -> bool {
        self.is(&about.index, about.id.as_ref().map(|id| id.0.as_str()))
    }

    /// Returns whether the process with this pid and start tick may hold the GPU.
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
