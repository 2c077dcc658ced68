//! Table of the sources: whether each responded, how old its response is, and how long it took.

use std::time::Duration;

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::Span;
use bailiff_snapshot::{Fault, Snapshot, Source, SourceState};

use super::reasons;

const TABLE: Table<4> = Table {
    id: "sources-table",
    caption: "Data sources and their last responses.",
    columns: [("source", ""), ("state", "wide"), ("answered", "n"), ("took", "n")],
    most: Source::ALL.len(),
    rest: "",
};

/// Writes the table and the driver's versions.
pub(super) fn write(snapshot: &Snapshot, age: Duration, html: &mut Html) {
    let rows: Vec<(Source, SourceState)> =
        snapshot.sources.iter().map(|(source, state)| (*source, *state)).collect();
    html.section("sources", "Sources", |html| {
        TABLE.write(html, &rows, |(source, state)| {
            cells(*source, *state, asked(*source, snapshot).map(|before| age + before))
        });
        html.paragraph("dim", &driver(snapshot));
    });
}

fn cells(source: Source, state: SourceState, age: Option<Duration>) -> [Cell; 4] {
    let name = match source {
        Source::Nvml => Cell::Named("nvml".to_owned(), "the driver".to_owned()),
        Source::Proc => Cell::Named("proc".to_owned(), "processes".to_owned()),
        Source::Redis => Cell::Named("redis".to_owned(), "leases".to_owned()),
        Source::Quota => Cell::Named("quota".to_owned(), "quota files".to_owned()),
        Source::Mps => Cell::Named("mps".to_owned(), "control daemons".to_owned()),
        Source::Slurm => Cell::Named("slurm".to_owned(), "GPUs of jobs".to_owned()),
        Source::PodResources => Cell::Named("pod_resources".to_owned(), "GPUs of pods".to_owned()),
    };
    let took = state.took.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3));
    // A driver that reports no GPUs has answered.
    let answered = matches!(state.fault, None | Some(Fault::NoDevices));
    let answer = match state.fault {
        None => "up".into(),
        Some(fault) if answered => reasons::fault(fault).into(),
        Some(fault) => Cell::Bad(format!("down: {}", reasons::fault(fault))),
    };
    [
        name,
        answer,
        Cell::of(
            age.filter(|_| answered).map(|age| format!("{} ago", Span(age))),
            if answered { "" } else { "no response" },
        ),
        Cell::of(took, if answered { "not measured" } else { "no response" }),
    ]
}

/// Returns how long before the snapshot a source was last queried.
fn asked(source: Source, snapshot: &Snapshot) -> Option<Duration> {
    let before = |boot_ms| snapshot.at.boot.saturating_sub(Duration::from_millis(boot_ms));
    match source {
        Source::Nvml | Source::Proc | Source::Quota | Source::Slurm => Some(Duration::ZERO),
        Source::Redis => snapshot.leases.as_ref().map(|leases| before(leases.boot_ms)),
        Source::PodResources => snapshot.pods.as_ref().map(|pods| before(pods.boot_ms)),
        Source::Mps => {
            let answers = snapshot.mps.as_ref()?.daemons.iter().filter_map(|daemon| daemon.answer.as_ref());
            answers.map(|answer| before(answer.boot_ms)).max()
        }
    }
}

fn driver(snapshot: &Snapshot) -> String {
    let driver = &snapshot.driver;
    let or_unknown = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
    let cuda = driver.cuda.map_or_else(|| "unknown".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    format!("Driver {}, NVML {}, CUDA up to {cuda}.", or_unknown(&driver.version), or_unknown(&driver.nvml))
}
