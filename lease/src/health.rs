//! Whether a Redis keeps what it is told: its settings that can lose leases.

use redis::InfoDict;

use crate::{LeaseError, Pool};

/// What a server says of itself; `None` where it does not tell us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Its release.
    pub version: Option<String>,
    /// What becomes of keys when its memory is full.
    pub eviction: Option<String>,
    /// The most memory that it takes, in bytes; 0 is no limit.
    pub most_memory: Option<u64>,
    /// Every change is appended to a file.
    pub appends: Option<bool>,
}

impl Pool {
    /// Asks the server about itself.
    ///
    /// # Errors
    /// Where there is no answer. A server that may not tell us is no error: then nothing is known.
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
    /// What an admin should know, each with the way out.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let evicts = self.eviction.as_deref().filter(|policy| policy.starts_with("allkeys"));
        if let Some(policy) = evicts {
            let when =
                if self.most_memory == Some(0) { "once it is given a maxmemory" } else { "when it is full" };
            warnings.push(format!(
                "Redis throws keys away {when} (maxmemory-policy {policy}), leases included: \
                 CONFIG SET maxmemory-policy noeviction"
            ));
        }
        if self.appends == Some(false) {
            warnings.push(
                "Redis forgets the last leases in a crash (appendonly no): CONFIG SET appendonly yes, \
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
    fn what_can_lose_leases_is_told() {
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
        assert_eq!(of("volatile-lru", 1, true), [""; 0], "of what is ours only what has ended expires");
        assert!(of("allkeys-lru", 1, true)[0].contains("when it is full"));
        assert!(of("allkeys-lfu", 0, true)[0].contains("once it is given"));
        assert!(of("noeviction", 0, false)[0].contains("appendonly yes"));
        assert_eq!(Health::default().warnings(), [""; 0], "what is not known is not told");
    }
}
