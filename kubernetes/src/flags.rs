//! Command-line flags, and the settings that follow from them.

use std::path::PathBuf;

use bailiff_lifecycle::exit::Stop;
use bailiff_lifecycle::logs;
use clap::Parser;

/// Ask the API server of Kubernetes for the enforcer, which has no token.
///
/// Reads pods of this node by name, and evicts them. Only root can connect to the socket.
#[derive(Debug, Parser)]
#[command(name = "bailiff-kubernetes", version, after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Unix socket on which to answer the enforcer.
    #[arg(long, value_name = "PATH", default_value = "/run/bailiff-kubernetes/api.sock")]
    pub(crate) socket: PathBuf,
    /// Address of the API server, which begins with https://. By default, it is taken from `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`, which the kubelet sets.
    #[arg(long, value_name = "URL")]
    api_server: Option<String>,
    /// Directory with the files `token`, `ca.crt` and `namespace` of the service account. They are read for each request.
    #[arg(long, value_name = "PATH", default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    service_account: PathBuf,
    /// Name of this node, as the API server knows it. Pods of other nodes are never evicted.
    #[arg(long, value_name = "NAME", env = "BAILIFF_NODE_NAME")]
    node_name: Option<String>,
    /// Log settings.
    #[command(flatten)]
    pub(crate) logs: logs::LogFlags,
}

const EXAMPLES: &str = "Examples:
  bailiff-kubernetes                       answer on /run/bailiff-kubernetes/api.sock

Exit codes: 0: success; 1: failure; 64: invalid flags, no name of the node, no token or no certificate.";

/// Where the API server is, and who asks it.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Address of the API server, without a slash at its end.
    pub(crate) api_server: String,
    /// Directory of the service account.
    pub(crate) service_account: PathBuf,
    /// Name of this node.
    pub(crate) node: String,
}

impl Flags {
    /// Returns the settings.
    ///
    /// # Errors
    /// If the address of the API server or the name of the node is missing or not valid.
    pub(crate) fn settings(&self) -> Result<Settings, Stop> {
        let node = self.node_name.clone().filter(|name| !name.is_empty());
        let node = node.ok_or_else(|| {
            Stop::Usage(
                "the name of the node is missing; set BAILIFF_NODE_NAME from spec.nodeName".to_owned(),
            )
        })?;
        let api_server = self.api_server.clone().or_else(from_environment).ok_or_else(|| {
            let why = "the address of the API server is missing; outside a pod, use --api-server";
            Stop::Usage(why.to_owned())
        })?;
        if !api_server.starts_with("https://") {
            return Err(Stop::Usage("--api-server: the address must begin with https://".to_owned()));
        }
        let api_server = api_server.trim_end_matches('/').to_owned();
        Ok(Settings { api_server, service_account: self.service_account.clone(), node })
    }
}

/// Returns the address that the kubelet sets in each container.
fn from_environment() -> Option<String> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok().filter(|host| !host.is_empty())?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?;
    // IPv6 addresses have colons.
    Some(if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    })
}
