//! Where snapshots come from: the exporter where it runs, else looks of our own.

#![expect(
    clippy::disallowed_methods,
    reason = "waits between two looks, and compares a snapshot's time with now"
)]

use std::thread;
use std::time::Duration;

use bailiff_sampler::{Claims, Launcher, Settings, Supervisor};
use bailiff_snapshot::{Fault, Snapshot, Source, Stuck, wire};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::flags;
use super::pool::Asked;
use crate::exit::Failure;
use crate::output::print_message;
use crate::stream::{Stream, StreamError};

/// The exporter answers at once; a driver that hangs does not hold it up.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long one step of a look may take, at most.
const STEP: Duration = Duration::from_secs(2);
/// A snapshot that is older than so many intervals, and this, is no news.
const STALE: (u32, Duration) = (3, Duration::from_secs(5));

/// Who looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    /// bailiff-exporter.
    Exporter,
    /// This command.
    Itself,
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) snapshot: wire::Snapshot,
    pub(crate) by: By,
    /// How old it is.
    pub(crate) age: Duration,
    /// What is wrong with the driver, where that was told in words.
    pub(crate) words: Option<String>,
    /// What is wrong with the pool of leases.
    pub(crate) error: Option<String>,
}

/// Where snapshots come from.
pub(crate) enum SnapshotSource {
    /// The exporter.
    Exporter(Box<Exporter>),
    /// Our own.
    Own(Box<Own>),
}

impl SnapshotSource {
    /// Asks the exporter, and where it tells nothing new, looks itself.
    pub(crate) fn open(flags: &flags::Look) -> Result<Self, Failure> {
        if !flags.alone {
            match listen(flags) {
                Ok(exporter) => return Ok(Self::Exporter(Box::new(exporter))),
                Err(None) => {}
                Err(Some(why)) => {
                    print_message(format_args!(
                        "bailiff-exporter at {}: {why}; looking without it",
                        flags.exporter.stream.display()
                    ));
                }
            }
        }
        Ok(Self::Own(Box::new(Own::start(flags)?)))
    }

    /// The next snapshot; the first at once, or as soon as there is one.
    pub(crate) fn next(&mut self) -> Result<Seen, Failure> {
        match self {
            Self::Exporter(exporter) => exporter.next(),
            Self::Own(own) => own.next(),
        }
    }
}

/// The exporter's stream.
pub(crate) struct Exporter {
    stream: Stream,
    /// What it told first.
    first: Option<wire::Snapshot>,
    /// How long an interval may take.
    patience: Duration,
    /// The pool, where the exporter was not told of one.
    pool: Option<Asked>,
}

impl Exporter {
    fn next(&mut self) -> Result<Seen, Failure> {
        let next = self.first.take().map_or_else(|| self.stream.next(self.patience), Ok);
        let mut snapshot = next.map_err(|silence| {
            Failure::unavailable(format!("bailiff-exporter tells nothing any more: {silence}"))
        })?;
        if let Some(pool) = &mut self.pool {
            snapshot.leases = pool.tell();
        }
        let error = self.pool.as_ref().and_then(|pool| pool.error.clone());
        Ok(Seen { age: age(&snapshot), snapshot, by: By::Exporter, words: None, error })
    }
}

/// The exporter, where it tells what is new; why not, unless there simply is none.
fn listen(flags: &flags::Look) -> Result<Exporter, Option<String>> {
    let why = |silence: StreamError| (!matches!(silence, StreamError::Nobody)).then(|| silence.to_string());
    let mut stream = Stream::open(&flags.exporter.stream, PATIENCE).map_err(why)?;
    let first = stream.next(PATIENCE).map_err(why)?;
    let (age, interval) = (age(&first), Duration::from_millis(first.interval_ms));
    if is_stale(age, interval) {
        return Err(Some(format!("its newest look is {} s old", age.as_secs())));
    }
    let pool =
        (!first.sources.contains_key("redis")).then(|| Asked::open(&flags.pool, &flags.machine.procfs));
    Ok(Exporter { stream, first: Some(first), patience: limit(interval), pool })
}

/// How old a snapshot of this machine is.
pub(crate) fn age(snapshot: &wire::Snapshot) -> Duration {
    since_boot().saturating_sub(Duration::from_millis(snapshot.boot_ms))
}

/// The time since this machine was booted, suspend included.
pub(super) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Whether a snapshot is so old that intervals must have been missed.
pub(crate) fn is_stale(age: Duration, interval: Duration) -> bool {
    age > limit(interval)
}

/// How long the next snapshot may take.
fn limit(interval: Duration) -> Duration {
    interval.saturating_mul(STALE.0).saturating_add(STALE.1)
}

/// Looks of our own.
pub(crate) struct Own {
    supervisor: Supervisor,
    pool: Asked,
    interval: Duration,
    seq: u64,
    last: Option<Snapshot>,
}

impl Own {
    fn start(flags: &flags::Look) -> Result<Self, Failure> {
        let settings = Settings {
            nvml_library: flags.machine.nvml_library.clone(),
            procfs: flags.machine.procfs.clone(),
            interval: flags.interval,
            deadline: flags.deadline.min(STEP),
            open_deadline: flags.deadline,
            claims: Claims::Read,
            ..Settings::default()
        };
        let launcher = Launcher::start(&settings)?;
        Ok(Self {
            supervisor: Supervisor::new(launcher, settings),
            pool: Asked::open(&flags.pool, &flags.machine.procfs),
            interval: flags.interval,
            seq: 0,
            last: None,
        })
    }

    /// Use is what happens between two looks, so the first snapshot takes two; where somebody may be stuck, three.
    fn next(&mut self) -> Result<Seen, Failure> {
        let first = self.last.is_none();
        if first {
            self.look()?;
        }
        if !first || !self.last.as_ref().is_some_and(is_hopeless) {
            thread::sleep(self.interval);
            self.look()?;
        }
        // Who seems to be stuck was perhaps on its way: another look shows it.
        if first && self.last.as_ref().is_some_and(|last| last.processes.values().any(Stuck::may_be)) {
            thread::sleep(self.interval);
            self.look()?;
        }
        let snapshot = self.last.as_ref().map(wire::Snapshot::from).ok_or_else(gone)?;
        let words = self.supervisor.words().map(str::to_owned);
        let error = self.pool.error.clone();
        Ok(Seen { age: age(&snapshot), snapshot, by: By::Itself, words, error })
    }

    /// Looks once; a driver that is being opened is waited for, as long as it may take.
    fn look(&mut self) -> Result<(), Failure> {
        loop {
            self.seq += 1;
            let mut sample = self.supervisor.look(self.seq).ok_or_else(gone)?;
            sample.leases = self.pool.tell();
            let starting =
                sample.sources.get(&Source::Nvml).and_then(|state| state.fault) == Some(Fault::Starting);
            self.last = Some(Snapshot::between(self.last.as_ref(), sample));
            if !starting {
                return Ok(());
            }
        }
    }
}

/// No GPU is known, so a second look would have nothing to be compared with.
fn is_hopeless(snapshot: &Snapshot) -> bool {
    snapshot.gpus.is_empty()
}

fn gone() -> Failure {
    Failure::unavailable("the process that looks at the driver has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_interval_is_news_and_a_hung_exporter_is_not() {
        let seconds = Duration::from_secs;
        for (age, interval, stale) in
            [(0, 5, false), (20, 5, false), (21, 5, true), (5, 0, false), (6, 0, true)]
        {
            assert_eq!(
                is_stale(seconds(age), seconds(interval)),
                stale,
                "{age} s, an interval of {interval} s"
            );
        }
    }
}
