//! Reads `/proc`: identity and state of the listed pids, members of their workloads, and open device files.

mod descriptors;
mod device_files;
mod freezer;
mod names;
mod node;
mod orphan;
mod others;
mod pods;
mod relations;
mod scan;
mod threads;

pub(crate) use descriptors::reserve_descriptors;
pub use device_files::device_processes;
pub(crate) use device_files::{Search, keep_living};
pub(crate) use node::Node;
pub(crate) use scan::{MOST_OF_ENVIRON, Processes};
