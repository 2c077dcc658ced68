//! Access to NVIDIA's MPS (Multi-Process Service). [`control`] queries a control daemon, [`reply`] parses its
//! replies, [`log`] parses lines of its logs, [`place`] recognizes MPS processes and finds their directories,
//! and [`listener`] identifies the process that listens in a pipe directory. Sends no signals.

pub mod control;
pub mod listener;
pub mod log;
pub mod place;
pub mod reply;
mod table;

pub use control::{Control, ControlError, Form, PATIENCE};
pub use listener::Listener;
