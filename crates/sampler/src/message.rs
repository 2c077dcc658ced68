//! Messages between supervisor and worker. Both are the same program, so the format has no version.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{
    DeviceProcesses, Driver, Fault, Gaps, GpuSample, KernelLog, Mps, PodResources, Quota, Relative, Seen,
    SlurmSample, SourceState,
};

/// From the supervisor to the worker. It contains neither paths nor privileges: the process that faces the
/// network must not be able to make a privileged worker load arbitrary files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Indexes of the GPUs to skip: GPUs that hang, and GPUs that another worker has read in this
    /// interval.
    pub(crate) skip: Vec<u32>,
    /// Pids that another worker found in this interval.
    pub(crate) also: Vec<u32>,
}

/// From the worker to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The driver is open.
    Opened(Driver),
    /// The driver cannot be opened, and the worker exits. Contains the driver's message for the log.
    Failed(Fault, String),
    /// The worker starts to read a GPU.
    Reading {
        /// Index of the GPU.
        index: u32,
        /// Number of GPUs.
        count: u32,
    },
    /// Result for one GPU and its MIG instances.
    Read(Vec<GpuSample>),
    /// The worker starts to read `/proc`.
    Looking {
        /// Number of GPUs.
        count: u32,
    },
    /// The sample is complete.
    Done(Box<Rest>),
}

/// The part of a sample that is not about GPUs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) processes: BTreeMap<u32, Seen>,
    pub(crate) relatives: Option<Vec<Relative>>,
    pub(crate) groups: BTreeMap<u32, Vec<String>>,
    pub(crate) device_processes: Option<DeviceProcesses>,
    pub(crate) quotas: Option<Vec<Quota>>,
    pub(crate) quota_state: Option<SourceState>,
    pub(crate) mps: Option<Mps>,
    pub(crate) slurm: Option<SlurmSample>,
    pub(crate) slurm_state: Option<SourceState>,
    pub(crate) pod_resources: Option<PodResources>,
    pub(crate) pod_resources_state: Option<SourceState>,
    /// Why the kubelet did not answer, for the log.
    pub(crate) pod_resources_error: Option<String>,
    pub(crate) kernel_log: Option<KernelLog>,
    /// Why the kernel log could not be read, for the log.
    pub(crate) kernel_log_error: Option<String>,
    pub(crate) gaps: Gaps,
    pub(crate) nvml_took: Duration,
    pub(crate) proc_took: Duration,
    pub(crate) proc_fault: Option<Fault>,
}
