//! What supervisor and worker say to each other. Both are the same program, so this form has no version.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{
    DeviceProcesses, Driver, Fault, Gaps, GpuSample, Mps, Quota, Relative, Seen, SourceState,
};

/// To the worker. It contains no path and no privilege: the process that faces the network must not be able to make a
/// privileged worker load arbitrary files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// GPUs to leave alone, by index: hung ones, and those that another worker has read in this interval.
    pub(crate) skip: Vec<u32>,
    /// Pids that another worker found in this interval.
    pub(crate) also: Vec<u32>,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The driver is open.
    Opened(Driver),
    /// The driver cannot be opened; the worker ends. With the driver's own words, for the log.
    Failed(Fault, String),
    /// Number of GPUs; the reading of this one begins.
    Reading {
        /// Its index.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// What one GPU and its MIG instances gave.
    Read(Vec<GpuSample>),
    /// The reading of `/proc` begins.
    Looking {
        /// How many GPUs there are.
        count: u32,
    },
    /// The sample is complete.
    Done(Box<Rest>),
}

/// All that is not about GPUs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) processes: BTreeMap<u32, Seen>,
    pub(crate) relatives: Option<Vec<Relative>>,
    pub(crate) groups: BTreeMap<u32, Vec<String>>,
    pub(crate) device_processes: Option<DeviceProcesses>,
    pub(crate) quotas: Option<Vec<Quota>>,
    pub(crate) quota_state: Option<SourceState>,
    pub(crate) mps: Option<Mps>,
    pub(crate) gaps: Gaps,
    pub(crate) nvml_took: Duration,
    pub(crate) proc_took: Duration,
    pub(crate) proc_fault: Option<Fault>,
}
