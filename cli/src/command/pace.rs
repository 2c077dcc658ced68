//! The interval: one thread that looks on a steady schedule.

#![expect(clippy::disallowed_methods, reason = "keeps to the clock")]

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use bailiff_sampler::Supervisor;

use super::Event;

/// While it lives, the interval goes on.
pub(crate) struct Pace(#[expect(dead_code, reason = "its end is the message")] Sender<()>);

/// Tells of a look after each of these spans, from now on; of none that would have been late by a whole span. The first
/// has this number.
pub(crate) fn start(
    supervisor: Supervisor,
    (seq, every): (u64, Duration),
    tell: Sender<Event>,
) -> io::Result<Pace> {
    let (alive, stop) = channel();
    thread::Builder::new()
        .name("interval".into())
        .spawn(move || run(supervisor, (seq, every), &tell, &stop))?;
    Ok(Pace(alive))
}

fn run(
    mut supervisor: Supervisor,
    (first, every): (u64, Duration),
    tell: &Sender<Event>,
    stop: &Receiver<()>,
) {
    let start = Instant::now();
    for seq in first.. {
        let wait = until_next(start.elapsed(), every);
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let sample = supervisor.sample(seq).map(Box::new);
        let last = sample.is_none();
        if tell.send(Event::Looked(sample)).is_err() || last {
            return;
        }
    }
}

/// The schedule is fixed at the start: a late interval does not move those after it, and is not made up for.
fn until_next(elapsed: Duration, every: Duration) -> Duration {
    let late = elapsed.as_nanos().checked_rem(every.as_nanos()).unwrap_or_default();
    every.saturating_sub(Duration::from_nanos(u64::try_from(late).unwrap_or(u64::MAX)))
}
