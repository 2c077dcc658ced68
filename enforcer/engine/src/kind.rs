//! The kinds of target that a rule can have.

bailiff_snapshot::label_values! {
/// Kind of a target.
pub enum Kind {
    /// One process that holds GPU memory, with its descendants that do not hold any.
    Process = "process",
    /// The innermost of container, Slurm job, pod, systemd unit, process tree.
    Workload = "workload",
    /// A GPU or MIG instance.
    Gpu = "gpu",
    /// A lease.
    Lease = "lease",
    /// A server of MPS.
    MpsServer = "mps_server",
    /// A Slurm job with a record of the prolog, with or without processes.
    SlurmJob = "slurm_job",
    /// A pod of Kubernetes: the processes of all its containers. Also a pod with an allocated GPU and no process on it.
    Pod = "pod",
}
}

impl Kind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = Self::ALL.len();
}
