//! Metrics of single processes, and sums over the processes without series of their own.

use bailiff_exposition::{Column, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::user_label;
use bailiff_snapshot::{Engines, Facts, Gpu, Holder, Process, Snapshot, State, Utilization};

use super::gpus;
use crate::metrics;
use crate::selection::{Selection, Sum};

const FACTS: [Column<Facts>; 2] = [
    (&metrics::PROCESS_START_TIME, |facts| Some(facts.started?.into())),
    (&metrics::PROCESS_CPU, |facts| Some(facts.cpu_seconds.into())),
];

const MEMORY: [Column<Holder>; 2] = [
    (&metrics::PROCESS_MEMORY, |holder| Some(holder.memory?.into())),
    (&metrics::PROCESS_MEMORY_PEAK, |holder| Some(holder.peak?.into())),
];

const USE: [Column<Holder>; 3] = [
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
    let processes: Vec<(Labels, &Process)> =
        shown.map(|(id, process)| (Labels::default().roomy(PID_BYTES).with_pid(id.pid()), process)).collect();
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

fn write_processes(processes: &[(Labels, &Process)], page: &mut Writer<'_>) {
    for (labels, process) in processes {
        page.put(&metrics::PROCESS_INFO, &info(labels.roomy(INFO_BYTES), process.facts.as_ref()), PRESENT);
    }
    page.rows_as((&metrics::PROCESS_STATE, "state"), processes, |process| {
        Some((process.state.name(), PRESENT))
    });
    page.rows_as((&metrics::PROCESS_PARENT, "parent"), processes, |process| {
        let facts = process.facts.as_ref().filter(|_| process.state == State::Zombie)?;
        Some((facts.ppid.to_string(), PRESENT))
    });
    let facts = processes.iter().filter_map(|(labels, process)| Some((labels, process.facts.as_ref()?)));
    let facts: Vec<(&Labels, &Facts)> = facts.collect();
    page.columns(&FACTS, &facts);
    page.rows_as((&metrics::PROCESS_IO, "direction"), &facts, |facts| {
        facts.io.into_iter().flat_map(|io| [("read", io.read_bytes), ("write", io.write_bytes)])
    });
    page.rows(&metrics::PROCESS_ORPHANED, &facts, |facts| facts.orphaned);
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
    page.rows_as((&metrics::CONTEXT_INFO, "context"), holders, |holder| {
        let letters = Some(holder.kinds.letters()).filter(|_| !holder.reused_pid);
        letters.filter(|letters| !letters.is_empty()).map(|letters| (letters, PRESENT))
    });
    page.columns(&MEMORY, holders);
    page.rows_as((&metrics::PROCESS_UTILIZATION, "engine"), holders, |holder| {
        let observed = match holder.utilization {
            Utilization::Observed(engines) => Some(engines),
            Utilization::Unknown(_) => None,
        };
        observed.into_iter().flat_map(shares)
    });
    page.rows_as((&metrics::PROCESS_UTILIZATION_UNKNOWN, "reason"), holders, |holder| {
        match holder.utilization {
            Utilization::Observed(_) => None,
            Utilization::Unknown(why) => Some((why.name(), PRESENT)),
        }
    });
    page.columns(&USE, holders);
    page.rows_as((&metrics::PROCESS_XID_ERRORS, "xid"), holders, |holder| {
        holder.xids.iter().map(|(xid, count)| (xid.to_string(), *count))
    });
}

/// Returns the observed engines. Drivers that do not know jpeg and ofa report 0 for them, so these are left
/// out at 0.
fn shares(engines: Engines) -> impl Iterator<Item = (&'static str, Number)> {
    let always = [
        ("sm", engines.sm),
        ("memory", engines.memory),
        ("encoder", engines.encoder),
        ("decoder", engines.decoder),
    ];
    let newer = [("jpeg", engines.jpeg), ("ofa", engines.ofa)];
    let shares = always.into_iter().chain(newer.into_iter().filter(|(_, percent)| *percent > 0));
    shares.map(|(engine, percent)| (engine, Number::Percent(percent)))
}

fn write_others(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let listed: Vec<(Labels, &Gpu)> =
        snapshot.gpus.iter().filter(|gpu| gpu.listed.is_some()).map(|gpu| (gpus::labels(gpu), gpu)).collect();
    let others = |gpu: &'_ Gpu| -> (u64, Sum) {
        let left_out = gpu.holders.iter().filter(|holder| !selection.shows(holder.process));
        left_out.fold((0, Sum::ZERO), |(count, sum), holder| (count + 1, sum.plus(holder.memory)))
    };
    page.rows(&metrics::OTHER_PROCESSES, &listed, |gpu| Some(others(gpu).0));
    page.rows(&metrics::OTHER_PROCESSES_MEMORY, &listed, |gpu| others(gpu).1.known());
}
