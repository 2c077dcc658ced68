//! Metrics of sampling: sources, gaps, versions.

use bailiff_exposition::{Labels, PRESENT, Writer};
use bailiff_snapshot::{Driver, Fault, Gap, Snapshot, Source, SourceState};

use crate::metrics;

pub(super) fn write(snapshot: &Snapshot, dropped: u64, page: &mut Writer<'_>) {
    let none = Labels::default();
    page.put(&metrics::PROCESSES_DROPPED, &none, dropped);
    let sources: Vec<_> = snapshot.sources.iter().map(|(source, state)| (label(*source), state)).collect();
    write_sources(&sources, page);
    page.put(&metrics::SNAPSHOT_DURATION, &none, snapshot.took.as_secs_f64());
    page.put(&metrics::SNAPSHOT_TIMESTAMP, &none, snapshot.at.wall.as_secs_f64());
    page.put(&metrics::SNAPSHOTS, &none, snapshot.seq);
    page.put_as((&metrics::PID_NAMESPACE_INFO, "pid_namespace", snapshot.namespace.name()), &none, PRESENT);
    for gap in Gap::ALL {
        page.put_as((&metrics::GAPS, "gap", gap.name()), &none, snapshot.gaps.of(gap));
    }
    page.put(&metrics::WORKERS_HUNG, &none, snapshot.workers_hung);
    let driver = driver(&snapshot.driver);
    if driver != none {
        page.put(&metrics::DRIVER_INFO, &driver, PRESENT);
    }
}

/// Writes time and number of an outdated snapshot, and all of its sources as down.
pub(super) fn write_outdated(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let none = Labels::default();
    let outdated = SourceState::down(Fault::Outdated);
    let sources: Vec<_> = snapshot.sources.keys().map(|source| (label(*source), &outdated)).collect();
    write_sources(&sources, page);
    page.put(&metrics::SNAPSHOT_TIMESTAMP, &none, snapshot.at.wall.as_secs_f64());
    page.put(&metrics::SNAPSHOTS, &none, snapshot.seq);
}

/// Writes the exporter's version, which is known without a sample.
pub(super) fn write_build(page: &mut Writer<'_>) {
    let version = Labels::default().with("version", env!("CARGO_PKG_VERSION"));
    page.put(&metrics::BUILD_INFO, &version, PRESENT);
}

fn label(source: Source) -> Labels {
    Labels::default().with("source", source.name())
}

fn write_sources(sources: &[(Labels, &SourceState)], page: &mut Writer<'_>) {
    page.rows(&metrics::SOURCE_UP, sources, |state| Some(state.fault.is_none()));
    page.rows_as((&metrics::SOURCE_FAULT_INFO, "reason"), sources, |state| {
        Some((state.fault?.name(), PRESENT))
    });
    page.rows(&metrics::SOURCE_DURATION, sources, |state| Some(state.took?.as_secs_f64()));
}

fn driver(driver: &Driver) -> Labels {
    let cuda = driver.cuda.map(|(major, minor)| format!("{major}.{minor}"));
    Labels::default()
        .maybe("version", driver.version.as_deref())
        .maybe("nvml", driver.nvml.as_deref())
        .maybe("cuda", cuda.as_deref())
}
