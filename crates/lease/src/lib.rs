//! GPU leases in Redis. They share the keys of GPUGET's `GPU.py` (a list of idle GPUs, a hash per GPU, a log) and work
//! alongside its clients. Additional keys start with `PREFIX_V2:`.
//!
//! The rules are implemented by the Lua scripts in `scripts/`. Redis runs each script atomically, so a client that is
//! killed between two of them loses nothing. [`Pool`] calls the scripts one by one, each with a deadline.
//!
//! [`Local`] is a pool without a server, based on file locks on one machine. [`Leases`] is the interface of both.

pub mod audit;
pub mod compat;
mod connection;
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
pub mod report;
mod scripts;
mod wait;

pub use error::LeaseError;
pub use leases::Leases;
pub use local::Local;
pub use pool::{Extended, Grant, Init, Pool, Released, Ticket, TicketStatus, check};
pub use reap::{EXEC_DELAY, End, Ended, ReturnOutcome};
pub use scripts::Op;
