//! Processes that have a GPU's device file open, but are neither in the driver's lists nor services of the
//! driver: forked workers that inherited the file.

use std::collections::BTreeMap;

use crate::{DeviceProcess, FIRST_USER, Gpu, PidNamespace, ProcessId, Snapshot};

/// Driver services and GPU monitors, by `comm` (truncated to 15 bytes by the kernel). They have every device
/// open and hold no GPU memory.
const SERVICES: [&str; 8] = [
    "bailiff-exporte",
    "dcgm-exporter",
    "gpu-feature-dis",
    "nv-fabricmanage",
    "nv-hostengine",
    "nvidia-device-p",
    "nvidia-persiste",
    "nvidia-powerd",
];
/// Display servers and MPS, by `comm`.
const SYSTEM: [&str; 6] = ["Xorg", "X", "Xwayland", "gnome-shell", "kwin_wayland", MPS];
/// The control daemon and the server of MPS, by `comm`.
const MPS: &str = "nvidia-cuda-mps";

/// Returns the unlisted processes of a GPU; `None` if unknown. For a GPU in MIG mode, its instances list the
/// processes and share its device file.
pub fn unlisted<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Option<Vec<&'a DeviceProcess>> {
    let device_processes = snapshot.device_processes.as_ref()?;
    if snapshot.namespace != PidNamespace::Host || gpu.about.mig.is_some() {
        return None;
    }
    let minor = gpu.about.minor?;
    let is_part = |part: &Gpu| {
        let parent = part.about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        parent.is_some() && parent == gpu.about.id.as_ref()
    };
    let instances: Vec<&Gpu> = snapshot.gpus.iter().filter(|other| is_part(other)).collect();
    let lists = if gpu.instances.is_some() { instances } else { vec![gpu] };
    if lists.iter().any(|list| list.listed.is_none() || list.has_reused_pid()) {
        return None;
    }
    let holders = lists.iter().flat_map(|list| &list.holders).chain(&gpu.holders);
    let listed: BTreeMap<u32, ProcessId> =
        holders.map(|holder| (holder.process.pid(), holder.process)).collect();
    let is_listed = |process: &DeviceProcess| match (listed.get(&process.pid), process.start_ticks) {
        (Some(ProcessId::Live(key)), Some(ticks)) => key.start_ticks == ticks,
        (other, _) => other.is_some(),
    };
    let is_meant = |process: &&DeviceProcess| {
        process.minors.contains(&minor) && !is_service(process) && !is_listed(process)
    };
    Some(device_processes.processes.iter().filter(is_meant).collect())
}

/// Returns whether a process is a driver service or GPU monitor. A regular user's process is none, whatever its name.
pub fn is_service(process: &DeviceProcess) -> bool {
    SERVICES.contains(&process.comm.as_str()) && is_run_by_system(process.uid)
}

/// Returns whether a process with this name and user is a display server or MPS of the system.
pub fn is_system(comm: &str, uid: Option<u32>) -> bool {
    SYSTEM.contains(&comm) && is_run_by_system(uid)
}

/// Returns whether this is root or a system user.
pub fn is_run_by_system(uid: Option<u32>) -> bool {
    uid.is_some_and(|uid| uid < FIRST_USER)
}
