//! Settings of a sampler.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Paths, interval, and deadlines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerSettings {
    /// NVML's library; `None` is the loader's `libnvidia-ml.so.1`.
    pub nvml_library: Option<PathBuf>,
    /// `/proc`, or a made-up one.
    pub procfs: PathBuf,
    /// Where pods have their log directories, which are named after them.
    pub pods: PathBuf,
    /// The directory of quota files; `None` to skip them.
    pub quotas: Option<PathBuf>,
    /// Sampling interval.
    pub interval: Duration,
    /// How long the driver may be silent: a GPU that takes two fifths of it hangs, and another worker has the
    /// rest of the time for the others.
    pub deadline: Duration,
    /// How far back the driver is asked for utilization samples, at least: each pid's stamps may be seconds old,
    /// whatever the interval.
    pub lookback: Duration,
    /// Opening the driver may take this long (seconds, without persistence mode) before it counts as hung.
    pub open_deadline: Duration,
    /// Read command lines.
    pub commands: Commands,
    /// Whether to read the lease of a process's environment, and its ancestors.
    pub claims: Claims,
    /// Whether to search for MPS.
    pub mps: Mps,
    /// What to think of a PID namespace that is not the host's.
    pub namespace: Namespace,
}

/// Whether command lines are read: they may hold secrets, and reading one can wait on the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Commands {
    /// Only as far as needed to distinguish the parts of MPS.
    Left,
    /// Not even there, since reading one hung.
    Shunned,
    /// And redacted.
    Read,
}

/// Whether the environment of holders is read, for the one variable that names a lease: as with command lines, reading it
/// can wait on the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claims {
    /// Leases are not exported, or reading hung.
    Left,
    /// Wherever we may.
    Read,
}

/// Whether control daemons and servers of MPS are looked for, and where they are reached: that is in their environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mps {
    /// Not needed.
    Left,
    /// Wherever we may.
    Read,
}

/// What to think of a PID namespace that is not the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespace {
    /// The driver's pids mean nothing there.
    Checked,
    /// An administrator confirmed it.
    Trusted,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self {
            nvml_library: None,
            procfs: "/proc".into(),
            pods: "/var/log/pods".into(),
            quotas: None,
            interval: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
            lookback: Duration::from_secs(10),
            open_deadline: Duration::from_secs(30),
            commands: Commands::Left,
            claims: Claims::Left,
            mps: Mps::Left,
            namespace: Namespace::Checked,
        }
    }
}
