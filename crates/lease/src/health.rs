//! The settings of a Redis server that can lose leases.

use redis::InfoDict;

use crate::{LeaseError, Pool};

/// Values that the server's `INFO` reports; `None` if it does not report the value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Release of the server.
    pub version: Option<String>,
    /// The eviction policy (`maxmemory-policy`).
    pub eviction: Option<String>,
    /// Memory limit in bytes (`maxmemory`); 0 means no limit.
    pub most_memory: Option<u64>,
    /// Whether every change is appended to a file (`appendonly`).
    pub appends: Option<bool>,
}

impl Pool {
    /// Queries the server's settings.
    ///
    /// # Errors
    /// If Redis does not respond. If the user is not permitted to query the settings, all values
    /// are `None`.
    pub fn health(&mut self) -> Result<Health, LeaseError> {
        let info: InfoDict = match self.with(|connection| redis::cmd("INFO").query(connection)) {
            Ok(info) => info,
            Err(LeaseError::Denied(_)) => return Ok(Health::default()),
            Err(error) => return Err(error),
        };
        Ok(Health {
            version: info.get("redis_version"),
            eviction: info.get("maxmemory_policy"),
            most_memory: info.get("maxmemory"),
            appends: info.get::<u8>("aof_enabled").map(|enabled| enabled == 1),
        })
    }
}

impl Health {
    /// Settings that an administrator should change, each with the fix.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let evicts = self.eviction.as_deref().filter(|policy| policy.starts_with("allkeys"));
        if let Some(policy) = evicts {
            let when = if self.most_memory == Some(0) { "once maxmemory is set" } else { "when it is full" };
            warnings.push(format!(
                "Redis evicts keys, including leases, {when} (maxmemory-policy {policy}): \
                 CONFIG SET maxmemory-policy noeviction"
            ));
        }
        if self.appends == Some(false) {
            warnings.push(
                "Redis loses the newest leases if it crashes (appendonly no): CONFIG SET appendonly yes, \
                 and appendfsync always"
                    .to_owned(),
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_leases_are_warned_about() {
        let of = |eviction: &str, most, appends| {
            let health = Health {
                version: None,
                eviction: Some(eviction.to_owned()),
                most_memory: Some(most),
                appends: Some(appends),
            };
            health.warnings()
        };
        assert_eq!(of("noeviction", 0, true), [""; 0]);
        assert_eq!(of("volatile-lru", 1, true), [""; 0], "only keys of ended leases can expire");
        assert!(of("allkeys-lru", 1, true)[0].contains("when it is full"));
        assert!(of("allkeys-lfu", 0, true)[0].contains("once maxmemory is set"));
        assert!(of("noeviction", 0, false)[0].contains("appendonly yes"));
        assert_eq!(Health::default().warnings(), [""; 0], "no warning without a value");
    }
}
