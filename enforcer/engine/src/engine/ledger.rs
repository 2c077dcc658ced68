//! Actions of the last hour, and the remaining budgets.

use std::cmp::Reverse;
use std::collections::HashMap;
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
    /// Namespace of the pod, for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Bytes that the action freed or will free; `None` if unknown.
    #[serde(default)]
    memory: Option<u64>,
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

    /// Returns the time, since the Unix epoch.
    pub(crate) const fn wall(&self) -> Duration {
        Duration::from_millis(self.wall_ms)
    }

    /// Returns the time since then; 0 if a clock says that it is in the future.
    pub(crate) fn ago(&self, now: Now, boot_id: Option<&str>) -> Duration {
        let same = self.boot_id.is_some() && self.boot_id.as_deref() == boot_id;
        let (now, then) = if same { (now.boot, self.boot_ms) } else { (now.wall, self.wall_ms) };
        now.saturating_sub(Duration::from_millis(then))
    }
}

impl Ledger {
    /// Returns the budget that is used up for an action that frees this memory of this owner on these GPUs, in this namespace if
    /// the target is a pod.
    pub(crate) fn full<'a>(
        &self,
        (uid, namespace, memory): (Option<u32>, Option<&str>, Option<u64>),
        mut gpus: impl Iterator<Item = &'a str>,
        limits: &Limits,
    ) -> Option<Hold> {
        let used_up = |limit: u32, counted: &[&Entry]| {
            counted.len() >= limit as usize && !(limit > 0 && outweighs(memory, counted))
        };
        if used_up(limits.per_node_hour, &self.counted(limits)) {
            return Some(Hold::NodeBudget);
        }
        let all = |of: &dyn Fn(&Entry) -> bool| self.0.iter().filter(|entry| of(entry)).collect::<Vec<_>>();
        // Users in pods choose their uids, so the namespace counts.
        if namespace.is_none() && used_up(limits.per_user_hour, &all(&|entry| entry.uid == uid)) {
            return Some(Hold::UserBudget);
        }
        let in_namespace = |entry: &Entry| entry.namespace.as_deref() == namespace;
        if namespace.is_some() && used_up(limits.per_namespace_hour, &all(&in_namespace)) {
            return Some(Hold::NamespaceBudget);
        }
        let on = |uuid: &str| {
            used_up(limits.per_gpu_hour, &all(&|entry| entry.gpus.iter().any(|gpu| gpu == uuid)))
        };
        gpus.any(on).then_some(Hold::GpuBudget)
    }

    /// Returns the actions that count for the node: of each user, or of each namespace of pods, as many as its own budget permits,
    /// the largest or those of unknown size.
    fn counted(&self, limits: &Limits) -> Vec<&Entry> {
        let mut users: HashMap<(Option<u32>, Option<&str>), Vec<&Entry>> = HashMap::new();
        for entry in &self.0 {
            let namespace = entry.namespace.as_deref();
            users.entry((entry.uid.filter(|_| namespace.is_none()), namespace)).or_default().push(entry);
        }
        let counted = users.into_iter().flat_map(|((_, namespace), mut of_user)| {
            of_user.sort_by_key(|entry| Reverse(entry.memory.unwrap_or(u64::MAX)));
            let most = if namespace.is_some() { limits.per_namespace_hour } else { limits.per_user_hour };
            of_user.truncate(most as usize);
            of_user
        });
        counted.collect()
    }

    /// Adds an action against a user.
    pub(crate) fn count(&mut self, (id, uid): (u64, Option<u32>), at: Stamp, subject: &Subject) {
        let namespace = subject.pod.as_ref().map(|pod| pod.namespace().to_owned());
        let (gpus, memory) = (subject.gpus.clone(), subject.memory());
        self.0.push(Entry { id, at, uid, gpus, namespace, memory });
    }

    /// Records how much memory an action freed.
    pub(crate) fn freed(&mut self, id: u64, bytes: u64) {
        for entry in self.0.iter_mut().filter(|entry| entry.id == id) {
            entry.memory = Some(bytes);
        }
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

/// Returns whether an action frees more memory than all of these together. Otherwise, a user could use up a
/// budget with small targets, so that no rule acts on a large one.
fn outweighs(memory: Option<u64>, counted: &[&Entry]) -> bool {
    let freed = counted.iter().try_fold(0_u64, |sum, entry| Some(sum.saturating_add(entry.memory?)));
    memory.zip(freed).is_some_and(|(memory, freed)| memory > freed)
}
