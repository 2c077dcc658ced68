//! Faults of the server and of the way to it: it is killed, rolled back, stopped, full; connections are cut, silent or
//! slow. Whatever happens, no GPU has two holders of ours, none is lost, and nobody waits for ever who did not ask to.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test starts a server, waits for it and fails loudly"
)]

mod cuts;
mod people;
mod proxy;
mod refusals;
mod rollback;
#[path = "../server/mod.rs"]
mod server;
mod storm;
