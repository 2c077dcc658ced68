//! HTTP pages of the enforcer, and its only request that changes something: a reload.

mod html;
pub mod page;
pub mod routes;
pub mod status;
pub mod tally;

pub use routes::{Outcome, Reload, Routes};
pub use status::Status;

/// Heading of the reasons why a rules file was not loaded.
pub const NOT_LOADED: &str = "the rules file was not loaded; the previous rules stay in force";
