//! A command that is run: how it starts, and what can happen meanwhile.

pub(crate) mod pace;
pub(crate) mod signals;
pub(crate) mod start;

use bailiff_snapshot::Sample;

use signals::Told;

/// What can happen.
pub(crate) enum Event {
    /// There is a sample; none when there will be no more.
    Looked(Option<Box<Sample>>),
    /// We were sent a signal.
    Told(Told),
    /// A child has ended.
    ChildEnded,
    /// What a thread of ours waited for is there, or will not be.
    Waited,
}
