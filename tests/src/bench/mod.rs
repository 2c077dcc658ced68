//! Parts of the benchmark: a load of real processes, the measured programs, and their resource use.

pub mod crowd;
pub mod enforcer;
pub mod leases;
pub mod load;
pub mod local;
pub mod peers;
pub mod quota;
pub mod screen;
pub mod usage;
