//! Leases of GPU.py's clients: a record has a pid and a time and nothing else, and the pid is often that of a subshell
//! which has ended since. What a node's agent sees of whoever wrote it, while he is still there, makes it decidable.

mod judge;
mod watch;
mod witness;

pub use judge::{Case, Judgement, Limits, Taker, Use, judge};
pub use watch::Changes;
pub use witness::{Found, Witness};
