//! Interface to NVIDIA's MPS: [`control`] queries a control daemon, [`reply`] parses its replies, [`log`] its
//! logs, [`place`] recognizes MPS processes, [`listener`] finds the process that listens on a socket. Does not send
//! signals.

pub mod control;
pub mod listener;
pub mod log;
pub mod place;
pub mod reply;

pub use control::{Control, ControlError, Form, PATIENCE};
pub use listener::Listener;
