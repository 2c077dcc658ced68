//! The sources of snapshots: the exporter if it is running, else direct sampling.

#![expect(
    clippy::disallowed_methods,
    reason = "waits between two samples, and compares a snapshot's time with the clock"
)]

use std::path::Path;
use std::thread;
use std::time::Duration;

use bailiff_lease::report::Node;
use bailiff_lease::{LeaseError, Leases};
use bailiff_proc::clock::since_boot;
use bailiff_sampler::{Claims, Launcher, SamplerSettings, Supervisor};
use bailiff_snapshot::{Fault, Leases as LeaseSample, PidNamespace, Snapshot, Source, Stuck, wire};
use serde::{Deserialize, Serialize};

use super::flags;
use crate::exit::Failure;
use crate::output::print_message;
use crate::stream::{Stream, StreamError};

/// Timeout of the exporter, which responds immediately even if the driver hangs.
const EXPORTER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum deadline of one driver call.
const CALL_DEADLINE: Duration = Duration::from_secs(2);
/// A snapshot is stale if it is older than this number of intervals plus this time.
const STALE: (u32, Duration) = (3, Duration::from_secs(5));

/// The program that took the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SeenBy {
    /// bailiff-exporter.
    Exporter,
    /// This command.
    Itself,
}

/// A snapshot with its source.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) snapshot: wire::Snapshot,
    pub(crate) by: SeenBy,
    pub(crate) age: Duration,
    /// The driver's error message.
    pub(crate) driver_message: Option<String>,
    /// The error of the lease pool.
    pub(crate) error: Option<String>,
}

/// A source of snapshots.
pub(crate) trait SnapshotSource {
    /// Returns the next snapshot; the first one immediately if possible.
    fn next(&mut self) -> Result<Collected, Failure>;
}

/// Connects to the exporter; samples directly if it is not running or its snapshots are stale.
pub(crate) fn open(flags: &flags::SourceFlags) -> Result<Box<dyn SnapshotSource>, Failure> {
    if !flags.alone {
        match connect(flags) {
            Ok(exporter) => return Ok(Box::new(exporter)),
            Err(None) => {}
            Err(Some(why)) => {
                print_message(format_args!(
                    "bailiff-exporter at {}: {why}; sampling the driver directly",
                    flags.exporter.stream.display()
                ));
            }
        }
    }
    Ok(Box::new(LocalSampler::start(flags)?))
}

/// The exporter's stream.
struct Exporter {
    stream: Stream,
    /// First snapshot, read when the connection was made.
    first: Option<wire::Snapshot>,
    /// The timeout of the next snapshot.
    timeout: Duration,
    /// Reader of the lease pool, if the exporter does not read the pool.
    pool: Option<PoolReader>,
}

impl SnapshotSource for Exporter {
    fn next(&mut self) -> Result<Collected, Failure> {
        let next = self.first.take().map_or_else(|| self.stream.next(self.timeout), Ok);
        let mut snapshot = next.map_err(|error| {
            Failure::unavailable(format!("bailiff-exporter no longer sends snapshots: {error}"))
        })?;
        if let Some(pool) = &mut self.pool {
            snapshot.leases = pool.read();
        }
        let error = self.pool.as_ref().and_then(|pool| pool.error.clone());
        Ok(Collected { age: age(&snapshot), snapshot, by: SeenBy::Exporter, driver_message: None, error })
    }
}

/// Connects to the exporter. The error is the reason, or `None` if no exporter is running.
fn connect(flags: &flags::SourceFlags) -> Result<Exporter, Option<String>> {
    let why = |error: StreamError| (!matches!(error, StreamError::NotListening)).then(|| error.to_string());
    let mut stream = Stream::open(&flags.exporter.stream, EXPORTER_TIMEOUT).map_err(why)?;
    let first = stream.next(EXPORTER_TIMEOUT).map_err(why)?;
    let (age, interval) = (age(&first), Duration::from_millis(first.interval_ms));
    if is_stale(age, interval) {
        return Err(Some(format!("its newest snapshot is {} s old", age.as_secs())));
    }
    let pool =
        (!first.sources.contains_key("redis")).then(|| PoolReader::open(&flags.pool, &flags.machine.procfs));
    Ok(Exporter { stream, first: Some(first), timeout: limit(interval), pool })
}

/// Returns the age of a snapshot of this machine.
pub(crate) fn age(snapshot: &wire::Snapshot) -> Duration {
    since_boot().saturating_sub(Duration::from_millis(snapshot.boot_ms))
}

/// Returns whether a snapshot is so old that samples must have been missed.
pub(crate) fn is_stale(age: Duration, interval: Duration) -> bool {
    age > limit(interval)
}

