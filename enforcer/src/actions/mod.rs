//! Verdicts carried out. One thread does one destructive deed at a time; another tells people. Neither is waited
//! for: what they have to say comes as a report.

mod activity;
mod cgroup;
mod child;
mod client;
pub(crate) mod clock;
mod deed;
mod ending;
mod exec;
mod freezer;
mod group;
mod hand;
mod inbox;
mod memory;
mod mps;
pub mod notices;
mod permit;
pub(crate) mod pidfd;
mod release;
mod signal;
mod terminate;
#[cfg(test)]
mod tests;
mod tty;
pub mod watchdog;
mod webhook;
mod worker;

pub use deed::Deed;
pub use hand::{Channels, Hand, Settings};
pub use permit::{Permission, Question, Stage};
