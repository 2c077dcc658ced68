//! A snapshot as rules see it: targets, each with its processes and GPUs, and what two snapshots tell of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::wire;
use serde::{Deserialize, Serialize};

use crate::policy::Kind;
use crate::value::Value;

/// The name of a target, stable as long as it is the same one: `process:4100@98765` (pid and start tick),
/// `process:4100#12` (listed by the driver alone, first in snapshot 12), `workload:slurm:77`, `gpu:GPU-…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub Arc<str>);

impl fmt::Display for TargetId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Something that a rule can be about.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name.
    pub id: TargetId,
    /// What it is.
    pub kind: Kind,
    /// Those of the snapshot's `processes` that belong to it.
    pub processes: Vec<usize>,
    /// Those of the snapshot's `relatives` that belong to it; none where nobody looked.
    pub relatives: Option<Vec<usize>>,
    /// Those of the snapshot's `gpus` that it holds or is.
    pub gpus: Vec<usize>,
    /// CPU time a second, of all its processes; whole cores.
    pub cpu: Value,
    /// Bytes a second to and from storage, of those of its processes that hold memory.
    pub io: Value,
}

/// A snapshot and its targets.
#[derive(Debug, Clone)]
pub struct View {
    /// What was seen.
    pub snapshot: wire::Snapshot,
    /// All targets.
    pub targets: Vec<Target>,
    /// By process of the snapshot: GPU and place among its holders.
    pub(crate) holds: Vec<Vec<(usize, usize)>>,
}

impl View {
    /// When it was seen, since boot.
    #[must_use]
    pub const fn boot(&self) -> Duration {
        Duration::from_millis(self.snapshot.boot_ms)
    }

    /// The beat's period.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_millis(self.snapshot.interval_ms)
    }

    /// The GPU that a target is.
    #[must_use]
    pub fn gpu_of(&self, target: &Target) -> Option<&wire::Gpu> {
        self.snapshot.gpus.get(*target.gpus.first()?)
    }

    /// All that a target's processes hold.
    pub fn holdings<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = (&'a wire::Gpu, &'a wire::Holder)> {
        let holds = target.processes.iter().filter_map(|process| self.holds.get(*process)).flatten();
        holds.filter_map(|(gpu, holder)| {
            let gpu = self.snapshot.gpus.get(*gpu)?;
            Some((gpu, gpu.holders.get(*holder)?))
        })
    }

    /// The largest figure of a target's holdings.
    pub fn most(&self, target: &Target, figure: impl Fn(&wire::Holder) -> Option<f64>) -> Value {
        let mut most = None;
        let mut complete = true;
        for (_, holder) in self.holdings(target) {
            match figure(holder) {
                Some(figure) => most = Some(f64::max(most.unwrap_or(figure), figure)),
                None => complete = false,
            }
        }
        match (most, complete) {
            (Some(most), true) => Value::Number(most),
            (Some(most), false) => Value::AtLeast(most),
            (None, _) => Value::Unknown("not observed"),
        }
    }
}
