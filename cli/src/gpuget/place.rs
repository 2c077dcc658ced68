//! Where the pool is: by the flags of GPU.py, and by the environment where those say nothing.

#![expect(clippy::disallowed_methods, reason = "what GPU.py has no flags for is in the environment")]

use std::env::var;
use std::path::PathBuf;

use bailiff_lease::{LeaseError, Pool};

use super::arguments::Arguments;
use crate::lease::PATIENCE;

/// An address and a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: String,
    pub(super) prefix: String,
}

/// What the environment says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// `LEASE_REDIS_URL`: users, passwords, Unix sockets.
    pub(super) address: Option<String>,
    /// `LEASE_PREFIX`.
    pub(super) prefix: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub(super) visible: Option<String>,
    /// `GPU_PY_FORCE=1`: also under whoever holds a lease.
    pub(super) under: bool,
    /// The driver's library.
    pub(super) library: PathBuf,
    /// The exporter's stream.
    pub(super) stream: PathBuf,
}

impl Environment {
    pub(super) fn read() -> Self {
        Self {
            address: var("LEASE_REDIS_URL").ok().filter(|address| !address.is_empty()),
            prefix: var("LEASE_PREFIX").ok().filter(|prefix| !prefix.is_empty()),
            visible: var("CUDA_VISIBLE_DEVICES").ok(),
            under: var("GPU_PY_FORCE").is_ok_and(|force| force == "1"),
            library: var("BAILIFF_NVML_LIBRARY").unwrap_or_else(|_| "libnvidia-ml.so.1".to_owned()).into(),
            stream: var("BAILIFF_STREAM").unwrap_or_else(|_| "/run/bailiff/stream.sock".to_owned()).into(),
        }
    }
}

impl Place {
    /// A server that is named takes nothing from the environment: its password would be another's.
    pub(super) fn of(arguments: &Arguments, environment: &Environment) -> Self {
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

    pub(super) fn open(&self) -> Result<Pool, LeaseError> {
        Pool::open(&self.address, &self.prefix, PATIENCE)
    }
}

/// The same server, another database.
fn with_db(address: &str, db: &str) -> String {
    let (place, query) = address.split_once('?').unwrap_or((address, ""));
    if place.contains("unix") {
        let mut query: Vec<&str> =
            query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("db=")).collect();
        let db = format!("db={db}");
        query.push(&db);
        return format!("{place}?{}", query.join("&"));
    }
    let (scheme, rest) = place.split_once("://").unwrap_or(("redis", place));
    let authority = rest.split('/').next().unwrap_or_default();
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    format!("{scheme}://{authority}/{db}{query}")
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{Asked, parse};
    use super::*;

    fn place(words: &str, address: Option<&str>) -> Place {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let Ok(Asked::Action(arguments)) = parse(&words) else { panic!("{words:?}") };
        let environment = Environment { address: address.map(str::to_owned), ..Environment::default() };
        Place::of(&arguments, &environment)
    }

    #[test]
    fn flags_come_before_the_environment() {
        for (words, environment, address) in [
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
            assert_eq!(place(words, environment).address, address, "{words} {environment:?}");
        }
        assert_eq!(place("--redis-prefix X", None).prefix, "X");
    }
}
