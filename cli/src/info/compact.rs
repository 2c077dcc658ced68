//! The compact text of a report: one line per GPU and one per holder.

use std::time::Duration;

use bailiff_exposition::human::UNKNOWN;
use bailiff_exposition::terminal::line;
use bailiff_snapshot::State;
use bailiff_snapshot::stuck::REPORTED_UNATTRIBUTED;

use super::figures::{Style, ctime, span};
use super::report::{GpuReport, Holder, InfoReport, Memory};
use super::rows;
use super::text::{fault_text, notes, wrapped_pair};
use crate::table::{Cell, Column, Table, Tone};

/// The placeholder of a value that does not apply.
const NONE: &str = "-";

const GPUS: [(&str, Column); 7] = [
    ("GPU", Column::Left),
    ("NAME", Column::Shrink),
    ("UTIL", Column::Right),
    ("USED", Column::Right),
    ("TOTAL", Column::Right),
    ("PROCS", Column::Right),
    ("LEASE", Column::Shrink),
];
const HOLDERS: [(&str, Column); 10] = [
    ("GPU", Column::Left),
    ("PID", Column::Right),
    ("USER", Column::Shrink),
    ("MEMORY", Column::Right),
    ("UTIL", Column::Right),
    ("IDLE", Column::Right),
    ("STATE", Column::Left),
    ("NAME", Column::Shrink),
    ("WHERE", Column::Shrink),
    ("LEASE", Column::Left),
];

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
    }
    lines.extend(notes(report, style));
    lines
}

/// Creates a table. The last column, for leases, is omitted without a pool.
fn lease_table<const N: usize>(columns: &'static [(&'static str, Column); N], pool: bool) -> Table {
    Table::new(&columns[..if pool { N } else { N - 1 }])
}

fn gpus(report: &InfoReport, style: &Style) -> Vec<String> {
    let pool = report.gpus.iter().any(|gpu| gpu.lease.is_some());
    let mut table = lease_table(&GPUS, pool);
    for gpu in &report.gpus {
        let memory = |part: fn(&Memory) -> u64| {
            or_unknown(gpu.memory.as_ref(), |memory| style.units.size(part(memory)))
        };
        let holders = gpu.holders.as_ref().filter(|_| gpu.instances.is_none());
        let processes = match gpu.instances {
            Some(_) => NONE.to_owned(),
            None => or_unknown(holders, |holders| holders.len().to_string()),
        };
        let lease = gpu.lease.as_ref().map_or_else(|| NONE.to_owned(), super::lease_state::LeaseInfo::short);
        let tone = if gpu.fault.is_some() { Tone::Bad } else { Tone::Plain };
        table.row(vec![
            Cell::of(&gpu.index, tone),
            or_unknown(gpu.name.as_ref(), String::clone).into(),
            or_unknown(gpu.utilization, |percent| format!("{percent}%")).into(),
            memory(|memory| memory.used).into(),
            memory(|memory| memory.total).into(),
            processes.into(),
            lease.into(),
        ]);
    }
    table.lines(style.width, style.colors)
}

fn holders(report: &InfoReport, style: &Style) -> Vec<String> {
    let all = || report.gpus.iter().flat_map(|gpu| gpu.holders.iter().flatten());
    let pool = all().any(|holder| holder.leased.is_some());
    let mut table = lease_table(&HOLDERS, pool);
    let mut rest = Vec::new();
    for gpu in &report.gpus {
        let holders = gpu.holders.as_deref().unwrap_or_default();
        let (first, others) = holders.split_at(style.max_holders.min(holders.len()));
        for holder in first {
            table.row(row(gpu, holder, style));
        }
        rest.extend(others);
    }
    let mut lines = table.lines(style.width, style.colors);
    if !rest.is_empty() {
        let sum = rest.iter().map(|holder: &&Holder| holder.memory).sum::<Option<u64>>();
        let sum = sum.map(|bytes| format!(" with {}", style.units.size(bytes))).unwrap_or_default();
        let most_holders = report.gpus.iter().filter_map(|gpu| Some(gpu.holders.as_ref()?.len())).max();
        lines.push(format!(
            "and {} more{sum}; use --top {} to show all",
            rest.len(),
            most_holders.unwrap_or_default()
        ));
    }
    let all_listed = report.gpus.iter().all(|gpu| gpu.holders.is_some() || gpu.instances.is_some());
    if all().next().is_none() && all_listed && !report.gpus.is_empty() {
        lines.push("no processes hold GPU memory".to_owned());
    }
    lines
}

fn row(gpu: &GpuReport, holder: &Holder, style: &Style) -> Vec<Cell> {
    let busy = holder.utilization.is_some() && !holder.is_idle();
    let idle = match holder.idle_ms {
        _ if busy => NONE.to_owned(),
        idle => or_unknown(idle, |ms| span(Duration::from_millis(ms))),
    };
    let state = if holder.state == State::Unknown { UNKNOWN.into() } else { rows::state(holder) };
    // If /proc does not show the process, its unit is unknown.
    let place = if holder.comm.is_some() { NONE } else { UNKNOWN };
    let lease = if holder.leased.is_none() { UNKNOWN.into() } else { rows::lease(holder) };
    vec![
        (&gpu.index).into(),
        holder.pid.to_string().into(),
        or_unknown(holder.owner(), |owner| owner).into(),
        or_unknown(holder.memory, |bytes| style.units.size(bytes)).into(),
        or_unknown(holder.utilization, |percent| format!("{percent}%")).into(),
        idle.into(),
        state,
        or_unknown(rows::name(holder), |name| name).into(),
        rows::place(holder).unwrap_or_else(|| place.to_owned()).into(),
        lease,
    ]
}

/// Returns the problems of a GPU that the table does not show.
fn remarks(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let memory = gpu.memory.as_ref().filter(|_| gpu.instances.is_none());
    let held = |part: Option<u64>, text: &str| {
        part.filter(|bytes| *bytes > 0).map(|bytes| format!("{} {text}", style.units.size(bytes)))
    };
    let unattributed =
        memory.and_then(|memory| memory.unaccounted).filter(|bytes| *bytes >= REPORTED_UNATTRIBUTED);
    let stuck = gpu.holders.iter().flatten().filter(|holder| holder.stuck().is_some()).count();
    let unlisted = gpu.holders.is_none() && gpu.fault.is_none() && gpu.instances.is_none();
    let errors = [
        gpu.fault.as_deref().map(|fault| format!("{}; see `bailiff doctor`", fault_text(fault))),
        memory.and_then(|memory| held(memory.dead_pids, "held by processes that do not exist")),
        memory
            .and_then(|memory| held(memory.unreleased, "not released after its holders exited; see --full")),
    ];
    let warnings = [
        unlisted.then(|| "the driver does not list its processes".to_owned()),
        unattributed
            .and_then(|bytes| held(u64::try_from(bytes).ok(), "not held by any listed process; see --who")),
        memory.and_then(|memory| held(memory.other_namespaces, "held by processes in other PID namespaces")),
        (stuck > 0).then(|| format!("stuck processes: {stuck}; see --full")),
    ];
    let name = format!("GPU {}", line(&gpu.index));
    let errors = errors
        .iter()
        .flatten()
        .flat_map(|text| wrapped_pair(&name, text, style, |part| style.colors.bad(part)));
    let warnings = warnings
        .iter()
        .flatten()
        .flat_map(|text| wrapped_pair(&name, text, style, |part| style.colors.odd(part)));
    errors.chain(warnings).collect()
}

fn or_unknown<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}
