//! Metrics of GPUs.

use std::collections::BTreeMap;

use bailiff_exposition::{Column, Family, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::cgroup_memory::{CgroupMemory, NO_LIMIT};
use bailiff_snapshot::unlisted::unlisted;
use bailiff_snapshot::{ErrorCounts, Gpu, Holder, Snapshot, State, Stuck, XidClass};

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

const MEMORY: [Column<Gpu>; 5] = [
    (&metrics::GPU_MEMORY_TOTAL, |gpu| Some(gpu.memory?.total.into())),
    (&metrics::GPU_MEMORY_USED, |gpu| Some(gpu.memory?.used.into())),
    (&metrics::GPU_MEMORY_FREE, |gpu| Some(gpu.memory?.free.into())),
    (&metrics::GPU_MEMORY_RESERVED, |gpu| Some(gpu.memory?.reserved?.into())),
    (&metrics::GPU_MEMORY_UNACCOUNTED, |gpu| Some(gpu.parts?.unaccounted.into())),
];

const CGROUPS: [Column<CgroupMemory>; 4] = [
    (&metrics::CGROUP_EFFECTIVE_LIMIT, |row| {
        row.effective.filter(|limit| *limit != NO_LIMIT).map(Into::into)
    }),
    (&metrics::CGROUP_USED, |row| Some(row.used?.into())),
    (&metrics::CGROUP_PEAK, |row| Some(row.peak?.into())),
    (&metrics::CGROUP_STALE_RESERVATION, |row| Some(row.stale_reservation?.into())),
];

type Counts = (&'static Family, fn(&Gpu) -> ErrorCounts);
const ERRORS: [Counts; 3] = [
    (&metrics::GPU_REMAPPED_ROWS, |gpu| gpu.telemetry.health.memory.remapped_rows),
    (&metrics::GPU_ECC_ERRORS, |gpu| gpu.telemetry.health.ecc),
    (&metrics::GPU_RETIRED_PAGES, |gpu| gpu.telemetry.health.memory.retired_pages),
];

const REMAPPING: [Column<Gpu>; 2] = [
    (&metrics::GPU_ROW_REMAP_PENDING, |gpu| Some(gpu.telemetry.health.memory.remap_pending?.into())),
    (&metrics::GPU_ROW_REMAP_FAILED, |gpu| Some(gpu.telemetry.health.memory.remap_failed?.into())),
];

const TELEMETRY: [Column<Gpu>; 8] = [
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
    page.rows(&metrics::GPU_UP, &all, |gpu| Some(gpu.fault.is_none()));
    page.rows_as((&metrics::GPU_FAULT_INFO, "reason"), &all, |gpu| Some((gpu.fault?.name(), PRESENT)));
    page.columns(&MEMORY, &up);
    page.rows_as((&metrics::GPU_MEMORY_UNKNOWN, "reason"), &up, |gpu| {
        Some((gpu.memory_unknown?.name(), PRESENT))
    });
    page.rows(&metrics::GPU_MEMORY_UNRELEASED, &up, |gpu| gpu.unreleased.bytes().ok());
    page.rows_as((&metrics::GPU_MEMORY_UNRELEASED_UNKNOWN, "reason"), &up, |gpu| {
        // In MIG mode only the instances have a reason.
        let why = gpu.unreleased.bytes().err().filter(|_| gpu.about.mig.is_some() || !gpu.mig())?;
        Some((why.name(), PRESENT))
    });
    page.rows_as((&metrics::GPU_MEMORY_PARTS, "part"), &up, parts);
    page.columns(&TELEMETRY, &up);
    activity(&up, page);
    energy(snapshot, &up, page);
    page.rows_as((&metrics::GPU_CLOCK, "clock"), &up, |gpu| {
        let clocks = gpu.telemetry.clocks.iter();
        clocks.map(|(clock, megahertz)| (clock, u64::from(*megahertz) * 1_000_000))
    });
    page.rows_as((&metrics::GPU_COMPUTE_MODE, "mode"), &up, |gpu| {
        Some((gpu.telemetry.compute_mode?.name(), PRESENT))
    });
    health(&up, page);
    for (labels, gpu) in &all {
        for xid in gpu.xids.keys() {
            let labels =
                labels.clone().with("xid", &xid.to_string()).with("class", XidClass::of(*xid).name());
            page.put(&metrics::GPU_XID_INFO, &labels, PRESENT);
        }
    }
    page.rows_as((&metrics::GPU_XID_ERRORS, "xid"), &all, |gpu| {
        gpu.xids.iter().map(|(xid, count)| (xid.to_string(), *count))
    });
    cgroups(&up, page);
    page.rows_as((&metrics::GPU_STUCK, "kind"), &up, |gpu| stuck(snapshot, gpu));
    if let Some(device_processes) = &snapshot.device_processes {
        page.rows(&metrics::GPU_UNLISTED_DEVICE_PROCESSES, &up, |gpu| {
            Some(unlisted(snapshot, gpu)?.len() as u64)
        });
        page.put(&metrics::DEVICE_PROCESSES_UNREADABLE, &Labels::default(), device_processes.unreadable);
    }
}

fn activity(up: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    page.rows_as((&metrics::GPU_ACTIVITY, "engine"), up, |gpu| {
        gpu.telemetry.activity.ratios.iter().map(|(engine, ratio)| (engine.name(), *ratio))
    });
    page.rows_as((&metrics::GPU_ACTIVITY_UNKNOWN, "reason"), up, |gpu| {
        Some((gpu.telemetry.activity.unknown?.name(), PRESENT))
    });
}

fn cgroups(up: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    let row = |labels: &Labels, row: &CgroupMemory| {
        labels.clone().with_path("cgroup", &row.cgroup).with("backend", row.backend.name())
    };
    let rows = up.iter().flat_map(|(labels, gpu)| gpu.cgroups.iter().map(|of| (row(labels, of), of)));
    // Of cgroups whose labels are cut to the same text, the outermost one counts.
    let mut unique = BTreeMap::new();
    rows.for_each(|(labels, row)| {
        unique.entry(labels).or_insert(row);
    });
    let rows: Vec<(Labels, &CgroupMemory)> = unique.into_iter().collect();
    page.rows_as((&metrics::CGROUP_LIMIT, "bound"), &rows, |row| {
        [("hard", row.hard), ("soft", row.soft)]
            .into_iter()
            .filter_map(|(bound, bytes)| Some((bound, bytes?)))
    });
    page.columns(&CGROUPS, &rows);
}

/// Writes the energy by part. Users whose names are cut to the same label are summed up.
fn energy(snapshot: &Snapshot, up: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    let mut rows: BTreeMap<Labels, u64> = BTreeMap::new();
    for (labels, gpu) in up {
        let Some(parts) = snapshot.energy_parts(gpu) else { continue };
        let of = |part| labels.clone().with("part", part);
        rows.extend([(of("idle"), parts.idle), (of("unattributed"), parts.unattributed)]);
        for (user, millijoules) in &parts.users {
            *rows.entry(of("user").with("user", user)).or_default() += millijoules;
        }
    }
    for (labels, millijoules) in rows {
        page.put(&metrics::ENERGY, &labels, joules(millijoules));
    }
}

fn health(up: &[(Labels, &Gpu)], page: &mut Writer<'_>) {
    page.rows_as((&metrics::GPU_RECOVERY_ACTION, "action"), up, |gpu| {
        Some((gpu.telemetry.health.recovery_action?.name(), PRESENT))
    });
    for (family, counts) in ERRORS {
        page.rows_as((family, "kind"), up, |gpu| {
            let ErrorCounts { corrected, uncorrected } = counts(gpu);
            let counts = [("corrected", corrected), ("uncorrected", uncorrected)];
            counts.into_iter().filter_map(|(kind, count)| Some((kind, count?)))
        });
    }
    page.columns(&REMAPPING, up);
    page.rows_as((&metrics::GPU_CLOCK_EVENT, "reason"), up, |gpu| {
        let events = gpu.telemetry.health.clock_events.as_deref();
        let none = events.is_some_and(<[_]>::is_empty).then_some("none");
        events.unwrap_or_default().iter().map(|event| event.name()).chain(none).map(|name| (name, PRESENT))
    });
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

fn parts(gpu: &Gpu) -> Vec<(&'static str, Number)> {
    let Some(parts) = gpu.parts else { return Vec::new() };
    vec![
        ("free", parts.free.into()),
        ("reserved", parts.reserved.into()),
        ("holders", parts.holders.into()),
        ("dead_pids", parts.dead_pids.into()),
        ("other_namespaces", parts.other_namespaces.into()),
        ("unaccounted", parts.unaccounted.into()),
    ]
}

/// Returns the number of stuck holders of each kind. A 0 is observed only if every holder was seen.
fn stuck(snapshot: &Snapshot, gpu: &Gpu) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let stuck: Vec<Stuck> = gpu.holders.iter().filter_map(|holder| snapshot.stuck(holder)).collect();
    let is_seen = |holder: &Holder| {
        let process = snapshot.processes.get(&holder.process).filter(|_| !holder.reused_pid);
        process.is_some_and(|process| {
            !matches!(process.state, State::Unknown | State::Hidden) && !Stuck::may_be(process)
        })
    };
    let all_seen = gpu.listed.is_some() && gpu.holders.iter().all(is_seen);
    let counts = Stuck::ALL.into_iter().map(move |kind| {
        let count = stuck.iter().filter(|stuck| **stuck == kind).count();
        (kind.name(), count as u64)
    });
    counts.filter(move |(_, count)| *count > 0 || all_seen)
}
