//! How a command uses its GPUs, look by look: whether it has left them idle for long enough, and what it had of them.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;

use bailiff_sampler::{Launcher, Settings, Supervisor};
use bailiff_snapshot::{Fault, Sample, Snapshot, Source};

use super::usage::Use;
use crate::command::{Event, pace};
use crate::exit::Failure;
use crate::idle_timeout::visible::Visible;
use crate::idle_timeout::watch::{Count, Look, Rule, Watch};
use crate::say::say;
use crate::tree::Family;

/// The driver keeps its samples for a while only: it is asked so often at least.
const PACE: Duration = Duration::from_secs(5);
/// Fewer samples say nothing.
const FEWEST: u32 = 3;
/// Usage below so many percent is none.
const THRESHOLD: u32 = 1;
/// Samples in a row that may be unknown before they are counted again.
const MAX_GAP: u32 = 2;

/// What is asked of it.
pub(crate) struct Wish {
    /// The command is ended once it was idle for so long.
    pub(crate) idle: Option<Duration>,
    /// There must be a driver.
    pub(crate) needs_driver: bool,
    /// The command is watched once it runs.
    pub(crate) stays: bool,
    /// The driver's library.
    pub(crate) library: Option<PathBuf>,
}

/// Whoever is to look.
pub(crate) struct Looker {
    supervisor: Supervisor,
    /// The number of the next look.
    seq: u64,
    interval: Duration,
    before: Option<Snapshot>,
    watch: Option<Watch>,
    /// There must be a driver.
    needs_driver: bool,
    stays: bool,
    library: Option<PathBuf>,
}

/// A command under watch.
pub(crate) struct Watched {
    pace: Option<pace::Pace>,
    interval: Duration,
    visible: Visible,
    before: Option<Snapshot>,
    watch: Option<Watch>,
    fault: Option<Fault>,
    used: Use,
}

impl Looker {
    /// Starts those who ask the driver.
    pub(crate) fn start(wish: &Wish) -> Result<Self, Failure> {
        let samples = wish.idle.map_or(FEWEST, samples);
        let interval = wish.idle.map_or(PACE, |idle| idle / samples);
        let settings = Settings { nvml_library: wish.library.clone(), interval, ..Settings::default() };
        let supervisor = Supervisor::new(Launcher::start(&settings)?, settings);
        let rule = Rule { threshold: THRESHOLD, looks: samples, max_gap: MAX_GAP, count: Count::Used };
        let watch = wish.idle.map(|_| Watch::new(rule));
        let (needs_driver, stays, library) = (wish.needs_driver, wish.stays, wish.library.clone());
        Ok(Self { supervisor, seq: 1, interval, before: None, watch, needs_driver, stays, library })
    }

    /// Opens the driver where there must be one: where idleness is to end the command, say.
    pub(crate) fn open(&mut self) -> Result<(), Failure> {
        if self.needs_driver && fault(self.look()?) == Some(Fault::LibraryNotFound) {
            let library = self.library.as_deref().unwrap_or("libnvidia-ml.so.1".as_ref()).display();
            return Err(Failure::unavailable(format!(
                "--idle-timeout and --min-free ask the driver, and {library} cannot be found"
            )));
        }
        Ok(())
    }

    /// Takes a look.
    pub(crate) fn look(&mut self) -> Result<&Snapshot, Failure> {
        let gone = || Failure::unavailable("the helper that asks the driver has ended");
        let sample = self.supervisor.sample(self.seq).ok_or_else(gone)?;
        self.seq += 1;
        let now = Snapshot::between(self.before.as_ref(), sample);
        Ok(self.before.insert(now))
    }

    /// The newest sample.
    pub(crate) fn newest(&self) -> Option<&Snapshot> {
        self.before.as_ref()
    }

    /// Whether the driver is being opened.
    pub(crate) fn is_starting(&self) -> bool {
        self.before.as_ref().and_then(fault) == Some(Fault::Starting)
    }

    /// Whether the command is watched once it runs.
    pub(crate) fn stays(&self) -> bool {
        self.stays
    }

    /// Begins, for a command that can see these GPUs.
    pub(crate) fn watch(self, visible: Visible, tell: Sender<Event>) -> Result<Watched, Failure> {
        let Self { supervisor, seq, interval, before, watch, .. } = self;
        let fault = before.as_ref().and_then(fault);
        let pace = Some(pace::start(supervisor, (seq, interval), tell)?);
        let mut watched =
            Watched { pace, interval, visible, before, watch, fault: None, used: Use::default() };
        watched.tell_fault(fault);
        Ok(watched)
    }
}

impl Watched {
    /// Takes a look; true where the command has left its GPUs idle for long enough.
    pub(crate) fn see(&mut self, sample: Option<Box<Sample>>, family: &Family) -> bool {
        let Some(sample) = sample else {
            if self.watch.take().is_some() {
                say("the watch has ended, and the command goes on without it");
            }
            return false;
        };
        // A look without those is one that was missed.
        let Ok(below) = family.below() else { return false };
        let now = Snapshot::between(self.before.as_ref(), *sample);
        self.tell_fault(fault(&now));
        let tree = below.into_iter().map(|(_, stat)| (stat.key.pid, stat.key)).collect();
        let look = Look {
            before: self.before.as_ref(),
            now: &now,
            tree: &tree,
            visible: &self.visible,
            missed: Look::missed(self.before.as_ref(), &now, self.interval),
            ends_sample: true,
        };
        self.used.add(&look);
        let idle = self.watch.as_mut().is_some_and(|watch| watch.see(&look).idle);
        self.before = Some(now);
        idle
    }

    /// What it had so far.
    pub(crate) fn used(self) -> Use {
        self.used
    }

    fn tell_fault(&mut self, fault: Option<Fault>) {
        // Nobody has asked for more than a summary, and there is nothing to summarize.
        if self.watch.is_none() && fault == Some(Fault::LibraryNotFound) {
            self.pace = None;
        }
        if self.watch.is_some() && self.fault != fault {
            match fault {
                Some(fault) => say(format_args!(
                    "the driver does not answer ({}); nobody is ended for that",
                    fault.name()
                )),
                None => say("the driver answers again"),
            }
        }
        self.fault = fault;
    }
}

fn fault(snapshot: &Snapshot) -> Option<Fault> {
    snapshot.sources.get(&Source::Nvml).and_then(|state| state.fault)
}

/// How many samples a span is made of.
fn samples(span: Duration) -> u32 {
    u32::try_from(span.as_nanos().div_ceil(PACE.as_nanos())).unwrap_or(u32::MAX).max(FEWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_made_of_samples_five_seconds_apart_at_most() {
        for (seconds, count, millis) in [(1800, 360, 5000), (62, 13, 4769), (15, 3, 5000), (3, 3, 1000)] {
            let span = Duration::from_secs(seconds);
            assert_eq!(samples(span), count, "{seconds}");
            assert_eq!((span / samples(span)).as_millis(), millis, "{seconds}");
        }
    }
}
