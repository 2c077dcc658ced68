//! Takes samples of GPUs (NVML), processes (`/proc`) and quota files. A [`Supervisor`] requests each sample
//! from a worker process and never waits for it beyond a deadline, because the driver may hang.
//!
//! Each of the three processes has only the privileges that it needs. The **launcher** keeps the
//! capabilities and only starts and kills workers. A **worker** loads NVML and reads `/proc`. The process with the
//! supervisor drops all capabilities and may be exposed to the network.

mod cgroup_limits;
mod channel;
pub mod cuda;
mod device_file_scan;
mod kernel_log;
mod kubelet;
pub mod launcher;
mod message;
mod mps;
mod nvml;
mod own_cgroup;
mod proc;
mod quota;
mod sample_builder;
mod settings;
mod slurm;
mod supervisor;
pub mod worker;

/// Returns the UUIDs of this machine's GPUs by index. Only for interactive commands: the driver is called
/// in this process, which hangs if the driver hangs.
///
/// # Errors
/// If the driver cannot be read. The error is the driver's message.
pub fn uuids(library: Option<&std::path::Path>) -> Result<Vec<Option<String>>, String> {
    let gpus = nvml::Gpus::open(library).and_then(|(gpus, _)| gpus.uuids());
    gpus.map_err(|(_, words)| words)
}

pub use kubelet::{KubeletError, KubeletMethod, QueryKubelet};
pub use launcher::Launcher;
pub use proc::device_processes;
pub use settings::{Claims, Commands, Mps, Namespace, PodResourcesSettings, SamplerSettings};
pub use slurm::read as read_slurm_directory;
pub use supervisor::Supervisor;
