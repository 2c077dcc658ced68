//! Enforcer: evaluates rules on snapshots, notifies users, terminates processes, verifies and records.

pub mod actions;
pub mod agent;
pub mod audit;
pub mod commands;
pub mod control;
pub mod daemon;
pub mod disk;
pub mod flags;
pub mod metrics;
pub mod policy_file;
pub mod privileged;
pub mod process_table;
mod programs;
pub mod settings;
pub mod status;
pub mod stream;
pub mod web;

pub use bailiff_proc::clock;
pub use bailiff_snapshot::truth;
