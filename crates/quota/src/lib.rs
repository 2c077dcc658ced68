//! A library that is preloaded into a program. It refuses GPU memory above a quota with the driver's own
//! error. It depends only on libc, never terminates or blocks its host program, and never writes to standard
//! output.
//!
//! A driver call reaches a hook (`hooks/`) by symbol interposition (`interposition.rs`). The hook reserves
//! memory in the ledger (`account.rs`, `gpu.rs`), calls the driver, and records the result in the allocation
//! table. The ledger always counts at least as much as the driver has allocated, because memory is reserved
//! before an allocating driver call and released after a freeing one. After any internal failure, the
//! program gets the driver's own result.
#![allow(unsafe_code, reason = "C functions are replaced, and a file is shared with other processes")]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    clippy::exit,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::mem_forget,
    reason = "the library must not terminate its host program or write to its output"
)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests fail loudly")
)]

#[cfg(panic = "abort")]
compile_error!("a panic must not terminate the host program: build this library with --profile quota");

mod abi;
mod account;
mod allocations;
mod driver;
mod environment;
mod gpu;
mod hooks;
mod log;
mod panic_guard;
mod pools;
mod process;
mod region;
mod settings;
mod shared;
mod sizes;
mod sparse_map;
mod spin_lock;
mod start;
mod state;
mod symbol;
mod vmm;
