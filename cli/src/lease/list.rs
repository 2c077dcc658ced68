//! `bailiff lease list` and `queue`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use bailiff_lease::audit::{Audit, Blocker, Gpu, Lease};
use bailiff_lease::holder::LocalHost;
use serde_json::{Value, json};

use super::abandoned::abandoned;
use super::format::{self, as_json, holder, span};
use super::request::user_name;
use super::{flags, gpus, open};
use crate::exit::{Failure, succeed};
use crate::output::{self, escaped, joined, print_message, print_stdout};

/// Prints the GPUs, their leases and the queue.
pub(crate) fn list(flags: &flags::List) -> Result<ExitCode, Failure> {
    let mut audit = audit(flags)?;
    // GPU ids that are not numbers come last.
    audit.gpus.sort_by_key(|gpu| (gpu.id.parse().unwrap_or(u32::MAX), gpu.id.clone()));
    if flags.json {
        let local_host = LocalHost::read();
        let gpus: Vec<Value> = audit.gpus.iter().map(|gpu| gpu_as_json(gpu, &audit, &local_host)).collect();
        let waiting = waiting_as_json(&audit, &local_host);
        let report = json!({"gpus": gpus, "waiting": waiting, "waiting_not_shown": audit.unread});
        return succeed(&output::json(&report)?);
    }
    let head = format!("{:<5} {:<11} {:<12} {:>8} {:>9}  COMMAND", "GPU", "STATE", "USER", "PID", "SINCE");
    let mut lines = vec![head];
    let abandoned = abandoned(&audit, &LocalHost::read());
    lines.extend(audit.gpus.iter().map(|gpu| {
        let is_gone = abandoned.iter().any(|abandoned| abandoned.gpu.id == gpu.id);
        let blocked = blocked(gpu).map(|blocked| format!(" ({blocked})")).unwrap_or_default();
        line(gpu, &audit) + if is_gone { " (process gone)" } else { "" } + &blocked
    }));
    for (position, ticket) in waiting(&audit).into_iter().enumerate() {
        let (want, position) = (format!("x{}", field(ticket, "want")), format!("waits #{}", position + 1));
        let owner = owner_columns(ticket, "asked", &audit);
        lines.push(format!("{want:<5} {position:<11} {owner}"));
    }
    print_stdout(&(lines.join("\n") + "\n"))?;
    if let Some(paused) = format::grants_paused(&audit) {
        print_message(paused);
    }
    print_unread(&audit);
    Ok(ExitCode::SUCCESS)
}

/// Prints how many waiting requests were not read.
fn print_unread(audit: &Audit) {
    if audit.unread > 0 {
        print_message(format_args!(
            "{} further waiting requests are not shown, because their users have very many",
            audit.unread
        ));
    }
}

/// Returns the state of an existing pool.
pub(super) fn audit(flags: &flags::List) -> Result<Audit, Failure> {
    let audit = open(&flags.pool)?.audit()?;
    if audit.gpus.is_empty() && audit.queue.is_empty() {
        return Err(Failure::no_pool());
    }
    Ok(audit)
}

fn line(gpu: &Gpu, audit: &Audit) -> String {
    let owner = match (holder(audit, gpu), &gpu.record) {
        (Some(lease), _) => owner_columns(lease, "granted", audit),
        (None, record) => {
            let pid = record.as_ref().map_or_else(|| "-".to_owned(), |record| escaped(&record.pid));
            format!("{:<12} {pid:>8} {:>9}  -", "-", "-")
        }
    };
    format!("{:<5} {:<11} {owner}", escaped(&gpu.id), state(gpu))
}

/// Returns the columns of a lease: its user, its process, the time since the timestamp in `since_field`, and its
/// command.
fn owner_columns(lease: &Lease, since_field: &str, audit: &Audit) -> String {
    let (user, pid, since) = (field(lease, "user"), field(lease, "pid"), since(lease, since_field, audit));
    format!("{user:<12} {pid:>8} {since:>9}  {}", command(lease))
}

/// Describes the processes that have locked a GPU without a lease.
pub(crate) fn blocked(gpu: &Gpu) -> Option<String> {
    let describe = |blocker: &Blocker| {
        let user = blocker.uid.map_or_else(|| "unknown".to_owned(), user_name);
        format!("process {} of user {}", blocker.pid, escaped(&user))
    };
    let blockers: Vec<String> = gpu.blockers.iter().map(describe).collect();
    (!blockers.is_empty()).then(|| format!("locked without a lease by {}", blockers.join(", ")))
}

fn field(lease: &Lease, name: &str) -> String {
    escaped(lease.get(name).unwrap_or("-"))
}

/// Returns the command of a lease with the user's note.
pub(super) fn command(lease: &Lease) -> String {
    let (command, note) = (field(lease, "cmd"), field(lease, "note"));
    if note == "-" { command } else { format!("{command}  # {note}") }
}

/// Returns the time since the timestamp in a lease's field.
pub(super) fn since(lease: &Lease, field: &str, audit: &Audit) -> String {
    let then = lease.get(field).and_then(|text| text.parse::<u64>().ok());
    then.map_or_else(|| "-".to_owned(), |then| span(audit.now.saturating_sub(then)))
}

