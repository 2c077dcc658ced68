//! Redis, and the pool of leases in it.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_lease::audit::Audit;
use bailiff_lease::{Pool, Trouble};
use bailiff_snapshot::Sample;

use super::check::Check;
use super::flags::Doctor;

/// Where leases are kept unless somebody says otherwise.
const DEFAULT: &str = "redis://127.0.0.1:6379/0";
/// Redis answers in a millisecond, or not.
const PATIENCE: Duration = Duration::from_secs(3);
const REDIS: &str = "redis";
const POOL: &str = "leases";

/// Whether leases can be had, and whether they would be kept.
pub(super) fn checks(flags: &Doctor, sample: Option<&Sample>) -> Vec<Check> {
    let address = flags.redis.as_deref().filter(|address| !address.is_empty());
    let mut pool = match Pool::open(address.unwrap_or(DEFAULT), &flags.prefix, PATIENCE.min(flags.deadline)) {
        Ok(pool) => pool,
        Err(trouble) => return vec![unopened(address, &trouble)],
    };
    let mut checks = Vec::new();
    match pool.health() {
        Ok(health) => {
            let version =
                health.version.clone().unwrap_or_else(|| "of a release that it does not tell us".to_owned());
            checks.push(Check::ok(REDIS, format!("{version} answers")));
            for warning in health.warnings() {
                let (text, hint) = warning.split_once(": ").unwrap_or((&warning, "see its configuration"));
                checks.push(Check::warn(REDIS, text, hint));
            }
        }
        Err(trouble) => return vec![refused(&trouble)],
    }
    checks.extend(open_to_all(address.unwrap_or(DEFAULT)));
    match pool.audit() {
        Ok(audit) => checks.extend(of_pool(&audit, sample)),
        Err(trouble) => checks.push(refused(&trouble)),
    }
    checks
}

fn unopened(address: Option<&str>, trouble: &Trouble) -> Check {
    let hint = "leases need a Redis: redis-server, and LEASE_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/DB";
    match (address, trouble) {
        (None, Trouble::Unreachable { .. }) => {
            Check::skip(REDIS, format!("none at {DEFAULT}, and LEASE_REDIS_URL names no other"), Some(hint))
        }
        (_, Trouble::Unreachable { .. }) => {
            Check::fail(REDIS, trouble.to_string(), "is it running, and is LEASE_REDIS_URL its address?")
        }
        _ => refused(trouble),
    }
}

/// What a trouble says ends with the way out, after its last semicolon.
fn refused(trouble: &Trouble) -> Check {
    let words = trouble.to_string();
    let (text, hint) =
        words.rsplit_once("; ").unwrap_or((&words, "redis-cli, with the same address, tells more"));
    Check::fail(REDIS, text, hint)
}

/// Without a password whoever reaches it may free what others hold; a Unix socket has an owner and a group.
fn open_to_all(address: &str) -> Option<Check> {
    let (scheme, rest) = address.split_once("://")?;
    let closed = rest.contains('@') || scheme.contains("unix");
    (!closed).then(|| {
        Check::warn(
            REDIS,
            "it wants no password: whoever reaches it may take and free the GPUs of others",
            "requirepass, or an ACL user, and LEASE_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/DB",
        )
    })
}

fn of_pool(audit: &Audit, sample: Option<&Sample>) -> Vec<Check> {
    if audit.gpus.is_empty() {
        let hint = "bailiff lease init begins one; or is --prefix (LEASE_PREFIX) another?";
        return vec![Check::skip(POOL, "there is no pool of GPUs", Some(hint))];
    }
    let held = audit.gpus.iter().filter(|gpu| gpu.owner.is_some()).count();
    let waiting = audit.queue.len();
    let mut checks =
        vec![Check::ok(POOL, format!("{} GPUs, {held} leased; {waiting} wait", audit.gpus.len()))];
    for gpu in audit.gpus.iter().filter(|gpu| gpu.quarantine.is_some()) {
        let why = gpu.quarantine.as_deref().unwrap_or_default();
        let hint = "bailiff info shows who is on it; once it is free of them it is given out again";
        checks.push(Check::warn(POOL, format!("GPU {} is withheld: {why}", gpu.id), hint));
    }
    checks.extend(strangers(audit, sample));
    checks
}

/// GPUs of the pool that this machine does not have, where it has others of them.
fn strangers(audit: &Audit, sample: Option<&Sample>) -> Option<Check> {
    let ours = sample?.gpus.iter().filter_map(|gpu| gpu.about.id.as_ref());
    let ours: BTreeSet<&str> = ours.map(|id| id.0.as_str()).collect();
    let known = audit.gpus.iter().filter_map(|gpu| Some((gpu.id.as_str(), gpu.uuid.as_deref()?)));
    let (here, missing): (Vec<_>, Vec<_>) = known.partition(|(_, uuid)| ours.contains(uuid));
    if here.is_empty() || missing.is_empty() {
        return None;
    }
    let names: Vec<&str> = missing.iter().map(|(id, _)| *id).collect();
    Some(Check::warn(
        POOL,
        format!("the pool hands out what this machine does not have: GPU {}", names.join(", ")),
        "was a GPU replaced, or has it fallen off the bus? bailiff lease init --force begins the pool anew",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn a_server_that_anybody_may_use_is_told() {
        let open = ["redis://127.0.0.1:6379/0", "rediss://host"];
        let closed =
            ["redis://:secret@host", "redis://bob:secret@host/1", "redis+unix:///run/redis.sock", "nonsense"];
        assert!(open.iter().all(|address| open_to_all(address).is_some()));
        assert!(closed.iter().all(|address| open_to_all(address).is_none()));
    }

    #[test]
    fn a_redis_that_nobody_asked_for_may_be_missing() {
        let gone = Trouble::Unreachable { address: "x".into(), why: "connection refused".into() };
        assert_eq!(unopened(None, &gone).state, State::Skip);
        assert_eq!(unopened(Some("redis://x"), &gone).state, State::Fail);
        let denied = unopened(None, &Trouble::Denied("NOAUTH".into()));
        assert_eq!(denied.text, "Redis refuses: NOAUTH");
        assert_eq!(denied.hint.as_deref(), Some("give a user and a password in the address"));
    }
}
