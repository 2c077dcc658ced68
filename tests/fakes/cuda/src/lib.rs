//! A stand-in for NVIDIA's `libcuda.so.1`, for tests only. It returns addresses without memory behind them, and
//! records how much is actually allocated, per GPU and process.
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
