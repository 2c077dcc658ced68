//! A library that is preloaded into a program and refuses GPU memory past a quota, with the driver's own error. It
//! depends on libc alone, and never ends, blocks or speaks for the program that it is in.
//!
//! A call comes in by one of three doors (`doors.rs`), is answered by a hook (`hooks/`), which asks the ledger for room
//! (`account.rs`, `gpu.rs`), then the driver, and keeps what was given in the book. In every order of calls the ledger has
//! at least what the driver has: reserve, ask, record; strike out, ask, release. Whatever goes wrong in here, the
//! program has the driver's own answer.
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
    reason = "nothing in here may end its host or speak for it"
)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests fail loudly")
)]

#[cfg(panic = "abort")]
compile_error!("a fault in here must not end its host: build this library with --profile quota");

mod abi;
mod account;
mod book;
mod doors;
mod driver;
mod gpu;
mod hooks;
mod latch;
mod life;
mod log;
mod process;
mod region;
mod settings;
mod shared;
mod shield;
mod sizes;
mod start;
mod symbol;
mod tiles;
mod vmm;
