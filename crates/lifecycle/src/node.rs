//! What the node is called, in both daemons the same.

/// The flag of the node's name.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct NodeFlags {
    /// Name of this node, if it is not the host name; in a pod, `spec.nodeName`.
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
