//! Asking for GPUs, and waiting for them.

#![expect(clippy::disallowed_methods, reason = "a wait has an end")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, LeaseError, Leases, Ticket, TicketStatus};

use super::told::{self, ids};
use super::unclean::used;
use super::{LEASE, TICKET, gpus_are, offset};
use crate::exit::Failure;
use crate::flags::LeaseRequest;
use crate::say::say;

/// Between two attempts to reach a Redis that has gone.
const PAUSE: Duration = Duration::from_millis(200);

/// A ticket of this process, with a name that nobody has; `cmd` is what others read of it.
pub(super) fn ticket(pool: &mut dyn Leases, request: &LeaseRequest, cmd: &str) -> Result<Ticket, Failure> {
    let among = request.gpu.as_deref().map(|list| ids(&pool.gpus()?, list)).transpose()?;
    let uid = nix::unistd::getuid();
    if request.priority > 0 && !uid.is_root() {
        return Err(Failure::usage(
            "--priority: above 0 is for root, so that nobody overtakes by wishing to",
        ));
    }
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let mut about = LocalHost::read().holder(std::process::id());
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
    about.extend(request.note.clone().map(|note| ("note", note)));
    about.extend(request.job.clone().map(|job| ("job", job)));
    Ok(Ticket {
        lease: name()?,
        want: request
            .gpus
            .unwrap_or_else(|| among.map_or(1, |ids| u32::try_from(ids.len()).unwrap_or(u32::MAX))),
        priority: request.priority,
        ttl: TICKET,
        nonblock: request.nonblock,
        about,
    })
}

/// A name that nobody has.
fn name() -> std::io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().concat())
}

/// What is told of a wait.
pub(super) enum News<'a> {
    /// So many tickets are before it.
    Behind(u64),
    /// It waits under this name now.
    Named(&'a str),
}

/// Whoever is granted something says so, or it is given to the next; he may be too late. A server that came back with an
/// older state is told of it.
fn acknowledge(
    pool: &mut dyn Leases,
    (ticket, grant): (&Ticket, &Grant),
    until: Option<Instant>,
) -> Result<TicketStatus, LeaseError> {
    loop {
        match pool.renew(ticket, grant, LEASE) {
            Err(error) if error.passes() && until.is_none_or(|until| Instant::now() < until) => {
                std::thread::park_timeout(PAUSE);
            }
            said => return said,
        }
    }
}

/// Waits for a grant, and says that it is known. Whoever does so too late, stopped or on a machine that is too busy, has
/// lost it to the next, and asks again.
fn stand(
    pool: &mut dyn Leases,
    (ticket, nonblock): (&mut Ticket, bool),
    (local_host, until): (&LocalHost, Option<Instant>),
    mut tell: impl FnMut(News),
) -> Result<TicketStatus, Failure> {
    loop {
        let mut status = pool.wait(ticket, (local_host, until), &mut |before| tell(News::Behind(before)))?;
        let mut lost = "its place in the line was lost, since nothing was heard of it";
        if let TicketStatus::Held(grant) = &status {
            lost = "the GPUs that it was given went to the next, since it did not answer in time";
            let until = if nonblock { Some(Instant::now()) } else { until };
            status = acknowledge(pool, (ticket, grant), until)?;
        }
        match status {
            TicketStatus::Ended(how) if how == "reaped" && !nonblock => {
                ticket.lease = name()?;
                tell(News::Named(&ticket.lease));
                say(format_args!("{lost}: asks again"));
            }
            status => return Ok(status),
        }
    }
}

/// Asks, and waits as long as was wished; the ticket is as it was granted then. What the dead held is freed before where
/// nothing is waited for.
pub(super) fn obtain(
    pool: &mut dyn Leases,
    request: &LeaseRequest,
    ticket: &mut Ticket,
    tell: impl FnMut(News),
) -> Result<Grant, Failure> {
    let local_host = LocalHost::read();
    if request.nonblock {
        pool.reap_local_host(&local_host, LEASE)?;
    }
    let told = request.gpu.is_none() && request.exporter.stream.exists();
    let used = if told { used(&request.exporter.stream, pool.idle()?.iter()) } else { BTreeMap::new() };
    if !used.is_empty() {
        ticket.about.push(("last", used.keys().cloned().collect::<Vec<_>>().join(",")));
    }
    let until = request.wait.map(|wait| Instant::now() + wait);
    match stand(pool, (ticket, request.nonblock), (&local_host, until), tell)? {
        TicketStatus::Held(grant) => {
            for (gpu, pids) in grant.gpus.iter().filter_map(|id| used.get_key_value(&id.to_string())) {
                say(format_args!("GPU {gpu} is used by {pids:?}, who lease nothing; no other was idle"));
            }
            Ok(grant)
        }
        TicketStatus::Waiting { .. } => {
            let wait = humantime::format_duration(request.wait.unwrap_or_default());
            Err(Failure::late(format!("no GPU within {wait}")))
        }
        TicketStatus::Busy => {
            let closed = told::closed(&pool.audit()?);
            Err(Failure::busy(
                closed.unwrap_or_else(|| "not enough GPUs are idle, or others were first".to_owned()),
            ))
        }
        TicketStatus::Impossible { managed } => {
            Err(Failure::usage(format!("{} wanted, and {managed} would do", gpus_are(ticket.want))))
        }
        TicketStatus::Uninitialised => Err(Failure::no_pool()),
        TicketStatus::Conflict(_) => Err(Failure::not_ours("somebody else was given the same GPU meanwhile")),
        TicketStatus::Ended(how) => {
            Err(Failure::not_ours(format!("the ticket has ended while it waited: {how}")))
        }
    }
}
