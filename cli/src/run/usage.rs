//! The observed GPU usage of a command, summed over samples.

use std::collections::BTreeMap;

use bailiff_snapshot::{Holder, ProcessId};

use crate::idle_timeout::detector::DetectorInput;

/// The usage observed so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct GpuUsage {
    /// Busy GPU-seconds per GPU and process; `None` before any was observed.
    busy: Option<BTreeMap<(String, ProcessId), f64>>,
    /// Peak memory per GPU, summed over the command's processes.
    pub(crate) peak: BTreeMap<String, u64>,
}

impl GpuUsage {
    pub(crate) fn add(&mut self, input: &DetectorInput<'_>) {
        for gpu in &input.now.gpus {
            let name = gpu.about.id.as_ref().map_or_else(|| gpu.about.index.clone(), |id| id.0.clone());
            let own: Vec<&Holder> = gpu.holders.iter().filter(|holder| input.is_ours(holder)).collect();
            for holder in own.iter().filter(|holder| holder.utilization.percent().is_some()) {
                let key = (name.clone(), holder.process);
                self.busy.get_or_insert_default().insert(key, holder.busy_seconds);
            }
            // If the memory of one process is unknown, so is the sum.
            let memory: Option<u64> = own.iter().map(|holder| holder.memory).sum();
            if let Some(memory) = memory.filter(|_| !own.is_empty()) {
                let peak = self.peak.entry(name).or_default();
                *peak = memory.max(*peak);
            }
        }
    }

    /// Returns the busy GPU-seconds, if any use was observed.
    pub(crate) fn busy_seconds(&self) -> Option<f64> {
        self.busy.as_ref().map(|busy| busy.values().sum())
    }
}
