//! The status page for people: the newest snapshot as tables. It works without scripts.

use std::cmp::Reverse;
use std::fmt::{self, Display, Write};
use std::time::Duration;

use bailiff_snapshot::{Fault, Gpu, Holder, Process, Snapshot, Utilization, snapshot::user_label};

use crate::page::labels::bounded;
use crate::published::Published;

const STYLE: &str = include_str!("landing.css");
/// Seconds until a browser asks again.
const REFRESH: u32 = 5;
/// What stands where nothing was observed.
const UNKNOWN: &str = "–";

/// What is shown.
#[derive(Debug)]
pub struct View<'a> {
    /// The newest snapshot.
    pub published: Option<&'a Published>,
    /// Its age.
    pub age: Option<Duration>,
    /// Where the page of metrics is.
    pub telemetry: &'a str,
}

impl View<'_> {
    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        let mut html = Html(String::new());
        html.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
        html.raw(&format!("<meta http-equiv=\"refresh\" content=\"{REFRESH}\">"));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        html.raw("<meta name=\"viewport\" content=\"width=device-width\"><title>");
        html.text(&host);
        html.raw(" · GPU Bailiff</title><style>");
        html.raw(STYLE);
        html.raw("</style></head><body><h1>GPUs of ");
        html.text(&host);
        html.raw("</h1><p class=\"dim\">GPU Bailiff exporter ");
        html.raw(env!("CARGO_PKG_VERSION"));
        html.raw(" · <a href=\"");
        html.text(self.telemetry);
        html.raw("\">metrics</a> · <a href=\"/-/healthy\">health</a> · ");
        html.raw(&self.age.map_or_else(|| "no snapshot yet".to_owned(), |age| format!("{} ago", Span(age))));
        html.raw("</p>");
        if let Some(published) = self.published {
            sources(&published.snapshot, &mut html);
            gpus(&published.snapshot, &mut html);
            holders(published, &mut html);
        }
        html.raw("</body></html>\n");
        html.0
    }
}

/// HTML in the making: text is escaped, so nothing that a process is called becomes a part of the page.
struct Html(String);

impl Html {
    fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    fn text(&mut self, text: &str) {
        for character in bounded(text).chars() {
            match character {
                '&' => self.raw("&amp;"),
                '<' => self.raw("&lt;"),
                '>' => self.raw("&gt;"),
                '"' => self.raw("&quot;"),
                '\'' => self.raw("&#39;"),
                other => self.0.push(other),
            }
        }
    }

    fn table(&mut self, title: &str, columns: &[Column]) {
        self.raw("<h2>");
        self.text(title);
        self.raw("</h2><table><thead><tr>");
        for (name, class) in columns {
            self.cell("th", class, name);
        }
        self.raw("</tr></thead><tbody>");
    }

    fn row(&mut self, columns: &[Column], cells: &[String]) {
        self.raw("<tr>");
        for ((_, class), cell) in columns.iter().zip(cells) {
            self.cell("td", class, cell);
        }
        self.raw("</tr>\n");
    }

    fn cell(&mut self, tag: &str, class: &str, text: &str) {
        let class = if text.starts_with("down") { "bad" } else { class };
        self.raw(&format!("<{tag} class=\"{class}\">"));
        self.text(text);
        self.raw(&format!("</{tag}>"));
    }

    fn end_table(&mut self) {
        self.raw("</tbody></table>");
    }
}

/// A column's title and class: `n` is for numbers.
type Column = (&'static str, &'static str);

const SOURCES: [Column; 3] = [("source", ""), ("state", ""), ("took", "n")];
const GPUS: [Column; 9] = [
    ("GPU", ""),
    ("name", ""),
    ("used", "n"),
    ("of", "n"),
    ("unaccounted", "n"),
    ("in use", "n"),
    ("°C", "n"),
    ("processes", "n"),
    ("UUID", "dim"),
];
const HOLDERS: [Column; 9] = [
    ("GPU", ""),
    ("pid", "n"),
    ("user", ""),
    ("process", ""),
    ("where", ""),
    ("memory", "n"),
    ("busy", "n"),
    ("idle for", "n"),
    ("state", ""),
];

fn sources(snapshot: &Snapshot, html: &mut Html) {
    html.table("Sources", &SOURCES);
    for (source, state) in &snapshot.sources {
        let took = state.took.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3));
        html.row(&SOURCES, &[source.name().to_owned(), up_or_why(state.fault), or_unknown(took)]);
    }
    html.end_table();
}

fn up_or_why(fault: Option<Fault>) -> String {
    fault.map_or_else(|| "up".to_owned(), |fault| format!("down: {}", fault.name().replace('_', " ")))
}

