//! The compact text of a report: one line per GPU and one per holder.

use bailiff_exposition::human::{UNKNOWN, or_unknown};
use bailiff_exposition::terminal::{Cell, Column, Table, Tone, line};
use bailiff_snapshot::stuck::REPORTED_UNATTRIBUTED;

use super::figures::{NONE, Style, ctime};
use super::report::{GpuReport, InfoReport, Memory};
use super::rows::{self, HolderRow};
use super::text::{fault_text, notebook_lines, notes, wrapped_pair};

type GpuRow<'a> = (&'a GpuReport, &'a Style);
type GpuColumn = (&'static str, Column, fn(&GpuRow<'_>) -> Cell);
const GPUS: [GpuColumn; 7] = [
    ("GPU", Column::Never, |(gpu, _)| {
        Cell::of(&gpu.index, if gpu.fault.is_some() { Tone::Bad } else { Tone::Plain })
    }),
    ("NAME", Column::To(6), |(gpu, _)| or_unknown(gpu.name.as_ref()).into()),
    ("UTIL", Column::Right, |(gpu, _)| {
        or_unknown(gpu.utilization.map(|percent| format!("{percent}%"))).into()
    }),
    ("USED", Column::Right, |row| memory(row, |memory| memory.observed.used)),
    ("TOTAL", Column::Right, |row| memory(row, |memory| memory.observed.total)),
    ("PROCS", Column::Right, |(gpu, _)| match gpu.instances {
        Some(_) => NONE.into(),
        None => or_unknown(gpu.holders.as_ref().map(Vec::len)).into(),
    }),
    ("LEASE", Column::To(6), |(gpu, _)| match &gpu.lease {
        Some(lease) => lease.short().into(),
        None => NONE.into(),
    }),
];

fn memory((gpu, style): &GpuRow<'_>, part: fn(&Memory) -> u64) -> Cell {
    or_unknown(gpu.memory.as_ref().map(|memory| style.units.size(part(memory)))).into()
}

/// Returns the lines of the report, with fewer holders per GPU if the report then fits the rows of the
/// terminal.
pub(super) fn render(report: &InfoReport, style: &Style, rows: Option<usize>) -> Vec<String> {
    let with = |max_holders| with_holders(report, &Style { max_holders, ..style.clone() });
    let lines = with(style.max_holders);
    let Some(rows) = rows.filter(|rows| lines.len() > *rows) else { return lines };
    (1..style.max_holders).rev().map(with).find(|lines| lines.len() <= rows).unwrap_or_else(|| with(1))
}

fn with_holders(report: &InfoReport, style: &Style) -> Vec<String> {
    let mut lines = vec![style.colors.title(&ctime(report.wall_ms, &style.zone))];
    lines.extend(gpus(report, style));
    lines.push(String::new());
    let holders = holders(report, style);
    if !holders.is_empty() {
        lines.extend(holders);
        lines.push(String::new());
    }
    for gpu in &report.gpus {
        lines.extend(remarks(gpu, style));
        lines.extend(notebook_lines(gpu, style));
    }
    lines.extend(notes(report, style));
    lines
}

/// Returns the columns of a table. The last column, for leases, is omitted without a pool.
fn shown<C>(columns: &[C], pool: bool) -> &[C] {
    &columns[..columns.len() - usize::from(!pool)]
}

fn gpus(report: &InfoReport, style: &Style) -> Vec<String> {
    let pool = report.gpus.iter().any(|gpu| gpu.lease.is_some());
    let rows = report.gpus.iter().map(|gpu| (gpu, style));
    Table::of(shown(&GPUS, pool), rows).lines(style.width, style.colors)
}

fn holders(report: &InfoReport, style: &Style) -> Vec<String> {
    let all = || report.gpus.iter().flat_map(|gpu| gpu.holders.iter().flatten());
    let (mut rows, mut rest) = (Vec::new(), Vec::new());
    for gpu in &report.gpus {
        let holders = gpu.holders.as_deref().unwrap_or_default();
        let (first, others) = holders.split_at(style.max_holders.min(holders.len()));
        rows.extend(first.iter().map(|holder| HolderRow { gpu, holder, style, unknown: UNKNOWN }));
        rest.extend(others);
    }
    let columns = shown(&rows::COMPACT, all().any(|holder| holder.leased.is_some()));
    let mut lines = Table::of(columns, rows).lines(style.width, style.colors);
    let most_holders = report.gpus.iter().filter_map(|gpu| Some(gpu.holders.as_ref()?.len())).max();
    lines.extend(rows::omitted(rest.into_iter(), most_holders.unwrap_or_default(), style));
    let all_listed = report.gpus.iter().all(|gpu| gpu.holders.is_some() || gpu.instances.is_some());
    if all().next().is_none() && all_listed && !report.gpus.is_empty() {
        lines.push("no processes hold GPU memory".to_owned());
    }
    lines
}

/// Returns the problems of a GPU that the table does not show.
fn remarks(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let memory = gpu.memory.as_ref().filter(|_| gpu.instances.is_none());
    let held = |part: Option<u64>, text: &str| {
        part.filter(|bytes| *bytes > 0).map(|bytes| format!("{} {text}", style.units.size(bytes)))
    };
    let unattributed =
        memory.and_then(|memory| memory.observed.unaccounted).filter(|bytes| *bytes >= REPORTED_UNATTRIBUTED);
    let stuck = gpu.holders.iter().flatten().filter(|holder| holder.stuck().is_some()).count();
    let unlisted = gpu.holders.is_none() && gpu.fault.is_none() && gpu.instances.is_none();
    let errors = [
        gpu.fault.as_deref().map(|fault| format!("{}; see `bailiff doctor`", fault_text(fault))),
        gpu.needs(),
        memory.and_then(|memory| held(memory.observed.dead_pids, "held by processes that do not exist")),
        memory.and_then(|memory| {
            held(memory.observed.unreleased, "not released after its holders exited; see --full")
        }),
    ];
    let warnings = [
        gpu.memory_unknown().map(|why| format!("memory unknown: {why}; see `bailiff doctor`")),
        unlisted.then(|| "the driver does not list its processes".to_owned()),
        unattributed
            .and_then(|bytes| held(u64::try_from(bytes).ok(), "not held by any listed process; see --who")),
        memory.and_then(|memory| {
            held(memory.observed.other_namespaces, "held by processes in other PID namespaces")
        }),
        (stuck > 0).then(|| format!("stuck processes: {stuck}; see --full")),
    ];
    let name = format!("GPU {}", line(&gpu.index));
    let lines = |text: &String, tone| wrapped_pair(&name, text, style, tone);
    let errors = errors.iter().flatten().flat_map(|text| lines(text, Tone::Bad));
    let warnings = warnings.iter().flatten().flat_map(|text| lines(text, Tone::Warn));
    errors.chain(warnings).collect()
}
