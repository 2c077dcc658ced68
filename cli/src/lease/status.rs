//! `bailiff lease status`: a one-line pool summary, and the leases and requests of this user on this machine.

use std::collections::BTreeMap;
use std::process::ExitCode;

use bailiff_lease::audit::{Audit, Lease};
use bailiff_lease::holder::LocalHost;
use serde_json::json;

use super::flags;
use super::format::{as_json, escaped};
use super::gpus;
use super::list::{audit, command, since, state, waiting};
use crate::exit::{Failure, succeed};
use crate::output::joined;

/// Prints the status.
pub(crate) fn status(flags: &flags::List) -> Result<ExitCode, Failure> {
    let (audit, local_host) = (audit(flags)?, LocalHost::read());
    let uid = nix::unistd::getuid().to_string();
    let is_mine = |lease: &&Lease| local_host.is_location_of(lease) && lease.get("uid") == Some(&uid);
    let own_leases: Vec<&Lease> =
        audit.leases.iter().filter(|lease| lease.state == "held").filter(is_mine).collect();
    let tickets: Vec<(usize, &Lease)> =
        waiting(&audit).enumerate().filter(|(_, ticket)| is_mine(ticket)).collect();
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &audit.gpus {
        *states.entry(state(gpu)).or_default() += 1;
    }
    if flags.json {
        let leases: Vec<_> = own_leases.iter().map(|lease| as_json(lease, &audit, &local_host)).collect();
        let tickets: Vec<_> =
            tickets.iter().map(|(_, ticket)| as_json(ticket, &audit, &local_host)).collect();
        let waiting = audit.queue.len();
        let report = json!({"gpus": states, "waiting": waiting, "leases": leases, "tickets": tickets});
        return succeed(&format!("{report}\n"));
    }
    let counts = joined(states.iter().map(|(state, count)| format!("{count} {state}")), ", ");
    let total = gpus(audit.gpus.len());
    let mut lines = vec![format!("{total}: {counts}; {} waiting", audit.queue.len())];
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
    format!("you hold {name} {ids} since {since}: {}", command(lease))
}

fn ticket_line((position, ticket): (usize, &Lease), audit: &Audit) -> String {
    let want = ticket.get("want").map_or_else(|| "GPUs".to_owned(), |want| gpus(escaped(want)));
    let since = since(ticket, "asked", audit);
    format!("you wait for {want} since {since}: place {}: {}", position + 1, command(ticket))
}
