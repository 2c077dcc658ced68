//! `bailiff lease list`.

use std::process::ExitCode;

use bailiff_lease::audit::{Audit, Gpu, Lease};
use serde_json::json;

use super::open;
use crate::exit::Failure;
use crate::flags;

/// Lists the GPUs, who has them and who waits.
pub(crate) fn list(flags: &flags::List) -> Result<ExitCode, Failure> {
    let mut audit = open(&flags.pool)?.audit()?;
    // What is no number comes last.
    audit.gpus.sort_by_key(|gpu| (gpu.id.parse().unwrap_or(u32::MAX), gpu.id.clone()));
    if flags.json {
        let gpus: Vec<_> = audit.gpus.iter().map(|gpu| as_json(gpu, &audit)).collect();
        let waiting: Vec<_> = audit.queue.iter().filter_map(|name| lease(&audit, name)).map(about).collect();
        println!("{}", json!({"gpus": gpus, "waiting": waiting}));
        return Ok(ExitCode::SUCCESS);
    }
    println!("{:<5} {:<11} {:<12} {:>8}  COMMAND", "GPU", "STATE", "USER", "PID");
    for gpu in &audit.gpus {
        let held = gpu.owner.as_deref().and_then(|name| lease(&audit, name));
        let get = |field| held.and_then(|lease| lease.get(field)).unwrap_or("-").to_owned();
        let pid = match (held, &gpu.record) {
            (None, Some(record)) => record.pid.clone(),
            _ => get("pid"),
        };
        println!(
            "{:<5} {:<11} {:<12} {pid:>8}  {}",
            gpu.id,
            state(gpu),
            plain(&get("user")),
            plain(&get("cmd"))
        );
    }
    for (place, ticket) in audit.queue.iter().filter_map(|name| lease(&audit, name)).enumerate() {
        let get = |field| plain(ticket.get(field).unwrap_or("-"));
        let (user, pid, cmd) = (get("user"), get("pid"), get("cmd"));
        println!(
            "{:<5} {:<11} {user:<12} {pid:>8}  {cmd}",
            format!("x{}", get("want")),
            format!("waits #{}", place + 1)
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn lease<'a>(audit: &'a Audit, name: &str) -> Option<&'a Lease> {
    audit.leases.iter().find(|lease| lease.lease == name)
}

/// In which of its places a GPU is.
fn state(gpu: &Gpu) -> &'static str {
    match gpu {
        _ if gpu.owner.is_some() => "leased",
        _ if gpu.quarantine.is_some() => "withheld",
        _ if gpu.idle > 0 => "idle",
        _ if gpu.pot > 0 => "gathered",
        _ if gpu.bar > 0 => "barrier",
        // By somebody's GPU.py, with its record or before it.
        _ if gpu.record.is_some() => "legacy",
        _ => "unknown",
    }
}

fn as_json(gpu: &Gpu, audit: &Audit) -> serde_json::Value {
    let held = gpu.owner.as_deref().and_then(|name| lease(audit, name));
    json!({"id": gpu.id, "uuid": gpu.uuid, "state": state(gpu), "lease": held.map(about)})
}

fn about(lease: &Lease) -> serde_json::Value {
    let number = |field| lease.get(field).and_then(|text| text.parse::<u64>().ok());
    json!({
        "lease": lease.lease, "state": lease.state, "token": number("tok"), "gpus": lease.gpus().collect::<Vec<_>>(),
        "want": number("want"), "user": lease.get("user"), "pid": number("pid"), "cmd": lease.get("cmd"),
    })
}

/// Others' names do not write to our terminal.
fn plain(text: &str) -> String {
    text.escape_default().to_string()
}
