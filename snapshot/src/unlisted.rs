//! Who has a GPU's device file open, stands in no list of it and is no service of the driver: forked workers that
//! inherited it.

use std::collections::BTreeMap;

use crate::{DeviceProcess, Gpu, PidNamespace, ProcessId, Snapshot};

/// Services of the driver and what watches GPUs, by `comm` (cut to 15 bytes by the kernel): they have every device open and
/// hold nothing.
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
/// Users' own uids begin here: whoever is one of theirs is no service, whatever it calls itself.
const FIRST_USER: u32 = 1000;

/// Those of a GPU; `None` where that cannot be told. A GPU in MIG mode lists its processes in its instances, whose device
/// file is its own.
#[must_use]
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
    if lists.iter().any(|list| list.listed.is_none()) {
        return None;
    }
    let holders = lists.iter().flat_map(|list| &list.holders).chain(&gpu.holders);
    let listed: BTreeMap<u32, ProcessId> =
        holders.map(|holder| (holder.process.pid(), holder.process)).collect();
    let is_listed = |who: &DeviceProcess| match (listed.get(&who.pid), who.start_ticks) {
        (Some(ProcessId::Live(key)), Some(ticks)) => key.start_ticks == ticks,
        (other, _) => other.is_some(),
    };
    let is_meant = |who: &&DeviceProcess| who.minors.contains(&minor) && !is_service(who) && !is_listed(who);
    Some(device_processes.who.iter().filter(is_meant).collect())
}

/// It has every device open and holds nothing.
#[must_use]
pub fn is_service(who: &DeviceProcess) -> bool {
    SERVICES.contains(&who.comm.as_str()) && who.uid.is_some_and(|uid| uid < FIRST_USER)
}
