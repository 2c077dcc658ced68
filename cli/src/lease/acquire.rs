//! `bailiff lease acquire` and `adopt`: leases for a running process or for a fixed time.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::Duration;

use bailiff_lease::audit::Lease;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Leases, Ticket, TicketStatus};

use super::flags::{self, Format};
use super::format::{GpuNames, environment};
use super::hold::{HolderFields, spawn_holder};
use super::progress::Progress;
use super::request::{RequestEvent, obtain, ticket};
use super::{LEASE, format, offset, open};
use crate::exit::{Failure, succeed};
use crate::output::{joined, json};

/// Leases GPUs and prints the lease.
pub(crate) fn acquire(flags: &flags::Acquire) -> Result<ExitCode, Failure> {
    let mut pool = open(&flags.request.pool)?;
    let (ttl, holder) = match flags.duration {
        Some(duration) => {
            (duration, vec![("mode", "timed".to_owned()), ("pid", String::new()), ("start", String::new())])
        }
        None => (LEASE, process(flags.holder)?),
    };
    let mut ticket = ticket(&mut *pool, &flags.request, "acquire")?;
    let mut progress = Progress::new(ticket.want);
    let grant = obtain(&mut *pool, &flags.request, &mut ticket, |event| match event {
        RequestEvent::Behind(before) => progress.waiting(before),
        RequestEvent::Renamed(_) => progress.clear(),
    });
    let grant = grant.inspect_err(|_| progress.clear())?;
    let lease = (&ticket, &grant);
    let mut lock_holder = transfer(&mut *pool, lease, (ttl, flags.duration), holder)?;
    // A single write, so that a reader gets the whole text or nothing. If it fails, the lease is released.
    let printed = text(&mut *pool, lease, flags.format)
        .and_then(|text| Ok(std::io::stdout().write_all(format!("{text}\n").as_bytes())?));
    if printed.is_err() {
        lock_holder.as_mut().map(Child::kill).transpose()?;
        pool.release(&ticket.lease, Some(grant.token), (offset(), std::process::id()))?;
    }
    printed.map(|()| {
        progress.granted(&grant);
        ExitCode::SUCCESS
    })
}

/// Leases the GPUs that a process already uses, if they are not leased.
pub(crate) fn adopt(flags: &flags::Adopt) -> Result<ExitCode, Failure> {
    let holder = process(Some(flags.pid))?;
    let request = flags::LeaseRequest {
        gpus: None,
        gpu: Some(flags.gpu.clone()),
        wait: None,
        nonblock: true,
        priority: 0,
        note: None,
        job: None,
        exporter: crate::args::Exporter { stream: PathBuf::new() },
        pool: flags.pool.clone(),
    };
    let mut pool = open(&request.pool)?;
    let mut ticket = ticket(&mut *pool, &request, &format::command(flags.pid))?;
    let grant = obtain(&mut *pool, &request, &mut ticket, |_| {})?;
    transfer(&mut *pool, (&ticket, &grant), (LEASE, None), holder)?;
    succeed(&format!("{}\n", ticket.lease))
}

/// Returns the holder fields of a process, by default the calling shell. Until the transfer, this process is the
/// holder.
fn process(pid: Option<u32>) -> Result<HolderFields, Failure> {
    let pid = pid
        .or_else(format::runner)
        .ok_or_else(|| Failure::usage("cannot find the calling shell; specify a process with --for"))?;
    let mut fields = LocalHost::read().holder(pid);
    if fields.iter().any(|(field, value)| *field == "start" && value.is_empty()) {
        return Err(Failure::usage(format!("there is no process {pid}")));
    }
    fields.push(("mode", "acquire".to_owned()));
    Ok(fields)
}

/// Transfers a lease to its holder. If that fails, the spawned lock holder is killed.
fn transfer(
    pool: &mut dyn Leases,
    (ticket, grant): (&Ticket, &Grant),
    (ttl, duration): (Duration, Option<Duration>),
    mut holder: HolderFields,
) -> Result<Option<Child>, Failure> {
    let mut lock_holder = spawn_holder(pool, &ticket.lease, (&mut holder, duration))?;
    let failure = match pool.transfer((&ticket.lease, grant.token), ttl, &holder) {
        Ok(TicketStatus::Held(_)) => return Ok(lock_holder),
        Ok(_) => Failure::not_ours("the lease was lost before it could be transferred to its holder"),
        Err(error) => error.into(),
    };
    lock_holder.as_mut().map(Child::kill).transpose()?;
    Err(failure)
}

fn text(
    pool: &mut dyn Leases,
    (ticket, grant): (&Ticket, &Grant),
    format: Format,
) -> Result<String, Failure> {
    let ids: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
    Ok(match format {
        Format::Env => {
            let pairs = environment(pool, (&ticket.lease, grant), GpuNames::Uuids)?;
            joined(pairs.iter().map(|(name, value)| format!("export {name}={}", quoted(value))), "\n")
        }
        Format::Ids => ids.join(","),
        Format::Uuid => format::uuids(&pool.gpus()?, &ids)
            .ok_or_else(|| {
                Failure::unavailable(
                    "the pool has no UUIDs, because it was created without a driver (use --format ids)",
                )
            })?
            .join(","),
        Format::Json => {
            let audit = pool.audit()?;
            // Another user can prevent that the record is read.
            let own = || own_lease(ticket, (grant, &ids));
            let lease = format::lease(&audit, &ticket.lease).cloned().unwrap_or_else(own);
            json(&format::as_json(&lease, &audit, &LocalHost::read()))?.trim_end().to_owned()
        }
    })
}

/// Returns what this process knows about a lease.
fn own_lease(ticket: &Ticket, (grant, ids): (&Grant, &[String])) -> Lease {
    let about = ticket.about.iter().map(|(field, value)| ((*field).to_owned(), value.clone()));
    let granted =
        [("gpus", ids.join(",")), ("tok", grant.token.to_string()), ("want", ids.len().to_string())];
    let granted = granted.map(|(field, value)| (field.to_owned(), value));
    Lease {
        lease: ticket.lease.clone(),
        state: "held".to_owned(),
        expires: f64::INFINITY,
        about: about.chain(granted).map(|(field, value)| (field, value.into())).collect(),
    }
}

/// Quotes a value for a shell, if it is more than letters, digits and a few marks.
fn quoted(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.,:/-".contains(&byte);
    if value.bytes().all(is_plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
}