/// Returns the maximum wait for the next snapshot.
fn limit(interval: Duration) -> Duration {
    interval.saturating_mul(STALE.0).saturating_add(STALE.1)
}

/// Direct sampling of the driver and `/proc`.
struct LocalSampler {
    supervisor: Supervisor,
    pool: PoolReader,
    interval: Duration,
    seq: u64,
    last: Option<Snapshot>,
}

impl LocalSampler {
    fn start(flags: &flags::SourceFlags) -> Result<Self, Failure> {
        let settings = SamplerSettings {
            nvml_library: flags.machine.nvml_library.clone(),
            procfs: flags.machine.procfs.clone(),
            interval: flags.interval,
            deadline: flags.deadline.min(CALL_DEADLINE),
            open_deadline: flags.deadline,
            claims: Claims::Read,
            notebooks: true,
            ..SamplerSettings::default()
        };
        let launcher = Launcher::start(&settings)?;
        Ok(Self {
            supervisor: Supervisor::new(launcher, settings),
            pool: PoolReader::open(&flags.pool, &flags.machine.procfs),
            interval: flags.interval,
            seq: 0,
            last: None,
        })
    }

    /// Takes one sample; waits while the driver is being opened.
    fn sample(&mut self) -> Result<(), Failure> {
        loop {
            self.seq += 1;
            let mut sample = self.supervisor.sample(self.seq).ok_or_else(helper_exited)?;
            sample.leases = self.pool.read();
            let starting = Source::Nvml.fault(&sample.sources) == Some(Fault::Starting);
            self.last = Some(Snapshot::between(self.last.as_ref(), sample));
            if !starting {
                return Ok(());
            }
        }
    }
}

impl SnapshotSource for LocalSampler {
    /// Returns the next snapshot. Utilization needs two samples, so the first snapshot takes two, or three if
    /// a process may be stuck.
    fn next(&mut self) -> Result<Collected, Failure> {
        let first = self.last.is_none();
        if first {
            self.sample()?;
        }
        if !first || !self.last.as_ref().is_some_and(has_no_gpus) {
            thread::sleep(self.interval);
            self.sample()?;
        }
        // A process that seems stuck may only be exiting; a third sample shows that.
        if first && self.last.as_ref().is_some_and(|last| last.processes.values().any(Stuck::may_be)) {
            thread::sleep(self.interval);
            self.sample()?;
        }
        let snapshot = self.last.as_ref().map(wire::Snapshot::from).ok_or_else(helper_exited)?;
        let driver_message = self.supervisor.words().map(str::to_owned);
        let error = self.pool.error.clone();
        Ok(Collected { age: age(&snapshot), snapshot, by: SeenBy::Itself, driver_message, error })
    }
}

/// Returns whether no GPU is known, so that a second sample adds nothing.
fn has_no_gpus(snapshot: &Snapshot) -> bool {
    snapshot.gpus.is_empty()
}

fn helper_exited() -> Failure {
    Failure::unavailable("the helper process that queries the driver has exited")
}

/// Timeout of a Redis query.
const REDIS_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a lease pool repeatedly.
pub(super) struct PoolReader {
    pool: Option<Box<dyn Leases>>,
    node: Node,
    /// Why the last read failed; `None` if there is no pool.
    pub(super) error: Option<String>,
}

impl PoolReader {
    /// Opens the pool selected by flags and environment.
    pub(super) fn open(flags: &crate::args::Pool, procfs: &Path) -> Self {
        let (pool, error) = match flags.open(REDIS_TIMEOUT) {
            Ok(pool) => (Some(pool), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { pool, node: Node::read(procfs, PidNamespace::Unknown), error }
    }

    /// Reads the current leases; `None` if there is no pool or it cannot be read.
    pub(super) fn read(&mut self) -> Option<LeaseSample> {
        match self.pool.as_mut()?.audit() {
            Ok(audit) => {
                self.error = None;
                return Some(audit.leases(&self.node, since_boot())).filter(|leases| !leases.gpus.is_empty());
            }
            Err(LeaseError::Absent(_)) => {}
            Err(error) => self.error = Some(error.to_string()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_snapshot_is_fresh_and_hung_exporter_is_stale() {
        let seconds = Duration::from_secs;
        for (age, interval, stale) in
            [(0, 5, false), (20, 5, false), (21, 5, true), (5, 0, false), (6, 0, true)]
        {
            assert_eq!(is_stale(seconds(age), seconds(interval)), stale, "{age} s, interval {interval} s");
        }
    }
}
