//! The lease pool, and Redis if the pool is kept there.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_lease::audit::Audit;
use bailiff_lease::{LeaseError, Leases, Local, Pool};
use bailiff_snapshot::Sample;

use super::Doctor;
use super::check::Check;
use crate::args::Backend;
use crate::lease::gpus;
use crate::lease::list::{blocked, state};
use crate::output::joined;

/// The deadline of a Redis reply, which normally takes a millisecond.
const REDIS_DEADLINE: Duration = Duration::from_secs(3);
const REDIS: &str = "redis";
const POOL: &str = "leases";

/// Checks that leases can be granted, and that Redis would keep them.
pub(super) fn checks(flags: &Doctor, sample: Option<&Sample>) -> Vec<Check> {
    match flags.pool.backend() {
        Backend::Redis(address) => in_redis(address, flags, sample),
        Backend::LocalHost(directory) => {
            let hint = "clients of GPU.py, and pools that several machines share, need Redis: LEASE_REDIS_URL=redis://USER:PASSWORD@HOST";
            let mut checks = vec![Check::skip(
                REDIS,
                "LEASE_REDIS_URL is not set, so this machine uses its own pool",
                Some(hint),
            )];
            checks.extend(check_audit(Local::at(directory).audit(), sample));
            checks
        }
    }
}

fn in_redis(address: &str, flags: &Doctor, sample: Option<&Sample>) -> Vec<Check> {
    let mut pool = match Pool::open(address, &flags.pool.prefix, REDIS_DEADLINE.min(flags.deadline)) {
        Ok(pool) => pool,
        Err(error) => return vec![refused(REDIS, &error)],
    };
    let audit = pool.audit();
    if let Err(error @ LeaseError::Denied(_)) = &audit {
        return vec![refused(REDIS, error)];
    }
    let health = match pool.health() {
        Ok(health) => health,
        Err(error) => return vec![refused(REDIS, &error)],
    };
    let version = health.version.clone().unwrap_or_else(|| "unknown version".to_owned());
    let mut checks = vec![Check::ok(REDIS, format!("{version} answers"))];
    for warning in health.warnings() {
        let (text, hint) = warning.split_once(": ").unwrap_or((&warning, "check the configuration of Redis"));
        checks.push(Check::warn(REDIS, text, hint));
    }
    checks.extend(unprotected(address));
    checks.extend(check_audit(audit, sample));
    checks
}

/// Checks the pool's audit, from Redis or from the local directory.
fn check_audit(audit: Result<Audit, LeaseError>, sample: Option<&Sample>) -> Vec<Check> {
    match audit {
        Ok(audit) => of_pool(&audit, sample),
        Err(LeaseError::Absent(_)) => vec![missing_pool()],
        Err(error) => vec![refused(POOL, &error)],
    }
}

fn missing_pool() -> Check {
    let hint =
        "create a pool (bailiff lease init), or check --prefix (LEASE_PREFIX) and --pool-dir (LEASE_DIR)";
    Check::skip(POOL, "there is no lease pool", Some(hint))
}

/// Converts an error to a failed check. The part of its message after the last semicolon is the hint.
fn refused(name: &'static str, error: &LeaseError) -> Check {
    let message = error.to_string();
    let (text, hint) = match error {
        LeaseError::Unreachable { .. } => {
            (message.as_str(), "check that Redis is running and that LEASE_REDIS_URL is its address")
        }
        _ => message.rsplit_once("; ").unwrap_or((&message, "run bailiff lease list to try again")),
    };
    Check::fail(name, text, hint)
}

/// Warns about a Redis server without a password, because any client can release other clients' leases. A Unix
/// socket is protected by its owner and group.
fn unprotected(address: &str) -> Option<Check> {
    let (scheme, rest) = address.split_once("://")?;
    let closed = rest.contains('@') || scheme.contains("unix");
    (!closed).then(|| {
        Check::warn(
            REDIS,
            "Redis requires no password, so any client can take GPUs and release the leases of other users",
            "set requirepass or an ACL user, and LEASE_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/DB",
        )
    })
}