/// Prints the queue.
pub(crate) fn queue(flags: &flags::List) -> Result<ExitCode, Failure> {
    let audit = audit(flags)?;
    print_unread(&audit);
    if flags.json {
        return succeed(&output::json(&waiting_as_json(&audit, &LocalHost::read()))?);
    }
    let mut lines = vec![format!(
        "{:<5} {:>4} {:>5} {:<12} {:>8} {:>9}  COMMAND",
        "PLACE", "GPUS", "PRIO", "USER", "PID", "WAITS"
    )];
    for (position, ticket) in waiting(&audit).into_iter().enumerate() {
        let (want, prio) = (field(ticket, "want"), field(ticket, "prio"));
        let owner = owner_columns(ticket, "asked", &audit);
        lines.push(format!("{:<5} {want:>4} {prio:>5} {owner}", position + 1));
    }
    succeed(&(lines.join("\n") + "\n"))
}

/// Returns the waiting requests, in order.
pub(super) fn waiting(audit: &Audit) -> Vec<&Lease> {
    let mut by_name: BTreeMap<&str, &Lease> = BTreeMap::new();
    for lease in &audit.leases {
        by_name.entry(&lease.lease).or_insert(lease);
    }
    audit.queue.iter().filter_map(|name| by_name.get(name.as_str()).copied()).collect()
}

fn waiting_as_json(audit: &Audit, local_host: &LocalHost) -> Vec<Value> {
    waiting(audit).into_iter().map(|ticket| as_json(ticket, audit, local_host)).collect()
}

/// Returns the lease state of a GPU.
pub(crate) fn state(gpu: &Gpu) -> &'static str {
    match gpu {
        _ if gpu.owner.is_some() => "leased",
        _ if gpu.quarantine.is_some() => "quarantined",
        _ if gpu.idle > 0 => "idle",
        _ if gpu.pot > 0 => "gathering",
        _ if gpu.bar > 0 => "barrier",
        // Taken by GPU.py.
        _ if gpu.record.is_some() => "legacy",
        _ => "unknown",
    }
}

fn gpu_as_json(gpu: &Gpu, audit: &Audit, local_host: &LocalHost) -> Value {
    let lease_of_gpu = holder(audit, gpu).map(|lease| as_json(lease, audit, local_host));
    let legacy = gpu.record.as_ref().filter(|record| record.lease.is_none());
    let legacy = legacy
        .map(|record| json!({"legacy": true, "pid": record.pid.parse::<u64>().ok(), "time": record.time}));
    let blocker = |blocker: &Blocker| json!({"pid": blocker.pid, "user": blocker.uid.map(user_name)});
    let blockers = gpu.blockers.iter().map(blocker).collect::<Vec<_>>();
    let blockers = Some(blockers).filter(|blockers| !blockers.is_empty());
    json!({"id": gpu.id, "uuid": gpu.uuid, "state": state(gpu), "lease": lease_of_gpu.or(legacy), "blockers": blockers})
}

/// Prints the status.
pub(crate) fn status(flags: &flags::List) -> Result<ExitCode, Failure> {
    let (audit, local_host) = (audit(flags)?, LocalHost::read());
    let uid = nix::unistd::getuid().to_string();
    let is_mine = |lease: &&Lease| local_host.is_location_of(lease) && lease.get("uid") == Some(&uid);
    let own_leases: Vec<&Lease> =
        audit.leases.iter().filter(|lease| lease.state == "held").filter(is_mine).collect();
    let tickets: Vec<(usize, &Lease)> =
        waiting(&audit).into_iter().enumerate().filter(|(_, ticket)| is_mine(ticket)).collect();
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &audit.gpus {
        *states.entry(state(gpu)).or_default() += 1;
    }
    if flags.json {
        let leases: Vec<_> = own_leases.iter().map(|lease| as_json(lease, &audit, &local_host)).collect();
        let tickets: Vec<_> =
            tickets.iter().map(|(_, ticket)| as_json(ticket, &audit, &local_host)).collect();
        let waiting = audit.waiting();
        let report = json!({"gpus": states, "waiting": waiting, "leases": leases, "tickets": tickets});
        return succeed(&output::json(&report)?);
    }
    let counts = joined(states.iter().map(|(state, count)| format!("{count} {state}")), ", ");
    let total = gpus(audit.gpus.len());
    let mut lines = vec![format!("{total}: {counts}; {} waiting", audit.waiting())];
    lines.extend(own_leases.iter().map(|lease| lease_line(lease, &audit)));
    lines.extend(tickets.iter().map(|ticket| ticket_line(*ticket, &audit)));
    if lines.len() == 1 {
        lines.push("you have no leases or waiting requests".to_owned());
    }
    succeed(&(lines.join("\n") + "\n"))
}

fn lease_line(lease: &Lease, audit: &Audit) -> String {
    let ids: Vec<&str> = lease.gpus().collect();
    let name = if ids.len() == 1 { "GPU" } else { "GPUs" };
    let (ids, since) = (escaped(&ids.join(",")), since(lease, "granted", audit));
    format!("you have held {name} {ids} for {since}: {}", command(lease))
}

fn ticket_line((position, ticket): (usize, &Lease), audit: &Audit) -> String {
    let want = ticket.get("want").map_or_else(|| "GPUs".to_owned(), |want| gpus(escaped(want)));
    let since = since(ticket, "asked", audit);
    format!("you have waited for {want} for {since}: place {}: {}", position + 1, command(ticket))
}
