//! Metrics of single processes, and sums over the processes without series of their own.

use bailiff_exposition::{Family, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::users::user_label;
use bailiff_snapshot::{Engines, Facts, Gpu, Holder, Process, ProcessId, Snapshot, State, Utilization};

use super::gpus;
use crate::metrics;
use crate::selection::{Selection, Sum};

/// A metric and its value for a process, from `/proc`.
type FactColumn = (&'static Family, fn(&Facts) -> Option<Number>);
/// A metric and its value for a process on a GPU.
type HolderColumn = (&'static Family, fn(&Holder) -> Option<Number>);

const FACTS: [FactColumn; 2] = [
    (&metrics::PROCESS_START_TIME, |facts| Some(facts.started?.into())),
    (&metrics::PROCESS_CPU, |facts| Some(facts.cpu_seconds.into())),
];

const MEMORY: [HolderColumn; 2] = [
    (&metrics::PROCESS_MEMORY, |holder| Some(holder.memory?.into())),
    (&metrics::PROCESS_MEMORY_PEAK, |holder| Some(holder.peak?.into())),
];

const USE: [HolderColumn; 3] = [
    (&metrics::PROCESS_IDLE, |holder| holder.utilization.percent().map(|_| holder.idle.as_secs_f64().into())),
    // A sum of 0 may mean that the process was never observed; then it is written only if the latest sample
    // was observed.
    (&metrics::PROCESS_BUSY, |holder| {
        let observed = holder.busy_seconds > 0.0 || holder.utilization.percent().is_some();
        observed.then(|| holder.busy_seconds.into())
    }),
    (&metrics::PROCESS_BYTE_SECONDS, |holder| {
        let observed = holder.byte_seconds > 0.0 || holder.memory.is_some();
        observed.then(|| holder.byte_seconds.into())
    }),
];

/// Approximate size of a pid label in bytes.
const PID_BYTES: usize = 20;
/// Approximate size of the labels of `bailiff_process_info` in bytes.
const INFO_BYTES: usize = 400;

pub(super) fn write(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let shown = snapshot.processes.iter().filter(|(id, _)| selection.shows(**id));
    let processes: Vec<(Labels, ProcessId, &Process)> = shown
        .map(|(id, process)| (Labels::default().roomy(PID_BYTES).with_pid(id.pid()), *id, process))
        .collect();
    write_processes(&processes, page);
    drop(processes);
    let mut holders: Vec<(Labels, &Holder)> = Vec::new();
    for gpu in &snapshot.gpus {
        let labels = gpus::labels(gpu);
        let shown = gpu.holders.iter().filter(|holder| selection.shows(holder.process));
        holders.extend(shown.map(|holder| (labels.roomy(PID_BYTES).with_pid(holder.process.pid()), holder)));
    }
    write_holders(&holders, page);
    drop(holders);
    write_others(snapshot, selection, page);
}

fn write_processes(processes: &[(Labels, ProcessId, &Process)], page: &mut Writer<'_>) {
    for (labels, _, process) in processes {
        page.put(&metrics::PROCESS_INFO, &info(labels.roomy(INFO_BYTES), process.facts.as_ref()), PRESENT);
    }
    for (labels, _, process) in processes {
        page.put_as((&metrics::PROCESS_STATE, "state", process.state.name()), labels, PRESENT);
    }
    for (labels, _, process) in processes.iter().filter(|(_, _, process)| process.state == State::Zombie) {
        if let Some(facts) = &process.facts {
            page.put_as((&metrics::PROCESS_PARENT, "parent", &facts.ppid.to_string()), labels, PRESENT);
        }
    }
    let known =
        || processes.iter().filter_map(|(labels, _, process)| Some((labels, process.facts.as_ref()?)));
    for (family, number) in FACTS {
        for (labels, facts) in known() {
            if let Some(number) = number(facts) {
                page.put(family, labels, number);
            }
        }
    }
    for (labels, facts) in known() {
        let Some(io) = facts.io else { continue };
        page.put_as((&metrics::PROCESS_IO, "direction", "read"), labels, io.read_bytes);
        page.put_as((&metrics::PROCESS_IO, "direction", "write"), labels, io.write_bytes);
    }
    for (labels, facts) in known() {
        if let Some(orphaned) = facts.orphaned {
            page.put(&metrics::PROCESS_ORPHANED, labels, orphaned);
        }
    }
}

fn info(labels: Labels, facts: Option<&Facts>) -> Labels {
    let Some(facts) = facts else {
        return labels.even_empty("container", None).even_empty("pod", None).even_empty("namespace", None);
    };
    let place = &facts.place;
    labels
        .maybe("uid", facts.uid.map(|uid| uid.to_string()).as_deref())
        .maybe("user", user_label(facts).as_deref())
        .with("comm", &facts.comm)
        .maybe("command", facts.command.as_deref())
        .even_empty("container", place.container.as_deref())
        .maybe("runtime", place.runtime.as_deref())
        .even_empty("pod", place.pod.as_deref())
        .maybe("pod_uid", place.pod_uid.as_deref())
        .even_empty("namespace", place.namespace.as_deref())
        .maybe("slurm_job", place.slurm_job.as_deref())
        .maybe("unit", place.unit.as_deref())
}

fn write_holders(holders: &[(Labels, &Holder)], page: &mut Writer<'_>) {
    for (labels, holder) in holders {
        let letters = holder.kinds.letters();
        if !letters.is_empty() {
            page.put_as((&metrics::CONTEXT_INFO, "context", letters), labels, PRESENT);
        }
    }
    columns(&MEMORY, holders, page);
    for (labels, holder) in holders {
        let Utilization::Observed(engines) = holder.utilization else { continue };
        for (engine, percent) in shares(engines) {
            page.put_as((&metrics::PROCESS_UTILIZATION, "engine", engine), labels, Number::Percent(percent));
        }
    }
    for (labels, holder) in holders {
        if let Utilization::Unknown(why) = holder.utilization {
            page.put_as((&metrics::PROCESS_UTILIZATION_UNKNOWN, "reason", why.name()), labels, PRESENT);
        }
    }
    columns(&USE, holders, page);
}

fn columns(columns: &[HolderColumn], holders: &[(Labels, &Holder)], page: &mut Writer<'_>) {
    for (family, number) in columns {
        for (labels, holder) in holders {
            if let Some(number) = number(holder) {
                page.put(family, labels, number);
            }
        }
    }
}

/// Returns the observed engines. Drivers that do not know jpeg and ofa report 0 for them, so these are left
/// out at 0.
fn shares(engines: Engines) -> impl Iterator<Item = (&'static str, u32)> {
    let always = [
        ("sm", engines.sm),
        ("memory", engines.memory),
        ("encoder", engines.encoder),
        ("decoder", engines.decoder),
    ];
    let newer = [("jpeg", engines.jpeg), ("ofa", engines.ofa)];
    always.into_iter().chain(newer.into_iter().filter(|(_, percent)| *percent > 0))
}

fn write_others(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let listed: Vec<(Labels, &Gpu)> =
        snapshot.gpus.iter().filter(|gpu| gpu.listed.is_some()).map(|gpu| (gpus::labels(gpu), gpu)).collect();
    let others = |gpu: &'_ Gpu| -> (u64, Sum) {
        let left_out = gpu.holders.iter().filter(|holder| !selection.shows(holder.process));
        left_out.fold((0, Sum::ZERO), |(count, sum), holder| (count + 1, sum.plus(holder.memory)))
    };
    for (labels, gpu) in &listed {
        page.put(&metrics::OTHER_PROCESSES, labels, others(gpu).0);
    }
    for (labels, gpu) in &listed {
        if let Some(bytes) = others(gpu).1.known() {
            page.put(&metrics::OTHER_PROCESSES_MEMORY, labels, bytes);
        }
    }
}
