//! Execution of verdicts. One thread runs destructive actions one at a time; each notification channel has
//! its own thread. Callers do not wait: results are returned as reports.

mod activity;
mod cgroup;
mod cgroup_kill;
mod client;
mod context;
mod exec;
mod executor;
mod freezer;
mod group;
mod inbox;
mod memory;
mod mps;
pub mod notices;
mod permit;
mod release;
mod request;
mod result;
mod signal;
mod terminate;
#[cfg(test)]
mod tests;
mod tty;
pub mod watchdog;
mod webhook;

pub use context::ExecutorSettings;
pub use executor::{Channels, Executor};
pub use inbox::Inbox;
pub use permit::{Permission, Question, Stage};
pub use request::ActionRequest;
