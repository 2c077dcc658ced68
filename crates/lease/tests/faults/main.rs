//! Faults of the server and of the connection to it: it is killed, rolled back, stopped or full; connections are cut,
//! silent or slow. In all cases no GPU has two of our holders, none is lost, and no wait with a deadline hangs.
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
