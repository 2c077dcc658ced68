//! The name of the node.

/// Flag with the name of the node.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct NodeFlags {
    /// Name of this node. Default: the host name. In a pod, set it to `spec.nodeName`.
    #[arg(long = "node.name", value_name = "NAME", env = "BAILIFF_NODE_NAME")]
    name: Option<String>,
}

impl NodeFlags {
    /// Returns the given name, or the host name.
    pub fn name(&self) -> String {
        let given = self.name.clone().filter(|name| !name.is_empty());
        given.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
    }
}
