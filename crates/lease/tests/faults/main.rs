//! Tests faults of the server and of the connection to it: the server is killed, rolled back, stopped or full;
//! connections are cut, silent or slow. In all cases, a GPU never has two of our holders, no GPU is lost, and a wait
//! with a deadline does not hang.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test starts a server, waits for it and fails loudly"
)]

mod clients;
mod connections;
mod kills;
mod proxy;
mod refusals;
mod rollback;
#[path = "../server/mod.rs"]
mod server;
