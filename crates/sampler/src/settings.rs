//! Settings of a sampler.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Paths, interval, and deadlines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerSettings {
    /// Path of NVML's library; `None` means the loader's `libnvidia-ml.so.1`.
    pub nvml_library: Option<PathBuf>,
    /// Path of `/proc`, or of a fake one.
    pub procfs: PathBuf,
    /// Mount point of the cgroup file system.
    pub cgroupfs: PathBuf,
    /// Directory with the pods' log directories, whose names identify the pods.
    pub pods: PathBuf,
    /// Directory of quota files; `None` to skip them.
    pub quotas: Option<PathBuf>,
    /// Directory of Slurm's hooks; `None` to skip it.
    pub slurm: Option<PathBuf>,
    /// How the kubelet is asked for the devices of containers; `None` if it is not.
    pub pod_resources: Option<PodResourcesSettings>,
    /// Sampling interval.
    pub interval: Duration,
    /// Deadline for driver calls in a sample. A GPU that has not responded after two fifths of it counts as
    /// hung, and another worker reads the other GPUs.
    pub deadline: Duration,
    /// Minimum lookback of utilization queries. The driver's timestamps may be seconds old, regardless of
    /// the interval.
    pub lookback: Duration,
    /// Deadline for opening the driver, which may take seconds without persistence mode.
    pub open_deadline: Duration,
    /// Whether to read command lines.
    pub commands: Commands,
    /// Whether to read the lease from the environment of processes, and to report their ancestors.
    pub claims: Claims,
    /// Whether to read the notebook from the environment of holders. As with command lines, reading can block on the
    /// process.
    pub notebooks: bool,
    /// Whether to search for MPS daemons and servers.
    pub mps: Mps,
    /// How to treat a PID namespace that is not the host's.
    pub namespace: Namespace,
    /// Whether to read the activity of engines, which takes about 1 ms of CPU time for each GPU.
    pub activity: bool,
    /// Whether the processes of a MIG instance without activity are idle, which was not confirmed on hardware.
    pub mig_idle: bool,
    /// File with the kernel log's records; `None` to skip it.
    pub kernel_log: Option<PathBuf>,
}

/// How the kubelet's pod-resources API is queried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResourcesSettings {
    /// The kubelet's Unix socket.
    pub socket: PathBuf,
    /// Time between two queries.
    pub interval: Duration,
    /// Directory with links to the logs of containers, whose names contain the names and ids of containers.
    pub containers: PathBuf,
}

/// Whether command lines are read. They may contain secrets, and reading one can block on the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Commands {
    /// Read only to identify MPS daemons and servers.
    Left,
    /// Not read at all, because reading one hung.
    Shunned,
    /// Read and redacted.
    Read,
}

/// Whether the environment of holders is read for the variable that contains the lease. As with command
/// lines, reading can block on the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claims {
    /// Not read, because leases are not exported, or because reading hung.
    Left,
    /// Read if permitted.
    Read,
}

/// Whether MPS control daemons and servers are searched for, and the directories in their environment read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mps {
    /// Not searched for.
    Left,
    /// Read if permitted.
    Read,
}

/// How to treat a PID namespace that is not the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespace {
    /// Detected. In a namespace other than the host's, the driver's pids are not used.
    Checked,
    /// Configured by an administrator as the host's.
    Trusted,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self {
            nvml_library: None,
            procfs: "/proc".into(),
            cgroupfs: "/sys/fs/cgroup".into(),
            pods: "/var/log/pods".into(),
            quotas: None,
            slurm: None,
            pod_resources: None,
            interval: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
            lookback: Duration::from_secs(10),
            open_deadline: Duration::from_secs(30),
            commands: Commands::Left,
            claims: Claims::Left,
            notebooks: false,
            mps: Mps::Left,
            namespace: Namespace::Checked,
            activity: false,
            mig_idle: false,
            kernel_log: None,
        }
    }
}
