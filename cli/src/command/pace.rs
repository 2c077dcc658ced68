//! The sampling thread, which samples at a fixed interval.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use bailiff_proc::clock::{running, until_next};
use bailiff_sampler::Supervisor;

use super::Event;

/// Keeps the sampling thread running; dropping it stops the thread.
pub(crate) struct Pace(#[expect(dead_code, reason = "dropping it stops the thread")] Sender<()>);

/// Starts the thread, which sends a sample after each interval. Samples that would be late by a whole
/// interval are skipped. `seq` is the number of the first sample.
pub(crate) fn start(
    supervisor: Supervisor,
    (seq, interval): (u64, Duration),
    events: Sender<Event>,
) -> io::Result<Pace> {
    let (alive, stop) = channel();
    thread::Builder::new()
        .name("interval".into())
        .spawn(move || run(supervisor, (seq, interval), &events, &stop))?;
    Ok(Pace(alive))
}

fn run(
    mut supervisor: Supervisor,
    (first, interval): (u64, Duration),
    events: &Sender<Event>,
    stop: &Receiver<()>,
) {
    let start = running();
    for seq in first.. {
        let wait = until_next(running().saturating_sub(start), interval);
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let sample = supervisor.sample(seq).map(Box::new);
        let last = sample.is_none();
        if events.send(Event::Sampled(sample)).is_err() || last {
            return;
        }
    }
}
