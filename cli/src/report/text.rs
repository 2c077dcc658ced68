//! The report as text.

use bailiff_exposition::human::Bytes;
use bailiff_exposition::terminal::{Cell, Colors, Column, Table, line};

use super::rows::{ColumnRow, EventRow, NodeRow, Rows, Seconds, TimeRow, UserRow};
use super::usage::GpuTime;

/// A tenth of an hour, in milliseconds.
const TENTH: u64 = 360_000;
/// Placeholder for an unknown value.
const UNKNOWN: &str = "?";

type Cells<T> = (&'static str, Column, fn(&&T) -> Cell);

const USERS: [Cells<UserRow>; 10] = [
    ("USER", Column::Last, |row| row.name.as_str().into()),
    ("HELD", Column::Right, |row| user_hours(row, 0)),
    ("USED", Column::Right, |row| user_hours(row, 1)),
    ("IDLE", Column::Right, |row| user_hours(row, 2)),
    ("UNKNOWN", Column::Right, |row| user_hours(row, 3)),
    ("MEMORY", Column::Right, |row| memory(row).into()),
    ("ENERGY", Column::Right, |row| energy(row).into()),
    ("NOTICES", Column::Right, |row| event(row, |events| events.notices.to_string())),
    ("TERMINATED", Column::Right, |row| event(row, |events| events.terminations.to_string())),
    ("RECLAIMED", Column::Right, |row| event(row, |events| Bytes(events.reclaimed_bytes.into()).to_string())),
];
const ACCOUNTS: [Cells<TimeRow>; 5] = [
    ("ACCOUNT", Column::Last, |row| row.account.as_str().into()),
    ("ALLOCATED", Column::Right, |row| hours(row.time, 0).into()),
    ("USED", Column::Right, |row| hours(row.time, 1).into()),
    ("IDLE", Column::Right, |row| hours(row.time, 2).into()),
    ("UNKNOWN", Column::Right, |row| hours(row.time, 3).into()),
];
const NODES: [Cells<NodeRow>; 4] = [
    ("NODE", Column::Last, |row| row.node.as_str().into()),
    ("GPUS", Column::Right, |row| or_unknown(row.gpus.map(|gpus| gpus.to_string())).into()),
    ("GPU-HOURS", Column::Right, |row| or_unknown(row.gpu_seconds.map(in_hours)).into()),
    ("NO DATA", Column::Right, |row| or_unknown(row.no_data_gpu_seconds.map(in_hours)).into()),
];

/// Returns the report as lines of this width.
pub(super) fn text(rows: &Rows, width: usize, colors: Colors) -> String {
    let mut lines = vec![summary(rows), String::new()];
    lines.extend(Table::of(&USERS, &rows.users).lines(width, colors));
    lines.extend(rows.users.is_empty().then(|| "No user held a GPU.".to_owned()));
    let mut teams = USERS;
    teams[0].0 = "TEAM";
    let tables = [
        Table::of(&teams, &rows.teams),
        Table::of(&ACCOUNTS, &rows.accounts),
        Table::of(&NODES, &rows.nodes),
    ];
    for table in tables {
        let table = table.lines(width, colors);
        lines.extend((!table.is_empty()).then(String::new));
        lines.extend(table);
    }
    lines.extend((!rows.notes.is_empty()).then(String::new));
    lines.extend(rows.notes.iter().map(|note| format!("note: {}", line(note))));
    lines.join("\n") + "\n"
}

/// Returns the sums of the period in one line.
pub(super) fn summary(rows: &Rows) -> String {
    let [held, used, idle, unknown] = tenths(rows.total()).map(one_decimal);
    let (all, no_data) = rows.nodes_total();
    let held =
        if rows.users.iter().any(|user| user.time.is_none()) { format!("at least {held}") } else { held };
    format!(
        "{} to {}: {} GPU-hours held: {used} used, {idle} idle, {unknown} unknown. \
         The nodes had {} GPU-hours, {} without data.",
        rows.from,
        rows.to,
        held,
        in_hours(all),
        in_hours(no_data)
    )
}

/// Returns held, used, idle and unknown hours.
pub(super) fn user_time(row: &UserRow) -> Option<[String; 4]> {
    row.time.map(|time| tenths(time.exact).map(one_decimal))
}

/// Returns the allocated, used, idle and unknown hours of an account, or of a column of the chart.
pub(super) fn times(time: Seconds) -> [String; 4] {
    tenths(time.exact).map(one_decimal)
}

/// Returns the GiB-hours of a user.
pub(super) fn memory(row: &UserRow) -> String {
    let bound = if row.memory_is_lower_bound { "≥ " } else { "" };
    or_unknown(row.memory_gib_hours.map(|hours| format!("{bound}{hours:.1}")))
}

/// Returns the kWh of a user.
pub(super) fn energy(row: &UserRow) -> String {
    or_unknown(row.energy_kwh.map(|energy| format!("{energy:.2}")))
}

/// Formats seconds as hours.
pub(super) fn in_hours(seconds: u64) -> String {
    one_decimal(seconds.saturating_add(180) / 360)
}

/// Returns held hours in tenths, and the parts of them.
pub(super) fn tenths(time: GpuTime) -> [u64; 4] {
    time.in_units(TENTH)
}

fn user_hours(row: &UserRow, part: usize) -> Cell {
    row.time.map_or_else(|| UNKNOWN.into(), |time| hours(time, part).into())
}

fn hours(time: Seconds, part: usize) -> String {
    one_decimal(tenths(time.exact)[part])
}

fn event(row: &UserRow, text: fn(EventRow) -> String) -> Cell {
    or_unknown(row.events.map(text)).into()
}

fn one_decimal(tenths: u64) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// Returns the largest held time of the columns in tenths of GPU-hours.
pub(super) fn tallest(columns: &[ColumnRow]) -> u64 {
    columns.iter().map(|column| tenths(column.time.exact)[0]).max().unwrap_or_default()
}
