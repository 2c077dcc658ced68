//! `/proc`: who the listed pids are, what they do, who belongs to them, and who has device files open.

mod claim;
mod files;
mod freezer;
mod look;
mod names;
mod node;
mod openers;
mod orphan;
mod others;
mod pods;
mod relations;
mod threads;

pub(crate) use files::{Folder, MOST_OF_ENVIRON, Missing};
pub(crate) use look::Processes;
pub(crate) use node::Node;
pub use openers::openers;
pub(crate) use openers::{Search, keep_living};
