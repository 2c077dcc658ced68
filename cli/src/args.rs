//! Flags that several commands share: the pool, the exporter, this machine, durations.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_lease::{LeaseError, Leases, Local};
use bailiff_lifecycle::exit::plain;
use bailiff_prometheus::Api;
use clap::Args;

use crate::exit::Failure;

/// The upper limit of every duration, so that adding a duration to the current time cannot overflow.
const MAX_DURATION: Duration = Duration::from_hours(100 * 366 * 24);

/// The flags that select a lease pool.
#[derive(Debug, Clone, Args)]
pub(crate) struct Pool {
    /// Use the pool on this Redis server; default: `LEASE_REDIS_URL`, else this machine's pool.
    ///
    /// The URL is `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` for TLS, or `redis+unix:///PATH`.
    #[arg(long, value_name = "URL", conflicts_with = "directory")]
    pub(crate) redis: Option<String>,
    /// Directory of this machine's pool; default: `LEASE_DIR`, else /run/bailiff/lease.
    #[arg(long = "pool-dir", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// From `LEASE_REDIS_URL`; --redis takes precedence.
    #[arg(long = "usual-redis", env = "LEASE_REDIS_URL", hide = true, hide_env_values = true)]
    default_redis: Option<String>,
    /// From `LEASE_DIR`; --pool-dir takes precedence.
    #[arg(long = "usual-directory", env = "LEASE_DIR", hide = true, default_value = "/run/bailiff/lease")]
    default_directory: PathBuf,
    /// Prefix of the pool's Redis keys, the same as --redis-prefix in GPU.py.
    #[arg(long, env = "LEASE_PREFIX", value_name = "PREFIX", default_value = "GPU")]
    pub(crate) prefix: String,
}

/// The storage of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend<'a> {
    /// Redis at this URL.
    Redis(&'a str),
    /// A directory of this machine.
    LocalHost(&'a Path),
}

impl Pool {
    /// Returns the backend; flags take precedence over the environment.
    pub(crate) fn backend(&self) -> Backend<'_> {
        match (&self.redis, &self.directory, &self.default_redis) {
            (Some(redis), _, _) | (None, None, Some(redis)) => Backend::Redis(redis),
            (None, Some(directory), _) => Backend::LocalHost(directory),
            (None, None, None) => Backend::LocalHost(&self.default_directory),
        }
    }

    /// Opens the pool; `timeout` is the maximum wait for a Redis reply.
    pub(crate) fn open(&self, timeout: Duration) -> Result<Box<dyn Leases>, LeaseError> {
        Ok(match self.backend() {
            Backend::Redis(address) => Box::new(bailiff_lease::Pool::open(address, &self.prefix, timeout)?),
            Backend::LocalHost(directory) => Box::new(Local::at(directory)),
        })
    }
}

/// The address of bailiff-exporter.
#[derive(Debug, Clone, Args)]
pub(crate) struct Exporter {
    /// Socket of the exporter's snapshot stream.
    #[arg(
        long,
        env = "BAILIFF_STREAM",
        value_name = "PATH",
        default_value = "/run/bailiff/exporter/stream.sock",
        hide_env = true
    )]
    pub(crate) stream: PathBuf,
}

/// The sources that describe the local machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct Machine {
    /// NVML library; default: libnvidia-ml.so.1 from the library search path.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// Mount point of the host's /proc.
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    pub(crate) procfs: PathBuf,
}

/// The login at a Prometheus server; the command has the flag `--prometheus`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PrometheusLogin {
    /// File with a bearer token for Prometheus.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    token_file: Option<PathBuf>,
}

impl PrometheusLogin {
    /// Creates a client of the server at this URL; it does not connect yet.
    pub(crate) fn open(&self, url: &str) -> Result<Api, Failure> {
        let read = |path: &PathBuf| {
            bailiff_prometheus::secret(path)
                .map_err(|error| Failure::usage(format!("cannot read {}: {}", path.display(), plain(&error))))
        };
        let token = self.token_file.as_ref().map(read).transpose()?;
        Api::new(url, token).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// The time limit of a command.
#[derive(Debug, Clone, Args)]
pub(crate) struct TimeLimit {
    /// Stop the command after this time, such as 4h.
    ///
    /// The command receives SIGTERM; processes that remain after --grace are killed.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) max_time: Option<Duration>,
    /// Time between the first signal and SIGKILL.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    pub(crate) grace: Duration,
}

/// Parses a duration of at most [`MAX_DURATION`].
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if span <= MAX_DURATION { Ok(span) } else { Err("the maximum is 100 years".to_owned()) }
}
