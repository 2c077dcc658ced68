//! Execution of verdicts. One thread runs one destructive action at a time; another sends notifications. Callers do not
//! wait for them: their results come as reports.

mod activity;
mod cgroup;
mod child;
mod client;
pub(crate) mod clock;
mod exec;
mod executor;
mod freezer;
mod group;
mod inbox;
mod memory;
mod mps;
pub mod notices;
mod permit;
pub(crate) mod pidfd;
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
mod worker;

pub use executor::{Channels, Executor, ExecutorSettings};
pub use permit::{Permission, Question, Stage};
pub use request::ActionRequest;