fn gpus(snapshot: &Snapshot, html: &mut Html) {
    html.table("GPUs", &GPUS);
    for gpu in &snapshot.gpus {
        html.row(&GPUS, &gpu_cells(gpu));
    }
    html.end_table();
}

fn gpu_cells(gpu: &Gpu) -> [String; 9] {
    let name = gpu.about.name.clone();
    [
        gpu.about.index.clone(),
        gpu.fault.map_or_else(|| or_unknown(name), |fault| up_or_why(Some(fault))),
        or_unknown(gpu.memory.map(|memory| Bytes(memory.used.into()))),
        or_unknown(gpu.memory.map(|memory| Bytes(memory.total.into()))),
        or_unknown(gpu.parts.map(|parts| Bytes(parts.unaccounted.into()))),
        or_unknown(gpu.telemetry.utilization.map(|percent| format!("{percent} %"))),
        or_unknown(gpu.telemetry.temperature),
        or_unknown(gpu.listed),
        or_unknown(gpu.about.id.as_ref().map(|id| &id.0)),
    ]
}

fn holders(published: &Published, html: &mut Html) {
    let snapshot = &published.snapshot;
    html.table("Who holds them", &HOLDERS);
    let mut left_out = 0_u64;
    for gpu in &snapshot.gpus {
        let mut holders: Vec<&Holder> = gpu.holders.iter().collect();
        // The largest first, and before them those of which the driver does not say.
        holders.sort_by_key(|holder| Reverse(holder.memory.unwrap_or(u64::MAX)));
        for holder in holders {
            if published.selection.shows(holder.process) {
                html.row(&HOLDERS, &holder_cells(gpu, holder, snapshot.processes.get(&holder.process)));
            } else {
                left_out += 1;
            }
        }
    }
    html.end_table();
    if left_out > 0 {
        html.raw(&format!("<p class=\"dim\">and {left_out} more, which hold less</p>"));
    }
}

fn holder_cells(gpu: &Gpu, holder: &Holder, process: Option<&Process>) -> [String; 9] {
    let facts = process.and_then(|process| process.facts.as_ref());
    let state = process.map(|process| process.state.name().replace('_', " "));
    let place = facts.map(|facts| &facts.place);
    let pod = place.and_then(|place| place.pod.clone().or_else(|| place.pod_uid.clone()));
    let job = || place?.slurm_job.as_ref().map(|job| format!("job {job}"));
    let other = || place.and_then(|place| place.container.clone().or_else(|| place.unit.clone()));
    let idle = holder.utilization.percent().map(|_| Span(holder.idle));
    [
        gpu.about.index.clone(),
        holder.process.pid().to_string(),
        or_unknown(facts.and_then(user_label)),
        or_unknown(facts.map(|facts| facts.comm.clone())),
        or_unknown(pod.or_else(job).or_else(other)),
        or_unknown(holder.memory.map(|bytes| Bytes(bytes.into()))),
        match holder.utilization {
            Utilization::Observed(engines) => format!("{} %", engines.busiest()),
            Utilization::Unknown(_) => "unknown".to_owned(),
        },
        or_unknown(idle),
        or_unknown(state),
    ]
}

fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// Bytes as people say them.
struct Bytes(i128);

impl Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut tenths = self.0 * 10;
        let mut unit = 0;
        while tenths.abs() >= 10_240 && unit + 1 < UNITS.len() {
            tenths /= 1024;
            unit += 1;
        }
        if tenths < 0 {
            out.write_char('-')?;
        }
        let tenths = tenths.unsigned_abs();
        match unit {
            0 => write!(out, "{} B", tenths / 10),
            _ => write!(out, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
        }
    }
}

/// A time as people say it, in its two largest units.
struct Span(Duration);

impl Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..60 => write!(out, "{seconds} s"),
            60..3600 => write!(out, "{} min {} s", seconds / 60, seconds % 60),
            3600..86_400 => write!(out, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(out, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (-(3 << 30), "-3.0 GiB"),
            (80 << 30, "80.0 GiB"),
        ];
        for (bytes, expected) in sizes {
            assert_eq!(Bytes(bytes).to_string(), expected);
        }
        for (seconds, expected) in [(5, "5 s"), (65, "1 min 5 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(Span(Duration::from_secs(seconds)).to_string(), expected);
        }
    }

    #[test]
    fn names_are_text_and_never_markup() {
        let mut html = Html(String::new());
        html.text("<script>\"x\"&'y'</script>");
        assert_eq!(html.0, "&lt;script&gt;&quot;x&quot;&amp;&#39;y&#39;&lt;/script&gt;");
    }

    #[test]
    fn before_the_first_snapshot_there_is_a_page_as_well() {
        let html = View { published: None, age: None, telemetry: "/metrics" }.html();
        assert!(html.contains("no snapshot yet") && html.contains("href=\"/metrics\""));
    }
}
