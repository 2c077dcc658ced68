//! A sample in progress. It is filled by one worker or, after a hang, by two workers.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{About, Driver, Fault, GpuSample, Moment, Sample, Source, SourceState};

use crate::message::Rest;
use crate::proc::Node;

/// Results received so far.
#[derive(Default)]
pub(crate) struct SampleBuilder {
    pub(crate) driver: Option<Driver>,
    /// Samples of a GPU and its MIG instances, by the GPU's index.
    pub(crate) read: BTreeMap<u32, Vec<GpuSample>>,
    /// Number of GPUs, once a worker has reported it.
    pub(crate) count: Option<u32>,
    /// Why driver data is missing or incomplete.
    pub(crate) fault: Option<Fault>,
    pub(crate) rest: Option<Rest>,
}

/// Parts of the sample that do not come from workers.
pub(crate) struct Frame<'a> {
    pub(crate) node: &'a Node,
    pub(crate) seq: u64,
    pub(crate) at: Moment,
    pub(crate) took: Duration,
    pub(crate) interval: Duration,
    pub(crate) workers_hung: u32,
}

impl SampleBuilder {
    /// Returns the pids listed so far, which another worker will read.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let entries = self.read.values().flatten().filter_map(|gpu| gpu.entries.as_ref()).flatten();
        entries.map(|entry| entry.pid).collect()
    }

    /// Builds the sample. A GPU that was not read is included with its properties from `known` and a fault, which `lost`
    /// returns if an earlier sample lost it.
    pub(crate) fn finish(
        mut self,
        frame: &Frame<'_>,
        (known, lost): (&BTreeMap<u32, About>, &dyn Fn(u32) -> Option<Fault>),
    ) -> Sample {
        let count = self.count.unwrap_or_else(|| known.keys().next_back().map_or(0, |last| last + 1));
        for index in 0..count {
            self.read.entry(index).or_insert_with(|| {
                let about = known.get(&index).cloned().unwrap_or_else(|| About::unnamed(index));
                let fault = lost(index).or(self.fault).unwrap_or(Fault::Timeout);
                vec![GpuSample::faulty(about, fault)]
            });
        }
        let sources = self.sources(count);
        let rest = self.rest.unwrap_or_default();
        Sample {
            seq: frame.seq,
            at: frame.at,
            took: frame.took,
            interval: frame.interval,
            boot_id: frame.node.boot_id.clone(),
            namespace: frame.node.namespace,
            sources,
            driver: self.driver.unwrap_or_default(),
            gpus: self.read.into_values().flatten().collect(),
            processes: rest.processes,
            relatives: rest.relatives,
            groups: rest.groups,
            device_processes: rest.device_processes,
            leases: None,
            quotas: rest.quotas,
            mps: rest.mps,
            slurm: rest.slurm,
            pod_resources: rest.pod_resources,
            kernel_log: rest.kernel_log,
            gaps: rest.gaps,
            workers_hung: frame.workers_hung,
        }
    }

    fn sources(&self, count: u32) -> BTreeMap<Source, SourceState> {
        let gpus = || self.read.values().flatten();
        let all_faulty = || gpus().all(|gpu| gpu.fault.is_some());
        let nvml = match self.fault {
            Some(fault) => SourceState::down(fault),
            None if count == 0 => SourceState::down(Fault::NoDevices),
            None if all_faulty() => {
                SourceState::down(gpus().find_map(|gpu| gpu.fault).unwrap_or(Fault::Error))
            }
            None => SourceState { fault: None, took: self.rest.as_ref().map(|rest| rest.nvml_took) },
        };
        let proc = match &self.rest {
            Some(Rest { proc_fault: None, proc_took, .. }) => Some(SourceState::up(*proc_took)),
            Some(Rest { proc_fault: Some(fault), .. }) => Some(SourceState::down(*fault)),
            None if self.fault.is_none() => Some(SourceState::down(Fault::Timeout)),
            // Without a list of pids, nothing is read from `/proc`.
            None => None,
        };
        let quota = self.rest.as_ref().and_then(|rest| rest.quota_state);
        let slurm = self.rest.as_ref().and_then(|rest| rest.slurm_state);
        let pod_resources = self.rest.as_ref().and_then(|rest| rest.pod_resources_state);
        let all = [
            (Source::Nvml, Some(nvml)),
            (Source::Proc, proc),
            (Source::Quota, quota),
            (Source::Slurm, slurm),
            (Source::PodResources, pod_resources),
        ];
        all.into_iter().filter_map(|(source, state)| Some((source, state?))).collect()
    }
}
