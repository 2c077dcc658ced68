//! Asking for GPUs, and waiting for them.

#![expect(clippy::disallowed_methods, reason = "a wait has an end")]

use std::collections::BTreeMap;
use std::time::Instant;

use bailiff_lease::holder::Here;
use bailiff_lease::{Grant, Leases, Standing, Ticket};

use super::told::ids;
use super::unclean::unclean;
use super::{LEASE, TICKET, offset};
use crate::exit::Failure;
use crate::flags::Ask;

/// A ticket of this process, with a name that nobody has; `cmd` is what others read of it.
pub(super) fn ticket(pool: &mut dyn Leases, ask: &Ask, cmd: &str) -> Result<Ticket, Failure> {
    let among = ask.gpu.as_deref().map(|list| ids(&pool.audit()?, list)).transpose()?;
    let uid = nix::unistd::getuid();
    if ask.priority > 0 && !uid.is_root() {
        return Err(Failure::usage(
            "--priority: above 0 is for root, so that nobody overtakes by wishing to",
        ));
    }
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let mut about = Here::look().holder(std::process::id());
    about.extend([
        // No purge of GPU.py's ends it: to signal 0 is always allowed.
        ("legacy_pid", "0".to_owned()),
        ("offset", offset().to_string()),
        ("uid", uid.to_string()),
        ("user", user.unwrap_or_else(|| uid.to_string())),
        ("mode", "run".to_owned()),
        ("cmd", cmd.to_owned()),
    ]);
    about.extend(among.as_ref().map(|ids| ("among", ids.join(","))));
    about.extend(ask.note.clone().map(|note| ("note", note)));
    about.extend(ask.job.clone().map(|job| ("job", job)));
    Ok(Ticket {
        lease: random.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().concat(),
        want: ask.gpus.unwrap_or_else(|| among.map_or(1, |ids| u32::try_from(ids.len()).unwrap_or(u32::MAX))),
        priority: ask.priority,
        ttl: TICKET,
        nonblock: ask.nonblock,
        about,
    })
}

/// Asks, and waits as long as was wished. What the dead held is freed before.
pub(super) fn obtain(
    pool: &mut dyn Leases,
    ask: &Ask,
    ticket: &Ticket,
    mut tell: impl FnMut(u64),
) -> Result<Grant, Failure> {
    let here = Here::look();
    pool.reap_here(&here, LEASE)?;
    let told = ask.gpu.is_none() && ask.stream.exists();
    let used = if told { unclean(&ask.stream, &pool.audit()?) } else { BTreeMap::new() };
    let mut ticket = ticket.clone();
    if !used.is_empty() {
        ticket.about.push(("last", used.keys().cloned().collect::<Vec<_>>().join(",")));
    }
    let until = ask.wait.map(|wait| Instant::now() + wait);
    let mut standing = pool.wait(&ticket, (&here, until), &mut tell)?;
    if let Standing::Held(grant) = &standing {
        // Whoever is granted something says so, or it is given to the next; he may be too late.
        standing = pool.touch(&ticket.lease, LEASE, Some(grant.token))?;
    }
    match standing {
        Standing::Held(grant) => {
            for (gpu, pids) in grant.gpus.iter().filter_map(|id| used.get_key_value(&id.to_string())) {
                eprintln!("bailiff: GPU {gpu} is used by {pids:?}, who lease nothing; no other was idle");
            }
            Ok(grant)
        }
        Standing::Waiting { .. } => {
            let wait = humantime::format_duration(ask.wait.unwrap_or_default());
            Err(Failure::late(format!("no GPU within {wait}")))
        }
        Standing::Busy => Err(Failure::busy("not enough GPUs are idle, or others were first")),
        Standing::Impossible { managed } => Err(Failure::usage(format!(
            "{} GPUs are wanted, and there are {managed} that would do",
            ticket.want
        ))),
        Standing::Uninitialised => Err(Failure::unavailable(
            "this pool has no GPUs: is the prefix right, and has anybody run `bailiff lease init`?",
        )),
        Standing::Conflict(_) => Err(Failure::not_ours("somebody else was given the same GPU meanwhile")),
        Standing::Ended(how) => {
            Err(Failure::not_ours(format!("the ticket has ended while it waited: {how}")))
        }
    }
}
