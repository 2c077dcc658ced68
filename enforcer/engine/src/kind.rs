//! The kinds of target that a rule can have.

use serde::{Deserialize, Serialize};

bailiff_snapshot::label_values! {
/// Kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One process that holds GPU memory, with those of its descendants that hold none.
    Process = "process",
    /// The innermost of container, Slurm job, pod, systemd unit, process tree.
    Workload = "workload",
    /// A GPU or MIG instance.
    Gpu = "gpu",
    /// A lease.
    Lease = "lease",
    /// A server of MPS.
    MpsServer = "mps_server",
}
}
