//! The ends of leases: `bailiff lease release`, `extend` and `reap`.

use std::process::ExitCode;

use bailiff_lease::audit::Lease;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Extended, LeaseError, Leases, Released};

use super::abandoned::{Abandoned, abandoned, freeable};
use super::told::{self, ids};
use super::{LEASE, offset, open, redis};
use crate::exit::Failure;
use crate::flags;
use crate::say::{print, say};

/// Gives GPUs back.
pub(crate) fn release(flags: &flags::Release) -> Result<ExitCode, Failure> {
    let mut pool = open(&flags.pool)?;
    if flags.mine {
        return all_of_mine(&mut *pool);
    }
    let lease = match (&flags.gpu, &flags.lease) {
        (Some(gpu), _) => of_gpu(&mut *pool, gpu)?,
        (None, lease) => lease.clone().unwrap_or_default(),
    };
    match pool.release(&lease, None, (offset(), std::process::id()))? {
        Released::Done | Released::Already(_) => Ok(ExitCode::SUCCESS),
        Released::Lost => Err(Failure::not_ours("it is somebody else's by now")),
        Released::Unknown => Err(Failure::unknown(format!("nothing is known of a lease {lease:?}"))),
    }
}

fn of_gpu(pool: &mut dyn Leases, gpu: &str) -> Result<String, Failure> {
    let audit = pool.audit()?;
    let names: Vec<_> = audit.gpus.iter().map(|gpu| (gpu.id.clone(), gpu.uuid.clone())).collect();
    let wanted = ids(&names, gpu)?;
    let held = audit.gpus.iter().find(|gpu| wanted.first() == Some(&gpu.id));
    let owner = held.and_then(|gpu| gpu.owner.clone());
    owner.ok_or_else(|| Failure::not_ours(format!("no lease holds GPU {gpu}")))
}

/// What `run` holds ends with its command. The number of a user in another container is another's.
fn all_of_mine(pool: &mut dyn Leases) -> Result<ExitCode, Failure> {
    let (local_host, uid) = (LocalHost::read(), nix::unistd::getuid().to_string());
    let mine = |lease: &&Lease| {
        let ours = local_host.is_location_of(lease) && lease.get("uid") == Some(&uid);
        ours && matches!(lease.get("mode"), Some("acquire" | "timed"))
    };
    let audit = pool.audit()?;
    let (mut released, mut refused) = (0_u32, None);
    for lease in audit.leases.iter().filter(mine) {
        match pool.release(&lease.lease, None, (offset(), std::process::id())) {
            Ok(Released::Lost) => refused = Some(Failure::not_ours("one is somebody else's by now")),
            Ok(_) => released += 1,
            Err(error @ (LeaseError::HeldElsewhere(_) | LeaseError::NotNow(_))) => {
                refused = Some(error.into())
            }
            Err(error) => return Err(error.into()),
        }
    }
    print(&format!("{released}\n"))?;
    refused.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Gives more time.
pub(crate) fn extend(flags: &flags::Extend) -> Result<ExitCode, Failure> {
    match redis(&flags.pool, "gives no more time")?.extend(&flags.lease, flags.span)? {
        Extended::Until(until) => {
            print(&format!("it ends at {}\n", told::time(until).unwrap_or_default()))?;
            Ok(ExitCode::SUCCESS)
        }
        Extended::Endless => Err(Failure::usage("it has no end of its own: it ends with its holder")),
        Extended::Ended(how) if how == "unknown" => {
            Err(Failure::unknown(format!("nothing is known of a lease {:?}", flags.lease)))
        }
        Extended::Ended(how) => Err(Failure::not_ours(format!("it is not held: {how}"))),
    }
}

/// Frees what the dead held.
pub(crate) fn reap(flags: &flags::Reap) -> Result<ExitCode, Failure> {
    let (mut pool, local_host) = (open(&flags.pool)?, LocalHost::read());
    let audit = pool.audit()?;
    let mut ended = abandoned(&audit, &local_host);
    ended.retain(|one| flags.legacy || one.is_gone(&local_host));
    if ended.is_empty() && !flags.dry_run {
        print(&format!("{}\n", pool.reap_local_host(&local_host, LEASE)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut free, mut kept) = (Vec::new(), Vec::new());
    if !ended.is_empty() {
        let pool = redis(&flags.pool, "has no leases of GPU.py")?;
        (free, kept) = freeable(ended, &pool, (&audit, &local_host, &flags.exporter.stream));
    }
    kept.iter().for_each(say);
    if flags.dry_run {
        let line = |(lease, why): (&Lease, &str)| {
            let gpus: Vec<&str> = lease.gpus().collect();
            format!("{} GPU {} {why}\n", lease.lease, gpus.join(","))
        };
        let of = |one: &Abandoned<'_>| {
            let lease = one.lease.map_or("-", |lease| &lease.lease);
            format!("{lease} GPU {} its process has ended\n", one.gpu.id)
        };
        print(
            &audit.to_reap(&local_host).into_iter().map(line).chain(free.iter().map(of)).collect::<String>(),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut freed = pool.reap_local_host(&local_host, LEASE)?;
    let mut pool = redis(&flags.pool, "has no leases of GPU.py")?;
    for one in &free {
        freed += usize::from(one.free(&mut pool)?);
    }
    print(&format!("{freed}\n"))?;
    Ok(ExitCode::SUCCESS)
}
