//! The enforcer: judges snapshots by the admin's rules, warns, ends, verifies and records.

pub mod commands;
pub mod engine;
pub mod guard;
pub mod policy;
pub mod rules;
pub use bailiff_snapshot::truth;
pub mod value;
pub mod verdict;
pub mod view;
