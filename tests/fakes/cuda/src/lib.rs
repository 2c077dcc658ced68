//! A stand-in for NVIDIA's `libcuda.so.1` that gives out addresses without memory behind them and keeps the ground
//! truth of how much is allocated, per GPU and process; it is for tests and ships in nothing.
#![allow(
    unsafe_code,
    reason = "a C library: symbols are exported by name and write through the caller's pointers"
)]
#![allow(non_snake_case, reason = "exported functions bear the names of cuda.h")]

mod arrays;
mod attach;
mod code;
mod contexts;
mod devices;
mod edge;
mod graphs;
mod memory;
mod modules;
mod old;
mod others;
mod pools;
mod proc_address;
mod settings;
mod state;
mod streams;
mod truth;
mod vmm;
