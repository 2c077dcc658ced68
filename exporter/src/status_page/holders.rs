//! Holders of GPU memory: a row for each process on each GPU, the largest first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::{Bytes, Span};
use bailiff_snapshot::{
    Facts, Fault, Gpu, Holder, Place, Process, Snapshot, Source, Utilization, user_label,
};

use super::reasons;
use crate::selection::Sum;

/// Maximum number of rows. More would not be read, and would slow down a browser that reloads every few
/// seconds.
const MOST: usize = 100;

const TABLE: Table<8> = Table {
    id: "holders-table",
    caption: "One row per process and GPU, the largest memory first; processes with unknown memory come before all others.",
    columns: [
        ("process", ""),
        ("memory", "n"),
        ("GPU", ""),
        ("user", ""),
        ("busy", "n"),
        ("idle for", "n"),
        ("where", ""),
        ("state", ""),
    ],
    most: MOST,
    rest: "see bailiff info, or bailiff_process_gpu_memory_bytes on the metrics page (up to --max-processes).",
};

/// Maximum number of GPUs without a process list that are named.
const MOST_UNLISTED: usize = 16;

struct Row<'a> {
    gpu: &'a Gpu,
    holder: &'a Holder,
    process: Option<&'a Process>,
    stuck: bool,
}

pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    let mut rows: Vec<Row<'_>> = snapshot.gpus.iter().flat_map(|gpu| of_gpu(gpu, snapshot)).collect();
    rows.sort_by_key(|row| Reverse(row.holder.memory.unwrap_or(u64::MAX)));
    html.section("holders", "Holders of GPU memory", |html| {
        if rows.is_empty() {
            no_holders(snapshot, html);
        } else {
            TABLE.write(html, &rows, Row::cells);
        }
        if let Some(rest) = rest(rows.get(MOST..).unwrap_or_default()) {
            html.paragraph("dim", &rest);
        }
        unlisted(snapshot, html);
    });
}

fn of_gpu<'a>(gpu: &'a Gpu, snapshot: &'a Snapshot) -> impl Iterator<Item = Row<'a>> {
    gpu.holders.iter().map(move |holder| Row {
        gpu,
        holder,
        process: snapshot.processes.get(&holder.process),
        stuck: snapshot.stuck(holder).is_some(),
    })
}

/// Writes why the table is empty: there are no holders, or no list of them.
fn no_holders(snapshot: &Snapshot, html: &mut Html) {
    if snapshot.gpus.is_empty() {
        return match snapshot.sources.get(&Source::Nvml).map(|state| state.fault) {
            Some(None | Some(Fault::NoDevices)) => html.paragraph("dim", "None, because there are no GPUs."),
            Some(Some(fault)) => {
                html.unknown_paragraph(&format!("the holders, because {}", reasons::fault(fault)));
            }
            None => html.unknown_paragraph("the driver was not queried"),
        };
    }
    let is_listed = |gpu: &Gpu| gpu.listed.unwrap_or_default() > 0;
    if snapshot.gpus.iter().any(is_listed) {
        html.unknown_paragraph(if snapshot.namespace.attributes() {
            "the driver lists processes without their pids"
        } else {
            "the driver's pids belong to another PID namespace"
        });
    } else if snapshot.gpus.iter().all(|gpu| reasons::unlisted(gpu).is_none()) {
        html.paragraph("dim", "None. The driver lists no processes on any GPU.");
    } else if snapshot.gpus.iter().any(|gpu| gpu.listed.is_some()) {
        html.paragraph("dim", "None on the GPUs whose processes are known.");
    }
}

