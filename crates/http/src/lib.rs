//! The daemons' HTTP server, with limits, and with TLS and authentication as configured in a Prometheus
//! web config.

pub mod body;
pub mod hosts;
pub mod listen;
pub mod negotiate;
pub mod reply;
pub mod server;
mod shares;
mod visit;
pub mod web;
mod write_deadline;

pub use body::Body;
pub use bytes::Bytes;
pub use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
pub use visit::Handler;
