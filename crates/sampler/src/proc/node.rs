//! Properties of the node that do not change while this program runs.

use bailiff_snapshot::{BootId, PidNamespace};

use super::files::Directory;
use crate::settings::{Namespace, SamplerSettings};

/// Boot id, and whether the driver's pids are valid in this PID namespace.
pub(crate) struct Node {
    pub(crate) boot_id: Option<BootId>,
    pub(crate) namespace: PidNamespace,
}

impl Node {
    pub(crate) fn read(settings: &SamplerSettings) -> Self {
        let root = Directory::open(&settings.procfs);
        let mut buffer = Vec::new();
        let boot_id = root.as_ref().ok().and_then(|root| {
            let text = root.read("sys/kernel/random/boot_id", &mut buffer).ok()?;
            Some(BootId(std::str::from_utf8(text).ok()?.trim().to_owned()))
        });
        let namespace = match settings.namespace {
            Namespace::Trusted => PidNamespace::Host,
            Namespace::Checked => root
                .and_then(|root| root.link("self/ns/pid"))
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