/// Writes the GPUs whose holders are unknown, with the reason.
fn unlisted(snapshot: &Snapshot, html: &mut Html) {
    let unlisted = snapshot.gpus.iter().filter_map(|gpu| Some((gpu, reasons::unlisted(gpu)?)));
    let unlisted: Vec<(&Gpu, &str)> = unlisted.collect();
    for (gpu, why) in unlisted.iter().take(MOST_UNLISTED) {
        html.unknown_paragraph(&format!("the processes on GPU {}: {why}", gpu.about.index));
    }
    if let Some(more @ 1..) = unlisted.len().checked_sub(MOST_UNLISTED) {
        html.unknown_paragraph(&format!("the processes on {more} more GPUs"));
    }
}

/// Returns the number and memory of the holders that are not shown, per GPU.
fn rest(rows: &[Row<'_>]) -> Option<String> {
    let mut gpus: BTreeMap<&str, (usize, Sum)> = BTreeMap::new();
    for row in rows {
        let of = gpus.entry(&row.gpu.about.index).or_default();
        *of = (of.0 + 1, of.1.plus(row.holder.memory));
    }
    let summary = |(gpu, (count, sum)): (&&str, &(usize, Sum))| {
        let held =
            sum.known().map_or_else(|| "unknown memory".to_owned(), |sum| Bytes(sum.into()).to_string());
        format!("GPU {gpu}: {count} with {held}")
    };
    let summaries: Vec<String> = gpus.iter().map(summary).collect();
    (!summaries.is_empty()).then(|| format!("Not shown: {}.", summaries.join("; ")))
}

impl Row<'_> {
    fn cells(&self) -> [Cell; 8] {
        let facts = self.process.and_then(|process| process.facts.as_ref());
        let nameless = reasons::nameless(self.process);
        let (busy, idle) = self.use_of();
        [
            self.name(facts),
            Cell::of(self.holder.memory.map(|bytes| Bytes(bytes.into())), "not reported by the driver"),
            self.gpu.about.index.as_str().into(),
            Cell::of(facts.and_then(user_label), nameless),
            busy,
            idle,
            facts.map_or(Cell::Unknown(nameless.into()), |facts| place(&facts.place)),
            self.state(),
        ]
    }

    fn name(&self, facts: Option<&Facts>) -> Cell {
        let pid = self.holder.process.pid();
        match facts {
            Some(Facts { comm, command: Some(command), .. }) => {
                Cell::Named(comm.clone(), format!("{pid} {command}"))
            }
            Some(facts) => Cell::Named(facts.comm.clone(), pid.to_string()),
            None => Cell::Named("name unknown".to_owned(), pid.to_string()),
        }
    }

    fn use_of(&self) -> (Cell, Cell) {
        match self.holder.utilization {
            Utilization::Unknown(why) => (Cell::Unknown(reasons::why(why).into()), Cell::Unknown("".into())),
            Utilization::Observed(engines) => {
                let idle = self.holder.idle;
                let text = if idle.is_zero() { "in use".to_owned() } else { Span(idle).to_string() };
                (format!("{} %", engines.busiest()).into(), text.into())
            }
        }
    }

    fn state(&self) -> Cell {
        let Some(process) = self.process else { return Cell::Unknown("".into()) };
        let state = process.state.name().replace('_', " ");
        if self.stuck { Cell::Bad(format!("{state}: stuck, see below")) } else { state.into() }
    }
}

/// Returns the two most specific of pod, job, container and unit that are known.
fn place(place: &Place) -> Cell {
    let container = place.container.as_deref().map(|id| format!("container {}", id.get(..12).unwrap_or(id)));
    let pod = place.pod.clone().or_else(|| place.pod_uid.clone());
    let pod =
        pod.map(|pod| place.namespace.as_ref().map_or(pod.clone(), |namespace| format!("{namespace}/{pod}")));
    let job = place.slurm_job.as_ref().map(|job| {
        place
            .slurm_step
            .as_ref()
            .map_or_else(|| format!("job {job}"), |step| format!("job {job} step {step}"))
    });
    let mut parts = [pod, job, container, place.unit.clone()].into_iter().flatten();
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) => Cell::Named(first, second),
        (first, _) => Cell::maybe(first),
    }
}
