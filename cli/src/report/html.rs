//! The report as one HTML page with charts. The page has no scripts, and all text is escaped by [`Html`].

use bailiff_exposition::html::{Bar, Cell, Head, Html, Part, Table};
use bailiff_exposition::human::Bytes;

use super::rows::{ColumnRow, EventRow, NodeRow, Rows, TimeRow, UserRow};
use super::text::{energy, in_hours, memory, summary, tallest, tenths, times, user_time};

/// Maximum number of users with a bar, and of rows of a table.
const MOST: (usize, usize) = (20, 1000);
/// Height of a chart in SVG units and CSS pixels, and width of a column with its space.
const CHART: (f64, f64) = (100.0, 10.0);
/// Where to find the rows that a table omits.
const REST: &str = "use --csv or --json.";
/// CSS classes and names of the parts of held time.
const PARTS: [(&str, &str); 3] = [("busy", "used"), ("unaccounted", "idle"), ("reserved", "unknown")];

/// Returns the page.
pub(super) fn html(rows: &Rows) -> String {
    let mut html = Html::begin(&Head { title: "GPU use", heading: "GPU use by user", refresh: None });
    html.element("p", &[], |html| html.prose(&summary(rows)));
    html.main();
    html.notes(&rows.notes);
    html.section("time", "GPU-hours over time", |html| over_time(html, rows));
    let most = rows.timeline.iter().map(|column| column.no_data_gpu_seconds).max().unwrap_or_default();
    if most > 0 {
        html.section("no-data", "GPU-hours without data", |html| without_data(html, rows, most));
    }
    if !rows.users.is_empty() {
        html.section("users-chart", "GPU-hours by user", |html| bars(html, rows));
    }
    html.section("users", "Users", |html| USERS.write(html, &rows.users, user_cells));
    if !rows.teams.is_empty() {
        let mut table = Table { id: "team-table", caption: "The same for the users of each team", ..USERS };
        table.columns[0].0 = "Team";
        html.section("teams", "Teams", |html| table.write(html, &rows.teams, user_cells));
    }
    if !rows.accounts.is_empty() {
        html.section("accounts", "Slurm accounts", |html| accounts(html, &rows.accounts));
    }
    html.section("nodes", "Nodes", |html| nodes(html, &rows.nodes));
    html.end(
        "Used and idle time was observed. Unknown is time in which neither was observed, and time without data. \
         A MIG instance counts as one GPU; a GPU that two users share counts for both.",
    )
}

fn over_time(html: &mut Html, rows: &Rows) {
    let columns = &rows.timeline;
    let most = tallest(columns);
    html.element("div", &[("class", "card")], |html| {
        let [held, used, idle, unknown] = tenths(rows.total());
        let whole = format!("GPU-hours held, at most {} in a column", in_hours(most * 360));
        html.element("p", &[], |html| html.prose(&whole));
        chart(html, &whole, columns, |column| {
            let [_, used, idle, unknown] = tenths(column.time.exact);
            [used, idle, unknown].map(|part| share(part, most)).into()
        });
        ends(html, columns, &rows.to);
        Bar { of: "GPU-hours held", parts: &parts([used, idle, unknown], held) }.legend(html);
    });
}

fn without_data(html: &mut Html, rows: &Rows, most: u64) {
    let whole = format!("At most {} GPU-hours in a column", in_hours(most));
    html.element("div", &[("class", "card")], |html| {
        html.element("p", &[], |html| html.prose(&whole));
        chart(html, &format!("GPU-hours without data. {whole}"), &rows.timeline, |column| {
            vec![0.0, 0.0, share(column.no_data_gpu_seconds, most)]
        });
        ends(html, &rows.timeline, &rows.to);
    });
}

/// Draws a column for each row, with the shares of [`PARTS`] stacked from the bottom.
fn chart(html: &mut Html, label: &str, columns: &[ColumnRow], shares: impl Fn(&ColumnRow) -> Vec<f64>) {
    let (height, width) = CHART;
    #[expect(clippy::cast_precision_loss, reason = "at most some hundred columns")]
    let all = columns.len().max(1) as f64 * width;
    let view = format!("0 0 {all} {height}");
    let attributes = [
        ("role", "img"),
        ("aria-label", label),
        ("width", "100%"),
        ("height", "160"),
        ("viewBox", view.as_str()),
        ("preserveAspectRatio", "none"),
    ];
    html.element("svg", &attributes, |html| {
        let mut left = 0.5;
        for column in columns {
            let [held, used, idle, unknown] = times(column.time);
            html.raw("<g><title>");
            html.plain(&format!(
                "{}: {held} held, {used} used, {idle} idle, {unknown} unknown, {} without data",
                column.from,
                in_hours(column.no_data_gpu_seconds)
            ));
            html.raw("</title>");
            let mut top = height;
            for ((class, _), share) in PARTS.iter().zip(shares(column)) {
                top -= share * height;
                rect(html, class, [left, top, width - 1.0, share * height]);
            }
            html.raw("</g>");
            left += width;
        }
    });
}

