//! The state of each source, and why one is down: closed sets, since they become labels.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The NVIDIA driver, through NVML.
    Nvml,
    /// `/proc`.
    Proc,
    /// The server of leases, where one was named.
    Redis,
    /// The directory of quota files, where there is one.
    Quota,
    /// The control daemons of MPS, where there are any.
    Mps,
}

impl Source {
    /// Every source, in the order of a page.
    pub const ALL: [Self; 5] = [Self::Nvml, Self::Proc, Self::Redis, Self::Quota, Self::Mps];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::Proc => "proc",
            Self::Redis => "redis",
            Self::Quota => "quota",
            Self::Mps => "mps",
        }
    }
}

crate::label_values! {
/// Why a source, or one GPU of it, gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// No `libnvidia-ml.so.1`.
    LibraryNotFound = "library_not_found",
    /// The program that asks is not installed: for `mps`, NVIDIA's `nvidia-cuda-mps-control`.
    ProgramNotFound = "program_not_found",
    /// The library is there, the kernel module is not.
    DriverNotLoaded = "driver_not_loaded",
    /// Library and kernel module are of different releases.
    VersionMismatch = "version_mismatch",
    /// The driver answers and knows no GPU.
    NoDevices = "no_devices",
    /// It did not answer within its deadline.
    Timeout = "timeout",
    /// The exporter took no sample for more than two intervals and the deadline: it was stopped, or the machine was.
    Outdated = "outdated",
    /// The driver is still being opened.
    Starting = "starting",
    /// The GPU has fallen off the bus (`NVML_ERROR_GPU_IS_LOST`).
    Lost = "lost",
    /// A right is missing, or a password.
    NotPermitted = "not_permitted",
    /// No process answers at its address: Redis, or an MPS control daemon.
    Unreachable = "unreachable",
    /// The sampling worker ended (a crash in the driver's library, say) or could not be started.
    WorkerFailed = "worker_failed",
    /// Any other error; the log has it.
    Error = "error",
}
}

/// How one source did in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// `None`: it answered.
    pub fault: Option<Fault>,
    /// How long it took; `None` where it was not asked.
    pub took: Option<Duration>,
}

impl SourceState {
    /// It answered.
    #[must_use]
    pub const fn up(took: Duration) -> Self {
        Self { fault: None, took: Some(took) }
    }

    /// It did not.
    #[must_use]
    pub const fn down(fault: Fault) -> Self {
        Self { fault: Some(fault), took: None }
    }
}
