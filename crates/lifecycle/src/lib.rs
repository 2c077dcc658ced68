//! What both daemons need to live: logs, signals, exit codes, an HTTP server with a web config, and a control
//! socket, both with limits. It knows nothing of GPUs.

pub mod body;
pub mod control;
pub mod exit;
pub mod file;
pub mod heap;
pub mod listen;
pub mod logs;
pub mod negotiate;
pub mod node;
pub mod reply;
pub mod server;
pub mod signals;
pub mod socket;
pub mod systemd;
mod visit;
pub mod web;
mod write_deadline;

pub use body::Body;
pub use bytes::Bytes;
pub use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
