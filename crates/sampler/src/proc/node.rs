//! Properties of the node that do not change while this program runs.

use bailiff_proc::Proc;
use bailiff_snapshot::{BootId, PidNamespace};

use crate::settings::{Namespace, SamplerSettings};

/// Boot id, and whether the driver's pids are valid in this PID namespace.
pub(crate) struct Node {
    pub(crate) boot_id: Option<BootId>,
    pub(crate) namespace: PidNamespace,
}

impl Node {
    pub(crate) fn read(settings: &SamplerSettings) -> Self {
        let proc = Proc::open(&settings.procfs);
        let boot_id = proc.as_ref().ok().and_then(Proc::boot_id).map(BootId);
        let namespace = match settings.namespace {
            Namespace::Trusted => PidNamespace::Host,
            Namespace::Checked => proc
                .and_then(|proc| proc.own_pid_namespace())
                .map_or(PidNamespace::Unknown, |target| PidNamespace::of_link(&target)),
        };
        Self { boot_id, namespace }
    }

    /// Returns why processes cannot be identified on this node, for example in a pod without
    /// `hostPID`.
    pub(crate) fn blind(&self) -> Option<&'static str> {
        match self.namespace {
            PidNamespace::Host => None,
            PidNamespace::Other => Some(
                "this is not the host's PID namespace: the driver's pids belong to other processes here, so processes are not \
                 identified (fix: hostPID: true in Kubernetes, --pid=host in Docker)",
            ),
            PidNamespace::Unknown => Some("cannot read the PID namespace, so processes are not identified"),
        }
    }
}
