//! A report as a compact table: one line for each GPU and one for each of its holders.

use std::time::Duration;

use bailiff_exposition::human::UNKNOWN;
use bailiff_exposition::terminal::line;
use bailiff_snapshot::stuck::REPORTED_UNATTRIBUTED;

use super::figures::{ctime, span};
use super::report::{Gpu, Holder, Memory, Report};
use super::rows;
use super::text::{Style, fault_words, notes, told};
use crate::table::{Cell, Column, Table, Tone};

/// What stands where there is no such thing.
const NONE: &str = "-";

const GPUS: [(&str, Column); 7] = [
    ("GPU", Column::Left),
    ("NAME", Column::Gives),
    ("UTIL", Column::Right),
    ("USED", Column::Right),
    ("TOTAL", Column::Right),
    ("PROCS", Column::Right),
    ("LEASE", Column::Gives),
];
const HOLDERS: [(&str, Column); 10] = [
    ("GPU", Column::Left),
    ("PID", Column::Right),
    ("USER", Column::Gives),
    ("MEMORY", Column::Right),
    ("UTIL", Column::Right),
    ("IDLE", Column::Right),
    ("STATE", Column::Left),
    ("NAME", Column::Gives),
    ("WHERE", Column::Gives),
    ("LEASE", Column::Left),
];

/// All of it, line by line; with fewer holders of each GPU where that makes it fit so many rows.
pub(super) fn text(report: &Report, style: &Style, rows: Option<usize>) -> Vec<String> {
    let with = |most| with_holders(report, &Style { most, ..style.clone() });
    let lines = with(style.most);
    let Some(rows) = rows.filter(|rows| lines.len() > *rows) else { return lines };
    (1..style.most).rev().map(with).find(|lines| lines.len() <= rows).unwrap_or_else(|| with(1))
}

fn with_holders(report: &Report, style: &Style) -> Vec<String> {
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

/// The columns, the last of them only where there is a pool of leases.
fn columns<const N: usize>(columns: &'static [(&'static str, Column); N], pool: bool) -> Table {
    Table::new(&columns[..if pool { N } else { N - 1 }])
}

fn gpus(report: &Report, style: &Style) -> Vec<String> {
    let pool = report.gpus.iter().any(|gpu| gpu.lease.is_some());
    let mut table = columns(&GPUS, pool);
    for gpu in &report.gpus {
        let memory =
            |part: fn(&Memory) -> u64| shown(gpu.memory.as_ref(), |memory| style.units.size(part(memory)));
        let holders = gpu.holders.as_ref().filter(|_| gpu.instances.is_none());
        let processes = match gpu.instances {
            Some(_) => NONE.to_owned(),
            None => shown(holders, |holders| holders.len().to_string()),
        };
        let lease = gpu.lease.as_ref().map_or_else(|| NONE.to_owned(), super::leased::Leased::short);
        let tone = if gpu.fault.is_some() { Tone::Bad } else { Tone::Plain };
        table.row(vec![
            Cell::of(&gpu.index, tone),
            shown(gpu.name.as_ref(), String::clone).into(),
            shown(gpu.utilization, |percent| format!("{percent}%")).into(),
            memory(|memory| memory.used).into(),
            memory(|memory| memory.total).into(),
            processes.into(),
            lease.into(),
        ]);
    }
    table.lines(style.width, style.colors)
}

