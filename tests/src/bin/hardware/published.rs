//! What the exporter published about a process in several snapshots.

use std::collections::BTreeMap;

use bailiff_snapshot::wire::Snapshot;

use crate::driver::mebibytes;

/// The values of a process on its GPUs.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Observed utilization in percent.
    percent: Vec<u32>,
    /// How often utilization was unknown, by reason.
    pub(crate) unknown: BTreeMap<String, usize>,
    pub(crate) memory: Option<u64>,
    pub(crate) state: String,
    snapshots: usize,
}

impl Published {
    pub(crate) fn of(pid: u32, snapshots: &[Snapshot]) -> Self {
        let mut published = Self { snapshots: snapshots.len(), ..Self::default() };
        for snapshot in snapshots {
            let mut holders = snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
            let Some(holder) = holders.find(|holder| holder.pid == pid) else { continue };
            published.memory = holder.memory;
            let process = snapshot.processes.iter().find(|process| process.pid == pid);
            published.state = process.map(|process| process.state.to_string()).unwrap_or_default();
            match (holder.utilization, &holder.unknown) {
                (Some(percent), _) => published.percent.push(percent),
                (None, why) => {
                    let why = serde_json::to_value(why).unwrap_or_default();
                    *published.unknown.entry(why.as_str().unwrap_or_default().to_owned()).or_default() += 1;
                }
            }
        }
        published
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.percent.is_empty() && self.percent.iter().all(|percent| *percent <= 1)
    }

    pub(crate) fn is_never_idle(&self) -> bool {
        self.percent.iter().all(|percent| *percent > 1)
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.percent.is_empty() && self.is_never_idle()
    }

    pub(crate) fn is_unknown(&self, reason: &str) -> bool {
        self.percent.is_empty() && self.unknown.contains_key(reason)
    }

    /// Formats the values as text.
    pub(crate) fn text(&self) -> String {
        let mut parts = Vec::new();
        if let (Some(least), Some(most)) = (self.percent.iter().min(), self.percent.iter().max()) {
            let range = if least == most { format!("{least} %") } else { format!("{least} to {most} %") };
            parts.push(format!("{range} in {} of {} snapshots", self.percent.len(), self.snapshots));
        }
        parts.extend(self.unknown.iter().map(|(why, count)| format!("unknown ({why}) in {count}")));
        if parts.is_empty() {
            return format!("not listed in {} snapshots", self.snapshots);
        }
        parts.extend(self.memory.map(mebibytes));
        parts.push(self.state.clone());
        parts.join(", ")
    }
}
