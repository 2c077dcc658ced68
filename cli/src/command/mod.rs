//! Running a command: its start, and the events until it exits.

pub(crate) mod pace;
pub(crate) mod signals;
pub(crate) mod start;

use std::sync::mpsc::Receiver;

use bailiff_snapshot::Sample;

use crate::exit::Failure;
use signals::ReceivedSignal;

/// An event while a command runs.
pub(crate) enum Event {
    /// A new GPU sample; `None` if sampling has ended.
    Sampled(Option<Box<Sample>>),
    /// This process received a signal.
    Signal(ReceivedSignal),
    /// A child process has exited.
    ChildEnded,
    /// A waiting thread of this process has finished.
    Waited,
}

/// Fails if a signal has arrived.
pub(crate) fn check_signals(events: &Receiver<Event>) -> Result<(), Failure> {
    for event in events.try_iter() {
        if let Event::Signal(signal) = event {
            return Err(Failure::signalled(signal.number));
        }
    }
    Ok(())
}