fn holders(report: &Report, style: &Style) -> Vec<String> {
    let all = || report.gpus.iter().flat_map(|gpu| gpu.holders.iter().flatten());
    let pool = all().any(|holder| holder.leased.is_some());
    let mut table = columns(&HOLDERS, pool);
    let mut rest = Vec::new();
    for gpu in &report.gpus {
        let holders = gpu.holders.as_deref().unwrap_or_default();
        let (first, others) = holders.split_at(style.most.min(holders.len()));
        for holder in first {
            table.row(row(gpu, holder, style));
        }
        rest.extend(others);
    }
    let mut lines = table.lines(style.width, style.colors);
    if !rest.is_empty() {
        let sum = rest.iter().map(|holder: &&Holder| holder.memory).sum::<Option<u64>>();
        let sum = sum.map(|bytes| format!(" with {}", style.units.size(bytes))).unwrap_or_default();
        let most = report.gpus.iter().filter_map(|gpu| Some(gpu.holders.as_ref()?.len())).max();
        lines.push(format!("and {} more{sum}; --top {} shows all", rest.len(), most.unwrap_or_default()));
    }
    let told = report.gpus.iter().all(|gpu| gpu.holders.is_some() || gpu.instances.is_some());
    if all().next().is_none() && told && !report.gpus.is_empty() {
        lines.push("no process holds GPU memory".to_owned());
    }
    lines
}

fn row(gpu: &Gpu, holder: &Holder, style: &Style) -> Vec<Cell> {
    let busy = holder.utilization.is_some() && !holder.is_idle();
    let idle = match holder.idle_ms {
        _ if busy => NONE.to_owned(),
        idle => shown(idle, |ms| span(Duration::from_millis(ms))),
    };
    let state = if holder.state == "unknown" { UNKNOWN.into() } else { rows::state(holder) };
    // Of a process that /proc does not show, it is not known that it is in no unit.
    let place = if holder.comm.is_some() { NONE } else { UNKNOWN };
    let lease = if holder.leased.is_none() { UNKNOWN.into() } else { rows::lease(holder) };
    vec![
        (&gpu.index).into(),
        holder.pid.to_string().into(),
        shown(holder.owner(), |owner| owner).into(),
        shown(holder.memory, |bytes| style.units.size(bytes)).into(),
        shown(holder.utilization, |percent| format!("{percent}%")).into(),
        idle.into(),
        state,
        shown(rows::name(holder), |name| name).into(),
        rows::place(holder).unwrap_or_else(|| place.to_owned()).into(),
        lease,
    ]
}

/// What a line of the table cannot say of a GPU.
fn remarks(gpu: &Gpu, style: &Style) -> Vec<String> {
    let memory = gpu.memory.as_ref().filter(|_| gpu.instances.is_none());
    let held = |part: Option<u64>, words: &str| {
        part.filter(|bytes| *bytes > 0).map(|bytes| format!("{} {words}", style.units.size(bytes)))
    };
    let unattributed =
        memory.and_then(|memory| memory.unaccounted).filter(|bytes| *bytes >= REPORTED_UNATTRIBUTED);
    let stuck = gpu.holders.iter().flatten().filter(|holder| holder.stuck().is_some()).count();
    let silent = gpu.holders.is_none() && gpu.fault.is_none() && gpu.instances.is_none();
    let bad = [
        gpu.fault.as_deref().map(|fault| format!("{}; see `bailiff doctor`", fault_words(fault))),
        memory.and_then(|memory| held(memory.dead_pids, "held by processes that do not exist")),
        memory
            .and_then(|memory| held(memory.unreleased, "not released after its holders exited; see --full")),
    ];
    let odd = [
        silent.then(|| "the driver does not list its processes".to_owned()),
        unattributed
            .and_then(|bytes| held(u64::try_from(bytes).ok(), "held by no listed process; see --who")),
        memory.and_then(|memory| held(memory.other_namespaces, "held by processes of other PID namespaces")),
        (stuck > 0).then(|| format!("stuck processes: {stuck}; see --full")),
    ];
    let name = format!("GPU {}", line(&gpu.index));
    let bad = bad.iter().flatten().flat_map(|words| told(&name, words, style, |part| style.colors.bad(part)));
    let odd = odd.iter().flatten().flat_map(|words| told(&name, words, style, |part| style.colors.odd(part)));
    bad.chain(odd).collect()
}

fn shown<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}
