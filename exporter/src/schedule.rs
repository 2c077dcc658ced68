//! The sampling schedule: one thread samples at fixed times and publishes the result. It never waits for
//! readers.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use bailiff_proc::clock::{running, since_boot, until_next};
use bailiff_snapshot::Snapshot;
use tokio::sync::watch;

use crate::SampleSource;
use crate::published::Published;

/// Receiver of the newest snapshot; `None` before the first sample.
pub type Latest = watch::Receiver<Option<Arc<Published>>>;

/// Sampling interval, and limit of processes.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Time from the start of one sample to the start of the next.
    pub interval: Duration,
    /// Maximum number of processes with series of their own.
    pub max_processes: usize,
}

/// Handle of the sampling thread; dropping it ends sampling.
#[derive(Debug)]
pub struct Interval(#[expect(dead_code, reason = "its end is the message")] Sender<()>);

/// Starts sampling. When the thread ends for any reason, the channel of [`Latest`] is closed.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(source: Box<dyn SampleSource>, schedule: Schedule) -> io::Result<(Interval, Latest)> {
    let (publish, latest) = watch::channel(None);
    let (alive, stop) = channel();
    let sampling = Sampling { source, schedule, publish };
    thread::Builder::new().name("interval".into()).spawn(move || sampling.run(&stop))?;
    Ok((Interval(alive), latest))
}

struct Sampling {
    source: Box<dyn SampleSource>,
    schedule: Schedule,
    publish: watch::Sender<Option<Arc<Published>>>,
}

impl Sampling {
    fn run(mut self, stop: &Receiver<()>) {
        let start = running();
        for seq in 1.. {
            if self.interval(seq).is_none() {
                return;
            }
            let wait = until_next(running().saturating_sub(start), self.schedule.interval);
            if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Takes and publishes one sample; `None` if no further sample is possible.
    fn interval(&mut self, seq: u64) -> Option<()> {
        let began = since_boot();
        let sample = self.source.sample(seq)?;
        let previous = self.publish.borrow().clone();
        let snapshot = Snapshot::between(previous.as_ref().map(|previous| &previous.snapshot), sample);
        let next = Published::new(snapshot, began, self.schedule.max_processes, previous.as_deref());
        self.publish.send_replace(Some(Arc::new(next)));
        Some(())
    }
}
