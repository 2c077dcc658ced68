//! The commands that look at rules without doing anything to anybody.

pub mod backtest;
mod failure;
mod files;
mod paper;
pub mod rehearsal;
pub mod replay;
pub mod test;

pub use failure::Failure;

/// How a command tells what it found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// For people: 80 columns, and nothing in it that a terminal would obey.
    #[default]
    Text,
    /// One JSON document.
    Json,
}
