//! Metrics of sampling: sources, gaps, versions.

use bailiff_exposition::{Labels, PRESENT, Writer};
use bailiff_snapshot::{Driver, Fault, Gap, Snapshot};

use crate::metrics;

pub(super) fn write(snapshot: &Snapshot, dropped: u64, page: &mut Writer<'_>) {
    let none = Labels::default();
    page.put(&metrics::PROCESSES_DROPPED, &none, dropped);
    sources(snapshot, page);
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
    for source in snapshot.sources.keys() {
        page.put_as((&metrics::SOURCE_UP, "source", source.name()), &none, false);
    }
    for source in snapshot.sources.keys() {
        let labels = none.clone().with("source", source.name()).with("reason", Fault::Outdated.name());
        page.put(&metrics::SOURCE_FAULT_INFO, &labels, PRESENT);
    }
    page.put(&metrics::SNAPSHOT_TIMESTAMP, &none, snapshot.at.wall.as_secs_f64());
    page.put(&metrics::SNAPSHOTS, &none, snapshot.seq);
}

/// Writes the exporter's version, which is known without a sample.
pub(super) fn write_build(page: &mut Writer<'_>) {
    let version = Labels::default().with("version", env!("CARGO_PKG_VERSION"));
    page.put(&metrics::BUILD_INFO, &version, PRESENT);
}

fn sources(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let none = Labels::default();
    for (source, state) in &snapshot.sources {
        page.put_as((&metrics::SOURCE_UP, "source", source.name()), &none, state.fault.is_none());
    }
    for (source, state) in &snapshot.sources {
        if let Some(fault) = state.fault {
            let labels = none.clone().with("source", source.name()).with("reason", fault.name());
            page.put(&metrics::SOURCE_FAULT_INFO, &labels, PRESENT);
        }
    }
    for (source, state) in &snapshot.sources {
        if let Some(took) = state.took {
            page.put_as((&metrics::SOURCE_DURATION, "source", source.name()), &none, took.as_secs_f64());
        }
    }
}

fn driver(driver: &Driver) -> Labels {
    let cuda = driver.cuda.map(|(major, minor)| format!("{major}.{minor}"));
    Labels::default()
        .maybe("version", driver.version.as_deref())
        .maybe("nvml", driver.nvml.as_deref())
        .maybe("cuda", cuda.as_deref())
}