fn rect(html: &mut Html, class: &str, [x, y, width, height]: [f64; 4]) {
    if height > 0.0 {
        html.raw("<rect");
        html.attribute("class", class);
        for (name, value) in [("x", x), ("y", y), ("width", width), ("height", height)] {
            html.attribute(name, &format!("{value:.2}"));
        }
        html.raw("/>");
    }
}

/// Writes the start of the first column and the end of the last below a chart.
fn ends(html: &mut Html, columns: &[ColumnRow], to: &str) {
    html.element("p", &[("class", "figure dim")], |html| {
        html.element("span", &[], |html| {
            html.text(columns.first().map_or("", |column| column.from.as_str()));
        });
        html.element("span", &[], |html| html.text(to));
    });
}

fn bars(html: &mut Html, rows: &Rows) {
    let held = |user: &UserRow| Some(tenths(user.time?.exact)[0]);
    let most = rows.users.iter().filter_map(held).max().unwrap_or_default();
    html.element("div", &[("class", "card")], |html| {
        html.list(&[], rows.users.iter().take(MOST.0), |html, user| bar(html, user, most));
    });
}

fn bar(html: &mut Html, user: &UserRow, most: u64) {
    html.element("p", &[("class", "figure")], |html| {
        html.element("span", &[], |html| html.text(user.name.as_str()));
        html.element("span", &[("class", "n")], |html| match user_time(user) {
            Some([held, ..]) => html.text(&format!("{held} h")),
            None => html.unknown("the exporter's counters are missing"),
        });
    });
    if let Some(time) = user.time {
        let [_, used, idle, unknown] = tenths(time.exact);
        let parts = parts([used, idle, unknown], most);
        Bar { of: &format!("GPU-hours of {}", user.name.as_str()), parts: &parts }.draw(html);
    }
}

const USERS: Table<10> = Table {
    id: "user-table",
    caption: "GPU-hours, memory and energy of each user, and what the enforcer did; by GPU-hours held",
    columns: [
        ("User", ""),
        ("Held, h", "n"),
        ("Used, h", "n"),
        ("Idle, h", "n"),
        ("Unknown, h", "n"),
        ("Memory, GiB·h", "n"),
        ("Energy, kWh", "n"),
        ("Notices", "n"),
        ("Terminations", "n"),
        ("Reclaimed", "n"),
    ],
    most: MOST.1,
    rest: REST,
};

fn user_cells(row: &UserRow) -> [Cell; 10] {
    let unknown = || Cell::Unknown("".into());
    let [held, used, idle, not_observed] = user_time(row)
        .map_or_else(|| [unknown(), unknown(), unknown(), unknown()], |time| time.map(Cell::from));
    let event = |text: fn(EventRow) -> String| row.events.map_or_else(unknown, |events| text(events).into());
    let or_unknown = |text: String| if text == "?" { unknown() } else { text.into() };
    [
        row.name.as_str().into(),
        held,
        used,
        idle,
        not_observed,
        or_unknown(memory(row)),
        or_unknown(energy(row)),
        event(|events| events.notices.to_string()),
        event(|events| events.terminations.to_string()),
        event(|events| Bytes(events.reclaimed_bytes.into()).to_string()),
    ]
}

fn accounts(html: &mut Html, accounts: &[TimeRow]) {
    let table = Table {
        id: "account-table",
        caption: "GPU-hours that Slurm allocated to jobs of each account",
        columns: [
            ("Account", ""),
            ("Allocated, h", "n"),
            ("Used, h", "n"),
            ("Idle, h", "n"),
            ("Unknown, h", "n"),
        ],
        most: MOST.1,
        rest: REST,
    };
    table.write(html, accounts, |row| {
        let [held, used, idle, unknown] = times(row.time).map(Cell::from);
        [row.account.as_str().into(), held, used, idle, unknown]
    });
}

fn nodes(html: &mut Html, nodes: &[NodeRow]) {
    let table = Table {
        id: "node-table",
        caption: "GPU-hours of each node, and those without data because the node, its exporter or Prometheus was down",
        columns: [("Node", ""), ("GPUs", "n"), ("GPU-hours", "n"), ("Without data, h", "n")],
        most: MOST.1,
        rest: REST,
    };
    table.write(html, nodes, |row| {
        let hours = |seconds: Option<u64>| Cell::of(seconds.map(in_hours), "");
        [
            row.node.as_str().into(),
            Cell::of(row.gpus, ""),
            hours(row.gpu_seconds),
            hours(row.no_data_gpu_seconds),
        ]
    });
}

/// Returns the parts of a bar, in tenths of hours, of this total.
fn parts(tenths: [u64; 3], total: u64) -> Vec<Part> {
    let part = |((class, name), part): (&(&'static str, &'static str), u64)| Part {
        class,
        name,
        share: share(part, total),
        text: format!("{} h", in_hours(part * 360)),
    };
    PARTS.iter().zip(tenths).map(part).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share for a chart")]
fn share(part: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { part as f64 / total as f64 }
}
