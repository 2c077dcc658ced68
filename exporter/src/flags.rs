//! Command-line flags as written; `settings` validates them.

use std::ffi::OsString;
use std::path::PathBuf;

use bailiff_http::hosts::HostFlags;
use bailiff_lifecycle::logs;
use bailiff_lifecycle::node::NodeFlags;
use bailiff_lifecycle::permissions::PermissionFlags;
use bailiff_lifecycle::user::User;
use clap::{Parser, ValueEnum};

/// Export GPU memory and utilization per process to Prometheus.
///
/// Samples the GPUs (through NVML) and /proc at a fixed interval, and serves the latest sample: metrics for
/// Prometheus, a status page at /, and a stream of snapshots on a Unix socket for other programs. It is
/// read-only: it changes no setting and sends no signal.
#[derive(Debug, Parser)]
#[command(name = "bailiff-exporter", version, after_help = EXAMPLES, args_override_self = true)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub struct Flags {
    /// Address to listen on, HOST:PORT; may be repeated. An empty host means all addresses. The default is
    /// loopback, because the pages show names of users and programs.
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = "127.0.0.1:9836")]
    pub listen: Vec<String>,
    /// Path of the metrics page.
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics")]
    pub telemetry: String,
    /// URL of the enforcer's page, linked from the status page, such as `http://node-7:9837/`.
    #[arg(long = "web.enforcer-url", value_name = "URL")]
    pub enforcer: Option<String>,
    /// Web config file: TLS, client certificates, basic authentication and rate limit, in the format of
    /// Prometheus' exporter toolkit (docs/web-config.md). Changes take effect at once. Default: plain HTTP
    /// without authentication.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// User and group of the process that serves HTTP, if the exporter is started as root. Sockets and the recording
    /// are opened before the change, and the web config is read after it. The group's default is the user's number.
    #[arg(long = "web.user", value_name = "UID[:GID]", conflicts_with = "once")]
    pub user: Option<User>,
    /// Names of the server.
    #[command(flatten)]
    pub hosts: HostFlags,
    /// Permissions of the web config.
    #[command(flatten)]
    pub permissions: PermissionFlags,
    /// Maximum number of concurrent connections; one client address gets at most half of them. Further connections
    /// receive status 503.
    #[arg(long = "web.max-connections", value_name = "N", default_value = "64")]
    pub max_connections: usize,
    /// Sampling interval, such as 5s or 200ms. Scrapes return the latest sample.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub interval: String,
    /// Timeout of driver calls and Redis queries. A driver that does not respond in time is reported as down.
    /// Calls for a single GPU have two fifths of this time.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub deadline: String,
    /// Period for which utilization samples are read from the driver; at least two intervals. A process
    /// without samples in this period is reported as idle. Samples can be seconds old, so a short period
    /// reports busy processes as idle.
    #[arg(long = "look-back", value_name = "DURATION", default_value = "10s")]
    pub lookback: String,
    /// Maximum number of processes with their own series. The processes with the most memory are selected;
    /// the others are summed per GPU.
    #[arg(long, value_name = "N", default_value = "1024")]
    pub max_processes: usize,
    /// Export the command line of each process, with secrets redacted. Command lines are truncated to 256
    /// bytes in the stream and the recording, and to 128 bytes on web pages.
    #[arg(long = "process.command")]
    pub command: bool,
    /// Publish the notebook of each Jupyter kernel (`JPY_SESSION_NAME` in its environment) in the stream and the recording,
    /// for `bailiff info` and notifications. Paths of notebooks are visible to all users who can read the stream.
    #[arg(long = "process.notebook")]
    pub notebook: bool,
    /// Measure the activity of the GPUs' engines with GPM (Hopper and newer). It takes about 1 ms of CPU time for each GPU
    /// and sample.
    #[arg(long)]
    pub gpm: bool,
    /// Count the processes of a MIG instance as idle while nothing runs on it. Experimental: not yet confirmed on a GPU with
    /// MIG.
    #[arg(long = "mig-idle", requires = "gpm")]
    pub mig_idle: bool,
    /// Count the Xid errors of each process, from the kernel log. FILE has records in the format of /dev/kmsg, which is the
    /// default. /dev/kmsg needs `CAP_SYSLOG`, unless the sysctl `kernel.dmesg_restrict` is 0, and systemd's
    /// ProtectKernelLogs=no (docs/metrics.md).
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "/dev/kmsg")]
    pub kernel_log: Option<PathBuf>,
    /// NVML library. Default: libnvidia-ml.so.1 from the library search path.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub nvml_library: Option<PathBuf>,
    /// Mount point of the host's /proc.
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    pub procfs: PathBuf,
    /// Mount point of the cgroup file system. GPU memory limits of this program's cgroup are read from it.
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/cgroup")]
    pub cgroupfs: PathBuf,
    /// Directory that contains the pods' log directories. Pod names and namespaces are read from it.
    #[arg(long, value_name = "PATH", default_value = "/var/log/pods")]
    pub pods: PathBuf,
    /// Ask the kubelet which GPUs are allocated to which containers (docs/kubernetes.md). SOCKET is the socket of its
    /// pod-resources API. Only root may connect.
    #[arg(
        long,
        value_name = "SOCKET",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pub pod_resources: Option<PathBuf>,
    /// Time between two queries of the kubelet.
    #[arg(long = "pod-resources.interval", value_name = "DURATION", default_value = "30s")]
    pub pod_resources_interval: String,
    /// Directory with links to the logs of containers. With --pod-resources, names of containers are read from it.
    #[arg(long, value_name = "PATH", default_value = "/var/log/containers")]
    pub containers: PathBuf,
    /// Treat the PID namespace of --procfs as the host's. Without this flag, details of processes are exported
    /// only if this program runs in the host's PID namespace.
    #[arg(long)]
    pub trust_pid_namespace: bool,
    /// Redis server of the lease pool: `redis://[USER:PASSWORD@]HOST:PORT/DB` or `redis+unix:///PATH`. Leases
    /// are shown only if this is set. If the URL contains a password, pass it in the environment variable,
    /// because other users can read the command line.
    #[arg(long = "lease.redis", value_name = "URL", env = "LEASE_REDIS_URL", hide_env_values = true)]
    pub lease_redis: Option<String>,
    /// Prefix of the pool's Redis keys, the same as --redis-prefix in GPU.py.
    #[arg(long = "lease.prefix", value_name = "PREFIX", env = "LEASE_PREFIX", default_value = "GPU")]
    pub lease_prefix: String,
    /// Directory of the shared quota files. Its immediate subdirectories are read as well (docs/quota.md).
    #[arg(long = "quota.dir", value_name = "PATH", default_value = "/run/bailiff/quota")]
    pub quota_dir: PathBuf,
    /// Directory in which Slurm's hooks save the GPUs of jobs (docs/slurm.md).
    #[arg(long = "slurm.dir", value_name = "PATH", default_value = "/run/bailiff/slurm")]
    pub slurm_dir: PathBuf,
    /// NVIDIA's MPS control program: a path, or a name in PATH. If empty, MPS control daemons are not queried,
    /// and the data on MPS comes only from /proc, the driver and the logs.
    #[arg(long = "mps.control", value_name = "PROGRAM", default_value = "nvidia-cuda-mps-control")]
    pub mps_control: OsString,
    /// Time between two queries of an MPS control daemon. Each query adds some kilobytes to the daemon's log.
    #[arg(long = "mps.interval", value_name = "DURATION", default_value = "1m")]
    pub mps_interval: String,
    /// Unix socket on which to stream snapshots, one line of JSON each. Its owner and group can read it.
    #[arg(long, value_name = "PATH")]
    pub stream: Option<PathBuf>,
    /// File to append every snapshot to, one line of JSON each.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Take two samples one interval apart, print the metrics and exit.
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub once: Option<Once>,
    /// Name of this node.
    #[command(flatten)]
    pub node: NodeFlags,
    /// Log settings.
    #[command(flatten)]
    pub logs: logs::LogFlags,
}

/// Format of the printed metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Once {
    /// Prometheus' text format 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.
    #[value(help = "OpenMetrics 1.0")]
    Openmetrics,
}

const EXAMPLES: &str = "Examples:
  bailiff-exporter                                  serve on http://127.0.0.1:9836/
  bailiff-exporter --web.listen-address=:9836       listen on all addresses
  bailiff-exporter --once --interval=1s             print the metrics once, without a server
  bailiff-exporter --stream=/run/bailiff/exporter/stream.sock
                                                    also stream snapshots to the enforcer

Exit codes: 0: success; 1: failure; 64: invalid flags.";
