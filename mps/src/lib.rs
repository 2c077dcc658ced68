//! NVIDIA's MPS from outside: [`control`] asks a control daemon, [`words`] understands its answers, [`log`] the lines of its logs,
//! [`place`] tells its processes and where their files are, and [`listener`] who listens there. It never signals a daemon, a server or a client.

pub mod control;
pub mod listener;
pub mod log;
pub mod place;
mod table;
pub mod words;

pub use control::{Control, ControlError, Form, PATIENCE};
pub use listener::Listener;
