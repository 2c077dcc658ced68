//! NVIDIA's MPS from outside: [`control`] queries a control daemon, [`reply`] parses its replies, [`log`] the lines of its logs,
//! [`place`] finds its processes and their directories, and [`listener`] the process that listens there. Signals no process.

pub mod control;
pub mod listener;
pub mod log;
pub mod place;
pub mod reply;
mod table;

pub use control::{Control, ControlError, Form, PATIENCE};
pub use listener::Listener;
