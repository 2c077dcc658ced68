//! Metrics of GPUs.

use bailiff_exposition::{Family, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::unlisted::unlisted;
use bailiff_snapshot::{Gpu, Holder, Snapshot, State, Stuck};

use crate::metrics;

/// Returns the labels that identify a GPU.
pub(super) fn labels(gpu: &Gpu) -> Labels {
    put(Labels::default(), gpu)
}

/// Appends the labels that identify a GPU.
pub(super) fn put(labels: Labels, gpu: &Gpu) -> Labels {
    let labels = labels.with("gpu", &gpu.about.index);
    labels.maybe("gpu_uuid", gpu.about.id.as_ref().map(|id| id.0.as_str()))
}

/// A metric and its value for a GPU.
type Column = (&'static Family, fn(&Gpu) -> Option<Number>);

const MEMORY: [Column; 5] = [
    (&metrics::GPU_MEMORY_TOTAL, |gpu| Some(gpu.memory?.total.into())),
    (&metrics::GPU_MEMORY_USED, |gpu| Some(gpu.memory?.used.into())),
    (&metrics::GPU_MEMORY_FREE, |gpu| Some(gpu.memory?.free.into())),
    (&metrics::GPU_MEMORY_RESERVED, |gpu| Some(gpu.memory?.reserved?.into())),
    (&metrics::GPU_MEMORY_UNACCOUNTED, |gpu| Some(gpu.parts?.unaccounted.into())),
];

const TELEMETRY: [Column; 8] = [
    (&metrics::GPU_UTILIZATION, |gpu| gpu.telemetry.utilization.map(Number::Percent)),
    (&metrics::GPU_MEMORY_BANDWIDTH, |gpu| gpu.telemetry.memory_utilization.map(Number::Percent)),
    (&metrics::GPU_POWER, |gpu| Some((f64::from(gpu.telemetry.power?) / 1e3).into())),
    (&metrics::GPU_ENERGY, |gpu| gpu.telemetry.energy.map(joules)),
    (&metrics::GPU_TEMPERATURE, |gpu| Some(gpu.telemetry.temperature?.into())),
    (&metrics::GPU_MIG_ENABLED, |gpu| Some(gpu.telemetry.mig_enabled?.into())),
    (&metrics::GPU_MIG_INSTANCES, |gpu| Some(gpu.instances?.into())),
    (&metrics::GPU_PROCESSES, |gpu| Some(gpu.listed?.into())),
];

#[expect(clippy::cast_precision_loss, reason = "joules need no more digits than a double has")]
fn joules(millijoules: u64) -> Number {
    (millijoules as f64 / 1e3).into()
}

pub(super) fn write(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let all: Vec<(Labels, &Gpu)> = snapshot.gpus.iter().map(|gpu| (labels(gpu), gpu)).collect();
    let up: Vec<(Labels, &Gpu)> = all.iter().filter(|(_, gpu)| gpu.fault.is_none()).cloned().collect();
    for (labels, gpu) in &all {
        page.put(&metrics::GPU_INFO, &about(labels.clone(), gpu), PRESENT);
    }
    for (labels, gpu) in &all {
        page.put(&metrics::GPU_UP, labels, gpu.fault.is_none());
    }
    for (labels, gpu) in &all {
        if let Some(fault) = gpu.fault {
            page.put_as((&metrics::GPU_FAULT_INFO, "reason", fault.name()), labels, PRESENT);
        }
    }
    columns(&MEMORY, &up, page);
    unreleased(&up, page);
    parts(&up, page);
    columns(&TELEMETRY, &up, page);
    clocks(&up, page);
    modes(&up, page);
    xids(&all, page);
    stuck(snapshot, &up, page);
    device_processes(snapshot, &up, page);
}

fn about(labels: Labels, gpu: &Gpu) -> Labels {
    let about = &gpu.about;
    let mig = about.mig.as_ref();
    let capability = about.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    labels
        .maybe("name", about.name.as_deref())
        .maybe("pci_bus_id", about.pci_bus_id.as_deref())
        .maybe("minor", number(about.minor).as_deref())
        .maybe("compute_capability", capability.as_deref())
        .maybe("parent_uuid", mig.and_then(|mig| mig.parent.as_ref()).map(|id| id.0.as_str()))
        .maybe("gpu_instance", number(mig.and_then(|mig| mig.gpu_instance)).as_deref())
        .maybe("compute_instance", number(mig.and_then(|mig| mig.compute_instance)).as_deref())
}

fn columns(columns: &[Column], gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (family, number) in columns {
        for (labels, gpu) in gpus {
            if let Some(number) = number(gpu) {
                page.put(family, labels, number);
            }
        }
    }
}

/// Writes the unreleased memory, or the reason why it is unknown. In MIG mode only the instances have a
/// reason.
fn unreleased(gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (labels, gpu) in gpus {
        if let Ok(bytes) = gpu.unreleased.bytes() {
            page.put(&metrics::GPU_MEMORY_UNRELEASED, labels, bytes);
        }
    }
    for (labels, gpu) in gpus.iter().filter(|(_, gpu)| gpu.about.mig.is_some() || !gpu.mig()) {
        if let Err(why) = gpu.unreleased.bytes() {
            page.put_as((&metrics::GPU_MEMORY_UNRELEASED_UNKNOWN, "reason", why.name()), labels, PRESENT);
        }
    }
}

fn parts(gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (labels, gpu) in gpus {
        let Some(parts) = gpu.parts else { continue };
        let named: [(&str, Number); 6] = [
            ("free", parts.free.into()),
            ("reserved", parts.reserved.into()),
            ("holders", parts.holders.into()),
            ("dead_pids", parts.dead_pids.into()),
            ("other_namespaces", parts.other_namespaces.into()),
            ("unaccounted", parts.unaccounted.into()),
        ];
        for (part, bytes) in named {
            page.put_as((&metrics::GPU_MEMORY_PARTS, "part", part), labels, bytes);
        }
    }
}

fn clocks(gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (labels, gpu) in gpus {
        for (clock, megahertz) in &gpu.telemetry.clocks {
            let labels = labels.clone().with("clock", clock);
            page.put(&metrics::GPU_CLOCK, &labels, u64::from(*megahertz) * 1_000_000);
        }
    }
}

fn modes(gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (labels, gpu) in gpus {
        if let Some(mode) = gpu.telemetry.compute_mode {
            page.put_as((&metrics::GPU_COMPUTE_MODE, "mode", mode.name()), labels, PRESENT);
        }
    }
}

fn xids(gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (labels, gpu) in gpus {
        for (xid, count) in &gpu.xids {
            page.put_as((&metrics::GPU_XID_ERRORS, "xid", &xid.to_string()), labels, *count);
        }
    }
}

fn stuck(snapshot: &Snapshot, gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    for (labels, gpu) in gpus {
        let stuck: Vec<Stuck> = gpu.holders.iter().filter_map(|holder| snapshot.stuck(holder)).collect();
        let is_seen = |holder: &Holder| {
            let process = snapshot.processes.get(&holder.process);
            process.is_some_and(|process| {
                !matches!(process.state, State::Unknown | State::Hidden) && !Stuck::may_be(process)
            })
        };
        let all_seen = gpu.listed.is_some() && gpu.holders.iter().all(is_seen);
        for kind in Stuck::ALL {
            let count = stuck.iter().filter(|stuck| **stuck == kind).count();
            if count > 0 || all_seen {
                page.put_as((&metrics::GPU_STUCK, "kind", kind.name()), labels, count as u64);
            }
        }
    }
}

fn device_processes(snapshot: &Snapshot, gpus: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    let Some(device_processes) = &snapshot.device_processes else { return };
    for (labels, gpu) in gpus {
        if let Some(unlisted) = unlisted(snapshot, gpu) {
            page.put(&metrics::GPU_UNLISTED_DEVICE_PROCESSES, labels, unlisted.len() as u64);
        }
    }
    page.put(&metrics::DEVICE_PROCESSES_UNREADABLE, &Labels::default(), device_processes.unreadable);
}
