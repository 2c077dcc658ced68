//! `bailiff lease release`, `extend` and `reap`.

use std::process::ExitCode;

use bailiff_lease::audit::Lease;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Extended, LeaseError, Leases, Released};

use super::abandoned::{Abandoned, abandoned, freeable};
use super::flags;
use super::format::{self, ids};
use super::list::state;
use super::{LEASE, offset, open, redis};
use crate::args::Backend;
use crate::exit::{Failure, succeed};
use crate::output::{escaped, joined, print_message, print_stdout};

/// Releases a lease.
pub(crate) fn release(flags: &flags::Release) -> Result<ExitCode, Failure> {
    let mut pool = open(&flags.pool)?;
    if flags.mine {
        return release_all_own(&mut *pool);
    }
    let by = (offset(), std::process::id());
    let (released, lease) = match (&flags.gpu, &flags.lease) {
        (Some(gpu), _) => {
            let (gpu, lease, token) = lease_of_gpu(&mut *pool, gpu)?;
            (pool.release_gpu(&gpu, (&lease, token), by)?, lease)
        }
        (None, lease) => {
            let lease = lease.clone().unwrap_or_default();
            (pool.release(&lease, None, by)?, lease)
        }
    };
    match released {
        Released::Done | Released::Already(_) => Ok(ExitCode::SUCCESS),
        Released::Lost => Err(Failure::not_ours("the lease was lost: its GPUs belong to another lease now")),
        Released::Unknown => Err(Failure::unknown(format!("unknown lease {lease:?}"))),
    }
}

/// Returns the id of a GPU, its lease, and the lease's token. With a token, no waiting request is withdrawn: in the
/// machine's own pool, the holder can write the name of another user's request into the record.
fn lease_of_gpu(pool: &mut dyn Leases, gpu: &str) -> Result<(String, String, Option<u64>), Failure> {
    let audit = pool.audit()?;
    let names: Vec<_> = audit.gpus.iter().map(|gpu| (gpu.id.clone(), gpu.uuid.clone())).collect();
    let requested = ids(&names, gpu)?;
    let target = audit.gpus.iter().find(|gpu| requested.first() == Some(&gpu.id));
    let owner = target.and_then(|gpu| gpu.owner.clone());
    let token = |lease: &String| audit.leases.iter().find(|it| it.lease == *lease)?.number("tok");
    let id = target.map(|gpu| gpu.id.clone());
    id.zip(owner).map(|(id, lease)| (id, lease.clone(), token(&lease))).ok_or_else(|| {
        Failure::not_ours(match target.map(state) {
            Some("unknown") => format!("GPU {gpu} has no lease that is visible here"),
            _ => format!("GPU {gpu} is not leased"),
        })
    })
}

/// Releases all `acquire` and `adopt` leases of this user. Leases from `run` end with their command. Leases in
/// other containers are skipped, because the same UID may be another user there.
fn release_all_own(pool: &mut dyn Leases) -> Result<ExitCode, Failure> {
    let (local_host, uid) = (LocalHost::read(), nix::unistd::getuid().to_string());
    let mine = |lease: &&Lease| {
        let is_own = local_host.is_location_of(lease) && lease.get("uid") == Some(&uid);
        is_own && matches!(lease.get("mode"), Some("acquire" | "timed"))
    };
    let audit = pool.audit()?;
    let (mut released, mut refused) = (0_u32, None);
    for lease in audit.leases.iter().filter(mine) {
        match pool.release(&lease.lease, lease.number("tok"), (offset(), std::process::id())) {
            Ok(Released::Lost) => {
                refused = Some(Failure::not_ours("a lease was lost: its GPUs belong to another lease now"));
            }
            Ok(Released::Done | Released::Already(_)) => released += 1,
            Ok(Released::Unknown) => {
                refused =
                    Some(Failure::not_ours(format!("the record of lease {:?} has changed", lease.lease)));
            }
            Err(error @ (LeaseError::HeldElsewhere(_) | LeaseError::NotNow(_) | LeaseError::Blocked(_))) => {
                refused = Some(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    print_stdout(&format!("{released}\n"))?;
    refused.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Extends a lease.
pub(crate) fn extend(flags: &flags::Extend) -> Result<ExitCode, Failure> {
    match redis(&flags.pool, "does not support `extend`")?.extend(&flags.lease, flags.span)? {
        Extended::Until(until) => {
            succeed(&format!("the lease ends at {}\n", format::time(until).unwrap_or_default()))
        }
        Extended::Endless => {
            Err(Failure::usage("the lease has no expiry time; it ends when its holder exits"))
        }
        Extended::Ended(how) if how == "unknown" => {
            Err(Failure::unknown(format!("unknown lease {:?}", flags.lease)))
        }
        Extended::Ended(how) => Err(Failure::not_ours(format!("the lease is not held: {how}"))),
    }
}

/// Releases the leases whose processes have exited.
pub(crate) fn reap(flags: &flags::Reap) -> Result<ExitCode, Failure> {
    let (mut pool, local_host) = (open(&flags.pool)?, LocalHost::read());
    let mut audit = pool.audit()?;
    if matches!(flags.pool.backend(), Backend::LocalHost(_)) {
        // The kernel has released the locks of exited processes, whatever users wrote into records.
        audit.leases.clear();
    }
    let mut ended = abandoned(&audit, &local_host);
    ended.retain(|abandoned| flags.legacy || abandoned.is_gone(&local_host));
    if ended.is_empty() && !flags.dry_run {
        return succeed(&format!("{}\n", pool.reap_local_host(&local_host, LEASE)?));
    }
    let (mut free, mut kept) = (Vec::new(), Vec::new());
    if !ended.is_empty() {
        let pool = redis(&flags.pool, "has no GPU.py leases")?;
        (free, kept) = freeable(ended, &pool, (&audit, &local_host, &flags.exporter.stream));
    }
    kept.iter().for_each(print_message);
    if flags.dry_run {
        let line = |(lease, why): (&Lease, &str)| {
            let name_and_gpus = format!("{} GPU {}", lease.lease, joined(lease.gpus(), ","));
            format!("{} {why}\n", escaped(&name_and_gpus))
        };
        let abandoned_line = |abandoned: &Abandoned<'_>| {
            let lease = abandoned.lease.map_or("-", |lease| &lease.lease);
            format!("{} GPU {} its process has exited\n", escaped(lease), escaped(&abandoned.gpu.id))
        };
        let lines = audit.to_reap(&local_host).into_iter().map(line);
        return succeed(&lines.chain(free.iter().map(abandoned_line)).collect::<String>());
    }
    let mut freed = pool.reap_local_host(&local_host, LEASE)?;
    let mut pool = redis(&flags.pool, "has no GPU.py leases")?;
    for abandoned in &free {
        freed += usize::from(abandoned.free(&mut pool)?);
    }
    succeed(&format!("{freed}\n"))
}
