//! The storage of a lease pool, from flags and the environment.

use std::path::{Path, PathBuf};

use clap::Args;

/// The flags that select a lease pool.
#[derive(Debug, Clone, Args)]
pub(crate) struct Pool {
    /// Use a pool in Redis; default: `LEASE_REDIS_URL`, else this machine's pool.
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
    /// Prefix of all Redis keys, as --redis-prefix of GPU.py.
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
}
