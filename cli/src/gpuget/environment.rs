//! The address of the pool: from the flags of GPU.py, else from the environment.

#![expect(clippy::disallowed_methods, reason = "settings without a GPU.py flag come from the environment")]

use std::env::var;
use std::path::PathBuf;

use bailiff_lease::{LeaseError, Pool};

use super::arguments::Arguments;
use crate::lease::REDIS_TIMEOUT;

/// The Redis URL and key prefix of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolAddress {
    pub(super) address: String,
    pub(super) prefix: String,
}

/// Settings from environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// `LEASE_REDIS_URL`. The URL can contain a user and a password, or the path of a Unix socket.
    pub(super) address: Option<String>,
    /// `LEASE_PREFIX`.
    pub(super) prefix: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub(super) visible: Option<String>,
    /// `GPU_PY_FORCE=1`: recreate or delete the pool even if leases are held.
    pub(super) force_held: bool,
    /// `BAILIFF_NVML_LIBRARY`: the NVML library.
    pub(super) library: PathBuf,
    /// `BAILIFF_STREAM`: the exporter's socket.
    pub(super) stream: PathBuf,
}

impl Environment {
    /// Reads the variables.
    pub(super) fn read() -> Self {
        Self {
            address: var("LEASE_REDIS_URL").ok().filter(|address| !address.is_empty()),
            prefix: var("LEASE_PREFIX").ok().filter(|prefix| !prefix.is_empty()),
            visible: var("CUDA_VISIBLE_DEVICES").ok(),
            force_held: var("GPU_PY_FORCE").is_ok_and(|force| force == "1"),
            library: var("BAILIFF_NVML_LIBRARY").unwrap_or_else(|_| "libnvidia-ml.so.1".to_owned()).into(),
            stream: var("BAILIFF_STREAM")
                .unwrap_or_else(|_| "/run/bailiff/exporter/stream.sock".to_owned())
                .into(),
        }
    }
}

impl PoolAddress {
    /// Combines flags and environment. If a flag names the server, the URL of the environment is not used, because its
    /// password belongs to another server.
    pub(super) fn resolve(arguments: &Arguments, environment: &Environment) -> Self {
        let [server, port, db] =
            ["--redis-server", "--redis-port", "--redis-db"].map(|name| arguments.value(name));
        let address = match (&environment.address, server, port, db) {
            (Some(address), None, None, None) => address.clone(),
            (Some(address), None, None, Some(db)) => with_db(address, db),
            _ => {
                let host = server.unwrap_or("localhost");
                let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
                format!("redis://{host}:{}/{}", port.unwrap_or("6379"), db.unwrap_or("0"))
            }
        };
        let prefix = arguments.value("--redis-prefix").map(str::to_owned);
        let prefix = prefix.or_else(|| environment.prefix.clone()).unwrap_or_else(|| "GPU".to_owned());
        Self { address, prefix }
    }

    /// Opens the pool.
    pub(super) fn open(&self) -> Result<Pool, LeaseError> {
        Pool::open(&self.address, &self.prefix, REDIS_TIMEOUT)
    }
}

/// Returns the URL with another database.
fn with_db(address: &str, db: &str) -> String {
    let (base, query) = address.split_once('?').unwrap_or((address, ""));
    if base.contains("unix") {
        let mut query: Vec<&str> =
            query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("db=")).collect();
        let db = format!("db={db}");
        query.push(&db);
        return format!("{base}?{}", query.join("&"));
    }
    let (scheme, rest) = base.split_once("://").unwrap_or(("redis", base));
    let authority = rest.split('/').next().unwrap_or_default();
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    format!("{scheme}://{authority}/{db}{query}")
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{Parsed, parse};
    use super::*;

    fn resolve(args: &str, address: Option<&str>) -> PoolAddress {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let Ok(Parsed::Action(arguments)) = parse(&args) else { panic!("{args:?}") };
        let environment = Environment { address: address.map(str::to_owned), ..Environment::default() };
        PoolAddress::resolve(&arguments, &environment)
    }

    #[test]
    fn flags_take_precedence_over_the_environment() {
        for (args, environment, address) in [
            ("", None, "redis://localhost:6379/0"),
            ("--redis-server gpu1 --redis-db 3", None, "redis://gpu1:6379/3"),
            ("--redis-server ::1 --redis-port 7000", None, "redis://[::1]:7000/0"),
            ("", Some("redis://:secret@gpu1:7/2"), "redis://:secret@gpu1:7/2"),
            (
                "--redis-db 5",
                Some("redis://:secret@gpu1:7/2?protocol=3"),
                "redis://:secret@gpu1:7/5?protocol=3",
            ),
            (
                "--redis-db 5",
                Some("redis+unix:///run/a.sock?db=1&pass=x"),
                "redis+unix:///run/a.sock?pass=x&db=5",
            ),
            ("--redis-db 5", Some("redis://gpu1"), "redis://gpu1/5"),
            ("--redis-port 6379", Some("redis://:secret@gpu1:7/2"), "redis://localhost:6379/0"),
        ] {
            assert_eq!(resolve(args, environment).address, address, "{args} {environment:?}");
        }
        assert_eq!(resolve("--redis-prefix X", None).prefix, "X");
    }
}
