//! The pool of leases, and Redis where that keeps it.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_lease::audit::Audit;
use bailiff_lease::{LeaseError, Leases, Local, Pool};
use bailiff_snapshot::Sample;

use super::check::Check;
use super::flags::Doctor;
use crate::flags::Place;
use crate::lease::gpus;

/// Redis answers in a millisecond, or not.
const PATIENCE: Duration = Duration::from_secs(3);
const REDIS: &str = "redis";
const POOL: &str = "leases";

/// Whether leases can be had, and whether they would be kept.
pub(super) fn checks(flags: &Doctor, sample: Option<&Sample>) -> Vec<Check> {
    match flags.pool.place() {
        Place::Redis(address) => in_redis(address, flags, sample),
        Place::LocalHost(directory) => {
            let hint = "GPU.py's clients, and pools of several machines, need one: LEASE_REDIS_URL=redis://USER:PASSWORD@HOST";
            let mut checks = vec![Check::skip(
                REDIS,
                "LEASE_REDIS_URL names none: this machine keeps its pool itself",
                Some(hint),
            )];
            checks.extend(asked(Local::at(directory).audit(), sample));
            checks
        }
    }
}

fn in_redis(address: &str, flags: &Doctor, sample: Option<&Sample>) -> Vec<Check> {
    let mut pool = match Pool::open(address, &flags.pool.prefix, PATIENCE.min(flags.deadline)) {
        Ok(pool) => pool,
        Err(error) => return vec![refused(REDIS, &error)],
    };
    let told = pool.audit();
    if let Err(error @ LeaseError::Denied(_)) = &told {
        return vec![refused(REDIS, error)];
    }
    let health = match pool.health() {
        Ok(health) => health,
        Err(error) => return vec![refused(REDIS, &error)],
    };
    let version =
        health.version.clone().unwrap_or_else(|| "of a release that it does not tell us".to_owned());
    let mut checks = vec![Check::ok(REDIS, format!("{version} answers"))];
    for warning in health.warnings() {
        let (text, hint) = warning.split_once(": ").unwrap_or((&warning, "see its configuration"));
        checks.push(Check::warn(REDIS, text, hint));
    }
    checks.extend(open_to_all(address));
    checks.extend(asked(told, sample));
    checks
}

/// What the pool told, whoever keeps it.
fn asked(audit: Result<Audit, LeaseError>, sample: Option<&Sample>) -> Vec<Check> {
    match audit {
        Ok(audit) => of_pool(&audit, sample),
        Err(LeaseError::Absent(_)) => vec![none()],
        Err(error) => vec![refused(POOL, &error)],
    }
}

fn none() -> Check {
    let hint =
        "bailiff lease init begins one; or is --prefix (LEASE_PREFIX) or --pool-dir (LEASE_DIR) another?";
    Check::skip(POOL, "there is no pool of GPUs", Some(hint))
}

/// What a trouble says ends with the way out, after its last semicolon.
fn refused(name: &'static str, error: &LeaseError) -> Check {
    let words = error.to_string();
    let (text, hint) = match error {
        LeaseError::Unreachable { .. } => {
            (words.as_str(), "is it running, and is LEASE_REDIS_URL its address?")
        }
        _ => words.rsplit_once("; ").unwrap_or((&words, "bailiff lease list tells whether it is still so")),
    };
    Check::fail(name, text, hint)
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
        return vec![none()];
    }
    let held = audit.gpus.iter().filter(|gpu| gpu.owner.is_some()).count();
    let waiting = audit.queue.len();
    let mut checks =
        vec![Check::ok(POOL, format!("{}, {held} leased; {waiting} wait", gpus(audit.gpus.len())))];
    for gpu in audit.gpus.iter().filter(|gpu| gpu.quarantine.is_some()) {
        let why = gpu.quarantine.as_deref().unwrap_or_default();
        let hint = "bailiff info shows who is on it; once it is free of them it is given out again";
        checks.push(Check::warn(POOL, format!("GPU {} is quarantined: {why}", gpu.id), hint));
    }
    checks.extend(strangers(audit, sample));
    checks
}

/// GPUs of the pool that this machine does not have, where it has others of them.
fn strangers(audit: &Audit, sample: Option<&Sample>) -> Option<Check> {
    let ours = sample?.gpus.iter().filter_map(|gpu| gpu.about.id.as_ref());
    let ours: BTreeSet<&str> = ours.map(|id| id.0.as_str()).collect();
    let known = audit.gpus.iter().filter_map(|gpu| Some((gpu.id.as_str(), gpu.uuid.as_deref()?)));
    let (local_host, missing): (Vec<_>, Vec<_>) = known.partition(|(_, uuid)| ours.contains(uuid));
    if local_host.is_empty() || missing.is_empty() {
        return None;
    }
    let names: Vec<&str> = missing.iter().map(|(id, _)| *id).collect();
    Some(Check::warn(
        POOL,
        format!("the pool hands out what this machine does not have: GPU {}", names.join(", ")),
        "was a GPU replaced, or has it fallen off the bus? bailiff lease init --force begins the pool again",
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
    fn a_error_is_told_with_its_way_out() {
        let denied = refused(REDIS, &LeaseError::Denied("NOAUTH".into()));
        assert_eq!((denied.state, denied.text.as_str()), (State::Fail, "Redis refuses: NOAUTH"));
        assert_eq!(
            denied.hint.as_deref(),
            Some("give a user and a password in the address, or that user the rights of docs/leases.md")
        );
        let absent = asked(Err(LeaseError::Absent("/run/bailiff/lease".into())), None);
        assert_eq!(absent[0].state, State::Skip);
    }
}