fn of_pool(audit: &Audit, sample: Option<&Sample>) -> Vec<Check> {
    if audit.gpus.is_empty() {
        return vec![missing_pool()];
    }
    let leased = audit.gpus.iter().filter(|gpu| gpu.owner.is_some()).count();
    let waiting = audit.waiting();
    let mut checks =
        vec![Check::ok(POOL, format!("{}, {leased} leased; {waiting} waiting", gpus(audit.gpus.len())))];
    for gpu in audit.gpus.iter().filter(|gpu| gpu.quarantine.is_some()) {
        let why = gpu.quarantine.as_deref().unwrap_or_default();
        let hint =
            "bailiff info shows the processes on the GPU; it can be leased again after they have exited";
        checks.push(Check::warn(POOL, format!("GPU {} is quarantined: {why}", gpu.id), hint));
    }
    checks.extend(audit.gpus.iter().filter_map(|gpu| {
        let text = format!("GPU {} is {}", gpu.id, blocked(gpu)?);
        Some(Check::warn(POOL, text, "the GPU is not leased to others until these processes have exited"))
    }));
    for gpu in audit.gpus.iter().filter(|gpu| gpu.blockers.is_empty() && state(gpu) == "unknown") {
        let text =
            format!("GPU {} is neither idle nor leased, and it was not found which process has it", gpu.id);
        checks.push(Check::warn(
            POOL,
            text,
            "run this as root; if root does not find the process either, /proc/locks has the pid that took the lock, and \
             bailiff lease init --force removes a lock that no process has, once no GPU is leased",
        ));
    }
    checks.extend(unknown_gpus(audit, sample));
    checks
}

/// Warns about GPUs of the pool that this machine does not have although it has other GPUs of the pool.
fn unknown_gpus(audit: &Audit, sample: Option<&Sample>) -> Option<Check> {
    let local_uuids = sample?.gpus.iter().filter_map(|gpu| gpu.about.id.as_ref());
    let local_uuids: BTreeSet<&str> = local_uuids.map(|id| id.0.as_str()).collect();
    let known = audit.gpus.iter().filter_map(|gpu| Some((gpu.id.as_str(), gpu.uuid.as_deref()?)));
    let (local_host, missing): (Vec<_>, Vec<_>) = known.partition(|(_, uuid)| local_uuids.contains(uuid));
    if local_host.is_empty() || missing.is_empty() {
        return None;
    }
    let names = joined(missing.iter().map(|(id, _)| id), ", ");
    Some(Check::warn(
        POOL,
        format!("the pool contains GPUs that do not exist on this machine: GPU {names}"),
        "if a GPU was replaced or has fallen off the bus, recreate the pool: bailiff lease init --force",
    ))
}

#[cfg(test)]
mod tests {
    use bailiff_lease::audit::Gpu;

    use super::super::check::State;
    use super::*;

    #[test]
    fn redis_without_password_is_reported() {
        let open = ["redis://127.0.0.1:6379/0", "rediss://host"];
        let closed =
            ["redis://:secret@host", "redis://bob:secret@host/1", "redis+unix:///run/redis.sock", "nonsense"];
        assert!(open.iter().all(|address| unprotected(address).is_some()));
        assert!(closed.iter().all(|address| unprotected(address).is_none()));
    }

    #[test]
    fn lease_error_is_split_into_text_and_hint() {
        let denied = refused(REDIS, &LeaseError::Denied("NOAUTH".into()));
        assert_eq!((denied.state, denied.text.as_str()), (State::Fail, "Redis refuses access: NOAUTH"));
        assert_eq!(
            denied.hint.as_deref(),
            Some(
                "add a user and a password to the URL, or grant this user the permissions listed in docs/leases.md"
            )
        );
        let absent = check_audit(Err(LeaseError::Absent("/run/bailiff/lease".into())), None);
        assert_eq!(absent[0].state, State::Skip);
    }

    #[test]
    fn gpu_whose_holder_was_not_found_is_reported() {
        let gpu = |idle| Gpu {
            id: "0".to_owned(),
            uuid: None,
            idle,
            pot: 0,
            bar: 0,
            owner: None,
            quarantine: None,
            record: None,
            blockers: Vec::new(),
        };
        let states = |idle| {
            let audit = Audit { gpus: vec![gpu(idle)], ..Audit::default() };
            of_pool(&audit, None).into_iter().map(|check| check.state).collect::<Vec<_>>()
        };
        assert_eq!(states(1), [State::Ok]);
        assert_eq!(states(0), [State::Ok, State::Warn]);
    }
}
