//! `bailiff lease acquire` and `adopt`: GPUs for a process that runs already, or for a time.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::Duration;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Leases, Ticket, TicketStatus};

use super::hold::{Whose, leave};
use super::progress::Progress;
use super::request::{News, obtain, ticket};
use super::told::{self, Names, environment};
use super::{LEASE, offset, open, shell};
use crate::exit::Failure;
use crate::flags::{self, Format};
use crate::say::print;

/// Takes GPUs and prints them.
pub(crate) fn acquire(flags: &flags::Acquire) -> Result<ExitCode, Failure> {
    let mut pool = open(&flags.request.pool)?;
    let (ttl, whose) = match flags.duration {
        Some(duration) => {
            (duration, vec![("mode", "timed".to_owned()), ("pid", String::new()), ("start", String::new())])
        }
        None => (LEASE, process(flags.holder)?),
    };
    let mut ticket = ticket(&mut *pool, &flags.request, "acquire")?;
    let mut progress = Progress::of(ticket.want);
    let grant = obtain(&mut *pool, &flags.request, &mut ticket, |news| match news {
        News::Behind(before) => progress.waits(before),
        News::Named(_) => progress.clear(),
    });
    let grant = grant.inspect_err(|_| progress.clear())?;
    let lease = (&ticket, &grant);
    let mut keeper = hand_on(&mut *pool, lease, (ttl, flags.duration), whose)?;
    // Whoever reads it, or its first line, knows the lease; where nobody can, it is given back. So all of it goes at once.
    let printed = text(&mut *pool, lease, flags.format)
        .and_then(|text| Ok(std::io::stdout().write_all(format!("{text}\n").as_bytes())?));
    if printed.is_err() {
        keeper.as_mut().map(Child::kill).transpose()?;
        pool.release(&ticket.lease, Some(grant.token), (offset(), std::process::id()))?;
    }
    printed.map(|()| {
        progress.granted(&grant);
        ExitCode::SUCCESS
    })
}

/// Takes GPUs for whom has them already, if nobody leases them.
pub(crate) fn adopt(flags: &flags::Adopt) -> Result<ExitCode, Failure> {
    let whose = process(Some(flags.pid))?;
    let request = flags::LeaseRequest {
        gpus: None,
        gpu: Some(flags.gpu.clone()),
        wait: None,
        nonblock: true,
        priority: 0,
        note: None,
        job: None,
        exporter: flags::Exporter { stream: PathBuf::new() },
        pool: flags.pool.clone(),
    };
    let mut pool = open(&request.pool)?;
    let mut ticket = ticket(&mut *pool, &request, &shell::command(flags.pid))?;
    let grant = obtain(&mut *pool, &request, &mut ticket, |_| {})?;
    hand_on(&mut *pool, (&ticket, &grant), (LEASE, None), whose)?;
    print(&format!("{}\n", ticket.lease))?;
    Ok(ExitCode::SUCCESS)
}

/// Whose it will be: until then it is ours, and ends with us.
fn process(holder: Option<u32>) -> Result<Whose, Failure> {
    let holder = holder.or_else(shell::runner).ok_or_else(|| Failure::usage("--for: whose is it to be?"))?;
    let mut fields = LocalHost::read().holder(holder);
    if fields.iter().any(|(field, value)| *field == "start" && value.is_empty()) {
        return Err(Failure::usage(format!("there is no process {holder}")));
    }
    fields.push(("mode", "acquire".to_owned()));
    Ok(fields)
}

/// Hands a lease on to whom it is for; whoever is left behind to keep it ends with a failure.
fn hand_on(
    pool: &mut dyn Leases,
    (ticket, grant): (&Ticket, &Grant),
    (ttl, duration): (Duration, Option<Duration>),
    mut whose: Whose,
) -> Result<Option<Child>, Failure> {
    let mut keeper = leave(pool, &ticket.lease, (&mut whose, duration))?;
    let handed = match pool.transfer((&ticket.lease, grant.token), ttl, &whose) {
        Ok(TicketStatus::Held(_)) => return Ok(keeper),
        Ok(_) => Failure::not_ours("the lease was lost as soon as it was given"),
        Err(error) => error.into(),
    };
    keeper.as_mut().map(Child::kill).transpose()?;
    Err(handed)
}

fn text(
    pool: &mut dyn Leases,
    (ticket, grant): (&Ticket, &Grant),
    format: Format,
) -> Result<String, Failure> {
    let ids: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
    Ok(match format {
        Format::Env => {
            let pairs = environment(pool, (&ticket.lease, grant), Names::Uuids)?;
            pairs.iter().map(|(name, value)| format!("export {name}={value}")).collect::<Vec<_>>().join("\n")
        }
        Format::Ids => ids.join(","),
        Format::Uuid => told::uuids(&pool.gpus()?, &ids)
            .ok_or_else(|| Failure::unavailable("the pool knows no UUIDs: it was begun without a driver"))?
            .join(","),
        Format::Json => {
            let audit = pool.audit()?;
            let lease = told::lease(&audit, &ticket.lease)
                .ok_or_else(|| Failure::not_ours("the lease was lost as soon as it was given"))?;
            told::as_json(lease, &audit, &LocalHost::read()).to_string()
        }
    })
}
