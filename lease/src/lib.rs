//! GPU leases through Redis, on the keys of GPUGET's `GPU.py` and side by side with it: a list of idle GPUs, a hash a GPU,
//! a log. What is ours beside that lies under `PREFIX_V2:`.
//!
//! The rules are the scripts in `scripts/`: each runs in Redis as one step, so that a client that dies between two
//! of them has lost nothing. Clients are the rest: [`Pool`] asks them, one by one, each with a deadline.
//!
//! [`Local`] is a pool without a server, kept by the kernel of one machine; [`Leases`] is what both can be asked.

pub mod audit;
pub mod compat;
mod error;
pub mod health;
pub mod holder;
mod leases;
pub mod legacy;
mod local;
pub mod log;
mod pool;
pub mod process;
mod reap;
mod scripts;
pub mod told;
mod wait;

pub use error::LeaseError;
pub use leases::Leases;
pub use local::Local;
pub use pool::{Extended, Grant, Init, Pool, Released, Ticket, TicketStatus, check};
pub use reap::{Back, End, Ended, START};
pub use scripts::Op;
