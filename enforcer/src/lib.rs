//! The enforcer: judges snapshots by the admin's rules, warns, ends, verifies and records.

pub mod actions;
pub mod audit;
pub mod census;
pub mod disk;
pub mod guard;
mod kin;
pub mod policy;
pub mod rules;
pub mod truth;
pub mod value;
pub mod verdict;
pub mod view;
