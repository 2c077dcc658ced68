//! State of each source, and why a source is down. These are closed sets, because they become label values.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

crate::label_values! {
/// Source of data.
pub enum Source {
    /// NVIDIA driver, through NVML.
    Nvml = "nvml",
    /// Processes in `/proc`.
    Proc = "proc",
    /// Redis server with the lease pool, if configured.
    Redis = "redis",
    /// Directory of quota files, if it exists.
    Quota = "quota",
    /// MPS control daemons, if any are running.
    Mps = "mps",
    /// Directory of Slurm's hooks, if they have run.
    Slurm = "slurm",
    /// The kubelet's pod-resources API, if configured.
    PodResources = "pod_resources",
}
}

crate::label_values! {
/// Why a source, or one GPU, delivered no data.
pub enum Fault {
    /// The library `libnvidia-ml.so.1` was not found.
    LibraryNotFound = "library_not_found",
    /// The program that queries the source is not installed (for `mps`, NVIDIA's `nvidia-cuda-mps-control`).
    ProgramNotFound = "program_not_found",
    /// The library is installed, but the kernel module is not loaded.
    DriverNotLoaded = "driver_not_loaded",
    /// The library and the kernel module have different versions.
    VersionMismatch = "version_mismatch",
    /// The driver responds, but lists no GPUs.
    NoDevices = "no_devices",
    /// There was no response within the deadline.
    Timeout = "timeout",
    /// There was no sample for more than two intervals plus the deadline, because the exporter or the machine was
    /// stopped.
    Outdated = "outdated",
    /// The driver is still being initialized.
    Starting = "starting",
    /// The GPU has fallen off the bus (`NVML_ERROR_GPU_IS_LOST`).
    Lost = "lost",
    /// Permission was denied, or a password is missing.
    NotPermitted = "not_permitted",
    /// No process listens at the address of Redis, of an MPS control daemon or of the kubelet.
    Unreachable = "unreachable",
    /// The sampling worker exited (for example because the driver's library crashed) or could not be started.
    WorkerFailed = "worker_failed",
    /// Any other error; see the log.
    Error = "error",
}
}

impl Source {
    /// Returns why the source is down; `None` if it is up or is not among these.
    pub fn fault(self, among: &BTreeMap<Self, SourceState>) -> Option<Fault> {
        among.get(&self).and_then(|state| state.fault)
    }
}

/// State of one source in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Why the source is down; `None` if it is up.
    pub fault: Option<Fault>,
    /// Duration of the query; `None` if it was not measured.
    pub took: Option<Duration>,
}

impl SourceState {
    /// Returns the state of a source that answered.
    pub const fn up(took: Duration) -> Self {
        Self { fault: None, took: Some(took) }
    }

    /// Returns the state of a source that is down.
    pub const fn down(fault: Fault) -> Self {
        Self { fault: Some(fault), took: None }
    }
}
