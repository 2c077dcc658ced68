//! The report as CSV: one row for each user, team, account and node. An unknown value is empty.

use super::rows::{NodeRow, Rows, Seconds, TimeRow, UserRow};
use crate::output::{escaped, joined};

const HEADER: &str = "kind,name,held_gpu_seconds,used_gpu_seconds,idle_gpu_seconds,unknown_gpu_seconds,\
                      memory_gib_hours,memory_is_lower_bound,energy_kwh,notices,terminations,reclaimed_bytes,\
                      gpus,gpu_seconds,no_data_gpu_seconds";

/// Returns the report with CRLF line ends (RFC 4180).
pub(super) fn csv(rows: &Rows) -> String {
    let rows = rows
        .users
        .iter()
        .map(|row| user("user", row))
        .chain(rows.teams.iter().map(|row| user("team", row)))
        .chain(rows.accounts.iter().map(account))
        .chain(rows.nodes.iter().map(node));
    let rows = rows.map(|cells| joined(cells, ","));
    joined(std::iter::once(HEADER.to_owned()).chain(rows), "\r\n") + "\r\n"
}

fn user(kind: &str, row: &UserRow) -> Vec<String> {
    let mut cells = vec![kind.to_owned(), name(row.name.as_str())];
    cells.extend(times(row.time));
    cells.extend([
        number(row.memory_gib_hours),
        row.memory_is_lower_bound.to_string(),
        number(row.energy_kwh),
    ]);
    let event = row.events;
    cells.extend([
        number(event.map(|event| event.notices)),
        number(event.map(|event| event.terminations)),
        number(event.map(|event| event.reclaimed_bytes)),
    ]);
    cells.extend(empty(3));
    cells
}

fn account(row: &TimeRow) -> Vec<String> {
    let cells = ["account".to_owned(), name(&row.account)].into_iter().chain(times(Some(row.time)));
    cells.chain(empty(9)).collect()
}

fn node(row: &NodeRow) -> Vec<String> {
    let numbers = [row.gpus, row.gpu_seconds, row.no_data_gpu_seconds].map(number);
    ["node".to_owned(), name(&row.node)].into_iter().chain(empty(10)).chain(numbers).collect()
}

fn times(time: Option<Seconds>) -> [String; 4] {
    [
        time.map(|time| time.held),
        time.map(|time| time.used),
        time.map(|time| time.idle),
        time.map(|time| time.unknown),
    ]
    .map(number)
}

fn empty(cells: usize) -> impl Iterator<Item = String> {
    std::iter::repeat_n(String::new(), cells)
}

fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Quotes a name. Spreadsheets evaluate a cell that begins like a formula, so such a name gets an apostrophe.
fn name(name: &str) -> String {
    let name = escaped(name);
    let is_formula = name.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    format!("\"{}{}\"", if is_formula { "'" } else { "" }, name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_one_cell_and_no_formula() {
        for (text, cell) in [
            ("ada", "\"ada\""),
            ("=HYPERLINK(\"http://evil\",\"x\")", "\"'=HYPERLINK(\"\"http://evil\"\",\"\"x\"\")\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            (" =1", "\"' =1\""),
            ("\t=1", "\"\\t=1\""),
            ("a,b\r\nuser,root", "\"a,b\\r\\nuser,root\""),
            ("\u{202e}x", "\"\\u{202e}x\""),
        ] {
            assert_eq!(name(text), cell, "{text:?}");
        }
    }
}
