//! The enforcer: judges snapshots by the admin's rules, warns, ends, verifies and records.

pub mod engine;
pub mod guard;
pub mod clock;
pub mod commands;
pub mod control;
pub mod flags;
pub mod metrics;
pub mod policy;
pub mod policy_file;
pub mod rules;
pub mod stream;
pub use bailiff_snapshot::truth;
pub mod settings;
pub mod value;
pub mod verdict;
pub mod view;
pub mod web;
