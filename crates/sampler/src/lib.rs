//! The only place that uses NVML, `/proc` and quota files. It provides samples: a [`Supervisor`] queries a sampling worker, a
//! process of its own, and never waits for it beyond a deadline, because the driver may hang.
//!
//! Three processes, so that each has only the rights it needs: the **launcher** keeps the capabilities and
//! does nothing but start workers; a **worker** loads NVML and reads `/proc`; the process with the supervisor
//! has dropped everything ([`privileges::drop_all`]) and may face the network.

mod channel;
mod clock;
pub mod cuda;
mod device_file_scan;
pub mod launcher;
mod message;
mod mps;
mod nvml;
pub mod privileges;
mod proc;
mod quota;
mod sample_builder;
mod settings;
mod supervisor;
pub mod worker;

/// Returns the UUIDs of this machine's GPUs by index. The driver is called in this process, which hangs if the
/// driver does: only for interactive commands.
///
/// # Errors
/// With the driver's message.
pub fn uuids(library: Option<&std::path::Path>) -> Result<Vec<Option<String>>, String> {
    let gpus = nvml::Gpus::open(library).and_then(|(gpus, _)| gpus.uuids());
    gpus.map_err(|(_, words)| words)
}

pub use launcher::Launcher;
pub use proc::device_processes;
pub use settings::{Claims, Commands, Mps, Namespace, SamplerSettings};
pub use supervisor::Supervisor;
