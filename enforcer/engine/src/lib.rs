//! The rule engine: evaluates snapshots by the administrator's rules and returns verdicts. Time, snapshots and processes
//! are passed in; no file, socket, clock or process is accessed here.

#![cfg_attr(not(test), forbid(clippy::disallowed_methods))]

pub mod attributes;
pub mod engine;
pub mod eviction;
pub mod guard;
pub mod job;
mod kind;
pub mod members;
pub mod policy;
pub mod process;
pub mod value;
pub mod verdict;
pub mod view;
pub mod yaml;

pub use kind::Kind;
