//! What the benchmark is made of: a load of real processes, the programs that are measured, what they use.

pub mod crowd;
pub mod enforcer;
pub mod leases;
pub mod load;
pub mod local;
pub mod peers;
pub mod quota;
pub mod usage;
