//! The enforcer: judges snapshots by the admin's rules, warns, ends, verifies and records.

pub mod clock;
pub mod commands;
pub mod control;
pub mod flags;
pub mod metrics;
pub mod policy;
pub mod rules;
pub mod settings;
pub mod truth;
pub mod value;
pub mod verdict;
pub mod view;
pub mod web;
