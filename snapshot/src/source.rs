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
    /// The folder of quota files, where there is one.
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

/// Why a source, or one GPU of it, gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// No `libnvidia-ml.so.1`.
    LibraryNotFound,
    /// The program that asks is not installed.
    ProgramNotFound,
    /// The library is there, the kernel module is not.
    DriverNotLoaded,
    /// Library and kernel module are of different releases.
    VersionMismatch,
    /// The driver answers and knows no GPU.
    NoDevices,
    /// It did not answer within its deadline.
    Timeout,
    /// The driver is still being opened.
    Starting,
    /// The GPU has fallen off the bus (`NVML_ERROR_GPU_IS_LOST`).
    Lost,
    /// A right is missing, or a password.
    NotPermitted,
    /// Nobody answers at its address.
    Unreachable,
    /// The sampling worker ended (a crash in the driver's library, say) or could not be started.
    WorkerFailed,
    /// Any other error; the log has it.
    Error,
}

impl Fault {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LibraryNotFound => "library_not_found",
            Self::ProgramNotFound => "program_not_found",
            Self::DriverNotLoaded => "driver_not_loaded",
            Self::VersionMismatch => "version_mismatch",
            Self::NoDevices => "no_devices",
            Self::Timeout => "timeout",
            Self::Starting => "starting",
            Self::Lost => "lost",
            Self::NotPermitted => "not_permitted",
            Self::Unreachable => "unreachable",
            Self::WorkerFailed => "worker_failed",
            Self::Error => "error",
        }
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
