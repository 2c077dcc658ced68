//! Metrics of sampling (sources, gaps, versions), and the tail of the page: values at the time of a request.

use std::time::Duration;

use bailiff_exposition::own::{self, Own};
use bailiff_exposition::{Labels, PRESENT, Writer};
use bailiff_snapshot::{Driver, Fault, Gap, Snapshot, Source, SourceState};

use crate::metrics;
use crate::requests::Count;

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

/// Values at the time of a request.
#[derive(Debug, Default)]
pub struct Moment {
    /// Time since the snapshot was started; `None` before the first.
    pub age: Option<Duration>,
    /// Responses so far; `None` without a server.
    pub requests: Option<Vec<Count>>,
    /// Connections refused so far.
    pub refused: u64,
    /// Clients of the stream; `None` without a stream.
    pub stream_clients: Option<u64>,
    /// Snapshots that could not be recorded; `None` without a record.
    pub record_failures: Option<u64>,
    /// Resource use of this process.
    pub own: Own,
}

pub(super) fn write_moment(moment: &Moment, page: &mut Writer<'_>) {
    let none = Labels::default();
    let rows = [(&none, moment)];
    page.rows(&metrics::SNAPSHOT_AGE, &rows, |moment| Some(moment.age?.as_secs_f64()));
    if let Some(requests) = &moment.requests {
        for count in requests {
            let labels = none.clone().with("path", &count.path).with("code", &count.code.to_string());
            page.put(&metrics::HTTP_REQUESTS, &labels, count.requests);
        }
        page.put(&metrics::HTTP_REFUSED, &none, moment.refused);
    }
    page.rows(&metrics::STREAM_CLIENTS, &rows, |moment| moment.stream_clients);
    page.rows(&metrics::RECORD_FAILURES, &rows, |moment| moment.record_failures);
    own::write(&moment.own, page);
}
