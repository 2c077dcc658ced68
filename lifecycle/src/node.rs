//! What the node is called, in both daemons the same.

/// The flag of the node's name.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct NodeFlags {
    /// What this node is called, where that is not the host's name; in a pod, `spec.nodeName`.
    #[arg(long = "node.name", value_name = "NAME", env = "BAILIFF_NODE_NAME")]
    name: Option<String>,
}

impl NodeFlags {
    /// The node's name: the one that was given, or else the host's.
    #[must_use]
    pub fn name(&self) -> String {
        let given = self.name.clone().filter(|name| !name.is_empty());
        given.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
    }
}
