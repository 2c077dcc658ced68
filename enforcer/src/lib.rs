//! The enforcer: judges snapshots by the admin's rules, warns, ends, verifies and records.

pub mod engine;
pub mod guard;
pub mod policy;
pub mod policy_file;
pub mod rules;
pub mod stream;
pub use bailiff_snapshot::truth;
pub mod value;
pub mod verdict;
pub mod view;
