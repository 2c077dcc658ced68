//! Actions of the last hour, and the remaining budgets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Now;
use crate::policy::Limits;
use crate::verdict::{Hold, Subject};

const HOUR: Duration = Duration::from_hours(1);

/// Destructive actions of the last hour.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ledger(Vec<Entry>);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    id: u64,
    at: Stamp,
    uid: Option<u32>,
    gpus: Vec<String>,
}

/// A time that is comparable across boots: by the boot clock on the same boot, by the wall clock otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    boot_id: Option<String>,
    boot_ms: u64,
    wall_ms: u64,
}

impl Stamp {
    pub(crate) fn new(now: Now, boot_id: Option<&str>) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { boot_id: boot_id.map(str::to_owned), boot_ms: millis(now.boot), wall_ms: millis(now.wall) }
    }

    /// Returns the time since then; 0 if a clock says that it is in the future.
    pub(crate) fn ago(&self, now: Now, boot_id: Option<&str>) -> Duration {
        let same = self.boot_id.is_some() && self.boot_id.as_deref() == boot_id;
        let (now, then) = if same { (now.boot, self.boot_ms) } else { (now.wall, self.wall_ms) };
        now.saturating_sub(Duration::from_millis(then))
    }
}

impl Ledger {
    /// Returns the budget that is used up for an action against this owner on these GPUs.
    pub(crate) fn full<'a>(
        &self,
        uid: Option<u32>,
        mut gpus: impl Iterator<Item = &'a str>,
        limits: &Limits,
    ) -> Option<Hold> {
        let count = |of: &dyn Fn(&Entry) -> bool| {
            u32::try_from(self.0.iter().filter(|entry| of(entry)).count()).unwrap_or(u32::MAX)
        };
        if count(&|_| true) >= limits.per_node_hour {
            return Some(Hold::NodeBudget);
        }
        if count(&|entry| entry.uid == uid) >= limits.per_user_hour {
            return Some(Hold::UserBudget);
        }
        let on = |uuid: &str| count(&|entry| entry.gpus.iter().any(|gpu| gpu == uuid));
        gpus.any(|uuid| on(uuid) >= limits.per_gpu_hour).then_some(Hold::GpuBudget)
    }

    pub(crate) fn count(&mut self, id: u64, at: Stamp, subject: &Subject) {
        self.0.push(Entry { id, at, uid: subject.uid, gpus: subject.gpus.clone() });
    }

    /// Removes an action that was not carried out.
    pub(crate) fn give_back(&mut self, id: u64) {
        self.0.retain(|entry| entry.id != id);
    }

    /// Removes actions older than an hour.
    pub(crate) fn forget(&mut self, now: Now, boot_id: Option<&str>) {
        self.0.retain(|entry| entry.at.ago(now, boot_id) < HOUR);
    }

    /// Number of actions in the last hour.
    pub(crate) fn used(&self) -> usize {
        self.0.len()
    }
}
