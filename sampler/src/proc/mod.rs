//! `/proc`: who the listed pids are, what they do, and who has device files open.

mod files;
mod look;
mod names;
mod node;
mod openers;
mod orphan;
mod pods;

pub(crate) use look::Processes;
pub(crate) use node::Node;
