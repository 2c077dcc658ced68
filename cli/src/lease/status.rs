//! `bailiff lease status`: the pool in a line, and what the user holds and waits for on this machine.

use std::collections::BTreeMap;
use std::process::ExitCode;

use bailiff_lease::audit::{Audit, Lease};
use bailiff_lease::holder::LocalHost;
use serde_json::json;

use super::gpus;
use super::list::{begun, noted, since, state, waiting};
use super::told::{as_json, plain};
use crate::exit::Failure;
use crate::flags;
use crate::say::print;

/// Shows it.
pub(crate) fn status(flags: &flags::List) -> Result<ExitCode, Failure> {
    let (audit, local_host) = (begun(flags)?, LocalHost::read());
    let uid = nix::unistd::getuid().to_string();
    let is_mine = |lease: &&Lease| local_host.is_location_of(lease) && lease.get("uid") == Some(&uid);
    let held: Vec<&Lease> =
        audit.leases.iter().filter(|lease| lease.state == "held").filter(is_mine).collect();
    let tickets: Vec<(usize, &Lease)> =
        waiting(&audit).enumerate().filter(|(_, ticket)| is_mine(ticket)).collect();
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &audit.gpus {
        *states.entry(state(gpu)).or_default() += 1;
    }
    if flags.json {
        let leases: Vec<_> = held.iter().map(|lease| as_json(lease, &audit, &local_host)).collect();
        let tickets: Vec<_> =
            tickets.iter().map(|(_, ticket)| as_json(ticket, &audit, &local_host)).collect();
        let waiting = audit.queue.len();
        let report = json!({"gpus": states, "waiting": waiting, "leases": leases, "tickets": tickets});
        print(&format!("{report}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let counts: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let total = gpus(audit.gpus.len());
    let mut lines = vec![format!("{total}: {}; {} waiting", counts.join(", "), audit.queue.len())];
    lines.extend(held.iter().map(|lease| holds(lease, &audit)));
    lines.extend(tickets.iter().map(|ticket| waits(*ticket, &audit)));
    if lines.len() == 1 {
        lines.push("you hold and wait for nothing".to_owned());
    }
    print(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn command(lease: &Lease) -> String {
    let get = |field| plain(lease.get(field).unwrap_or("-"));
    noted(&get("cmd"), &get("note"))
}

fn holds(lease: &Lease, audit: &Audit) -> String {
    let ids: Vec<&str> = lease.gpus().collect();
    let name = if ids.len() == 1 { "GPU" } else { "GPUs" };
    let (ids, since) = (plain(&ids.join(",")), since(lease, "granted", audit));
    format!("you hold {name} {ids} since {since}: {}", command(lease))
}

fn waits((place, ticket): (usize, &Lease), audit: &Audit) -> String {
    let want = ticket.get("want").map_or_else(|| "GPUs".to_owned(), |want| gpus(plain(want)));
    let since = since(ticket, "asked", audit);
    format!("you wait for {want} since {since}: place {}: {}", place + 1, command(ticket))
}
