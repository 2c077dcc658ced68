//! What both daemons need to live: logs, signals, exit codes, and an HTTP server with limits. It knows
//! nothing of GPUs.

pub mod body;
pub mod exit;
pub mod listen;
pub mod logs;
pub mod negotiate;
pub mod server;
pub mod signals;
mod write_deadline;

pub use body::Body;
pub use bytes::Bytes;
pub use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
