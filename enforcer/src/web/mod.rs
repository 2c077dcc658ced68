//! HTTP pages of the enforcer, and its only request that changes something: a reload.

mod html;
pub mod page;
pub mod routes;

pub use routes::{Outcome, Reload, Routes};
