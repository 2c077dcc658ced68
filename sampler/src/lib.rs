//! The only place that knows NVML and `/proc`. It gives samples: a [`Supervisor`] asks a sampling worker, a
//! process of its own, and never waits for it longer than its deadline, since the driver may hang.
//!
//! Three processes, so that each has only the rights it needs: the **launcher** keeps the capabilities and
//! does nothing but start workers; a **worker** loads NVML and reads `/proc`; whoever holds the supervisor
//! has dropped everything ([`privileges::drop_all`]) and may face the network.

mod channel;
mod clock;
pub mod launcher;
mod message;
mod nvml;
pub mod privileges;
mod proc;
mod round;
mod settings;
mod supervisor;
pub mod worker;

pub use launcher::Launcher;
pub use settings::{Commands, Namespace, Settings};
pub use supervisor::Supervisor;
