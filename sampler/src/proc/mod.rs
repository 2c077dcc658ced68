//! `/proc`: who the listed pids are, what they do, who belongs to them, and who has device files open.

mod claim;
mod device_files;
mod files;
mod freezer;
mod look;
mod names;
mod node;
mod orphan;
mod others;
mod pods;
mod relations;
mod threads;

pub use device_files::device_processes;
pub(crate) use device_files::{Search, keep_living};
pub(crate) use files::{Directory, MOST_OF_ENVIRON, Missing};
pub(crate) use look::Processes;
pub(crate) use node::Node;
