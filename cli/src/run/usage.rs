//! What a command had of its GPUs, as far as it was observed: looks in, figures out.

use std::collections::BTreeMap;

use bailiff_snapshot::{Holder, ProcessId};

use crate::idle_timeout::watch::Look;

/// What was seen so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Use {
    /// Seconds of a fully busy GPU, of each process on each GPU; none before one was observed.
    busy: Option<BTreeMap<(String, ProcessId), f64>>,
    /// The most memory that its processes held together, of each GPU.
    pub(crate) peak: BTreeMap<String, u64>,
}

impl Use {
    /// Adds one look.
    pub(crate) fn add(&mut self, look: &Look<'_>) {
        for gpu in &look.now.gpus {
            let name = gpu.about.id.as_ref().map_or_else(|| gpu.about.index.clone(), |id| id.0.clone());
            let ours: Vec<&Holder> = gpu.holders.iter().filter(|holder| look.is_ours(holder)).collect();
            for holder in ours.iter().filter(|holder| holder.utilization.percent().is_some()) {
                let of = (name.clone(), holder.process);
                self.busy.get_or_insert_default().insert(of, holder.busy_seconds);
            }
            // Of whom the driver does not tell how much he holds, nobody knows the sum.
            let memory: Option<u64> = ours.iter().map(|holder| holder.memory).sum();
            if let Some(memory) = memory.filter(|_| !ours.is_empty()) {
                let peak = self.peak.entry(name).or_default();
                *peak = memory.max(*peak);
            }
        }
    }

    /// Seconds of a fully busy GPU, where any use was observed.
    pub(crate) fn busy_seconds(&self) -> Option<f64> {
        self.busy.as_ref().map(|busy| busy.values().sum())
    }
}
