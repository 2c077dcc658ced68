//! Where a pool of leases is kept, by flags and environment.

use std::path::{Path, PathBuf};

use clap::Args;

/// Where leases are kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct Pool {
    /// Redis keeps the pool, at `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://` with TLS, or `redis+unix:///PATH`; without
    /// it this machine does. Also by `LEASE_REDIS_URL`.
    #[arg(long, value_name = "URL", conflicts_with = "directory")]
    pub(crate) redis: Option<String>,
    /// The directory of this machine's own pool, `/run/bailiff/lease` if not told. Also by `LEASE_DIR`.
    #[arg(long = "pool-dir", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// What the environment says; a flag says it louder.
    #[arg(long, env = "LEASE_REDIS_URL", hide = true, hide_env_values = true)]
    usual_redis: Option<String>,
    /// The same of the directory.
    #[arg(long, env = "LEASE_DIR", hide = true, default_value = "/run/bailiff/lease")]
    usual_directory: PathBuf,
    /// What all keys begin with, as GPU.py's --redis-prefix.
    #[arg(long, env = "LEASE_PREFIX", value_name = "PREFIX", default_value = "GPU")]
    pub(crate) prefix: String,
}

/// Who keeps a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// Redis, at this address.
    Redis(&'a str),
    /// This machine, in this directory.
    LocalHost(&'a Path),
}

impl Pool {
    pub(crate) fn place(&self) -> Place<'_> {
        match (&self.redis, &self.directory, &self.usual_redis) {
            (Some(redis), _, _) | (None, None, Some(redis)) => Place::Redis(redis),
            (None, Some(directory), _) => Place::LocalHost(directory),
            (None, None, None) => Place::LocalHost(&self.usual_directory),
        }
    }
}
