//! The kinds of target that a rule can have.

use serde::{Deserialize, Serialize};

/// Kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One process that holds GPU memory, with those of its descendants that hold none.
    Process,
    /// The innermost of container, Slurm job, pod, systemd unit, process tree.
    Workload,
    /// A GPU or MIG instance.
    Gpu,
    /// A lease.
    Lease,
    /// A server of MPS.
    MpsServer,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Process, Self::Workload, Self::Gpu, Self::Lease, Self::MpsServer];

    /// Its name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Workload => "workload",
            Self::Gpu => "gpu",
            Self::Lease => "lease",
            Self::MpsServer => "mps_server",
        }
    }
}
