//! Requesting GPUs and waiting for them.

#![expect(clippy::disallowed_methods, reason = "a wait has a deadline")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, LeaseError, Leases, Ticket, TicketStatus};

use super::flags::LeaseRequest;
use super::format::{self, ids};
use super::gpu_users::used;
use super::{LEASE, TICKET, gpus, offset};
use crate::exit::Failure;
use crate::output::{joined, print_message};

/// The pause between two attempts to reach Redis.
const RETRY: Duration = Duration::from_millis(200);

/// Creates a ticket for this process with a unique id; `cmd` is shown to other users.
pub(super) fn ticket(pool: &mut dyn Leases, request: &LeaseRequest, cmd: &str) -> Result<Ticket, Failure> {
    let among = request.gpu.as_deref().map(|list| ids(&pool.gpus()?, list)).transpose()?;
    let uid = nix::unistd::getuid();
    if request.priority > 0 && !uid.is_root() {
        return Err(Failure::usage("--priority: values above 0 require root"));
    }
    let mut about = LocalHost::read().holder(std::process::id());
    // GPU.py purges leases whose pid cannot be signalled. Signalling pid 0 always succeeds, so this lease is kept.
    about.push(("legacy_pid", "0".to_owned()));
    about.extend(user_fields());
    about.extend([("mode", "run".to_owned()), ("cmd", cmd.to_owned())]);
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

/// Returns the fields of a ticket that describe the user.
pub(crate) fn user_fields() -> [(&'static str, String); 3] {
    let uid = nix::unistd::getuid();
    [("offset", offset().to_string()), ("uid", uid.to_string()), ("user", user_name(uid.as_raw()))]
}

/// Returns the name of a user, or the uid if it has no name.
pub(crate) fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Returns a random lease id.
pub(crate) fn name() -> std::io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().concat())
}

/// A change of a waiting request.
pub(super) enum RequestEvent<'a> {
    /// The number of requests ahead of it in the queue.
    Behind(u64),
    /// Its new lease id.
    Renamed(&'a str),
}

/// Acknowledges a grant, because an unacknowledged grant goes to the next request. The result may be that the
/// acknowledgement was too late. After a restart of Redis with an older state, this also restores the grant.
fn acknowledge(
    pool: &mut dyn Leases,
    (ticket, grant): (&Ticket, &Grant),
    deadline: Option<Instant>,
) -> Result<TicketStatus, LeaseError> {
    loop {
        match pool.renew(ticket, grant, LEASE) {
            Err(error) if error.passes() && deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                std::thread::park_timeout(RETRY);
            }
            result => return result,
        }
    }
}

/// Waits for a grant and acknowledges it. If the acknowledgement is too late, because this process was stopped or the
/// machine is overloaded, the grant has gone to the next request, and the request is repeated.
fn wait_for_grant(
    pool: &mut dyn Leases,
    (ticket, nonblock): (&mut Ticket, bool),
    (local_host, until): (&LocalHost, Option<Instant>),
    mut notify: impl FnMut(RequestEvent),
) -> Result<TicketStatus, Failure> {
    loop {
        let mut status =
            pool.wait(ticket, (local_host, until), &mut |before| notify(RequestEvent::Behind(before)))?;
        let mut lost = "the place in the queue was lost, because the request was not renewed in time";
        if let TicketStatus::Held(grant) = &status {
            lost =
                "the granted GPUs went to the next request, because the grant was not acknowledged in time";
            let until = if nonblock { Some(Instant::now()) } else { until };
            status = acknowledge(pool, (ticket, grant), until)?;
        }
        match status {
            TicketStatus::Ended(how) if how == "reaped" && !nonblock => {
                ticket.lease = name()?;
                notify(RequestEvent::Renamed(&ticket.lease));
                print_message(format_args!("{lost}; requesting again"));
            }
            status => return Ok(status),
        }
    }
}

/// Requests GPUs and waits up to the requested time; after a grant, the ticket contains the granted lease id. With
/// `--nonblock`, leases of exited processes are released first.
pub(super) fn obtain(
    pool: &mut dyn Leases,
    request: &LeaseRequest,
    ticket: &mut Ticket,
    notify: impl FnMut(RequestEvent),
) -> Result<Grant, Failure> {
    let local_host = LocalHost::read();
    if request.nonblock {
        pool.reap_local_host(&local_host, LEASE)?;
    }
    let avoid_used = request.gpu.is_none() && request.exporter.stream.exists();
    let used = if avoid_used { used(&request.exporter.stream, pool.idle()?.iter()) } else { BTreeMap::new() };
    if !used.is_empty() {
        ticket.about.push(("last", joined(used.keys(), ",")));
    }
    let until = request.wait.map(|wait| Instant::now() + wait);
    match wait_for_grant(pool, (ticket, request.nonblock), (&local_host, until), notify)? {
        TicketStatus::Held(grant) => {
            for (gpu, pids) in grant.gpus.iter().filter_map(|id| used.get_key_value(&id.to_string())) {
                print_message(format_args!(
                    "GPU {gpu} is used by processes {pids:?} without a lease, and no other GPU is idle"
                ));
            }
            Ok(grant)
        }
        TicketStatus::Waiting { .. } => {
            let wait = humantime::format_duration(request.wait.unwrap_or_default());
            Err(Failure::late(format!("no GPU became available within {wait}")))
        }
        TicketStatus::Busy => {
            let audit = pool.pauses_grants().then(|| pool.audit()).transpose()?;
            let paused = audit.as_ref().and_then(format::grants_paused);
            Err(Failure::busy(paused.unwrap_or_else(|| {
                "not enough idle GPUs, or other requests are ahead in the queue".to_owned()
            })))
        }
        TicketStatus::Impossible { managed } => Err(Failure::usage(format!(
            "{} requested, but only {managed} in the pool can match",
            gpus(ticket.want)
        ))),
        TicketStatus::Uninitialised => Err(Failure::no_pool()),
        TicketStatus::Conflict(_) => {
            Err(Failure::not_ours("another lease was granted the same GPU meanwhile"))
        }
        TicketStatus::Ended(how) => Err(Failure::not_ours(format!("the request ended while waiting: {how}"))),
    }
}
