//! Formats leases: as environment variables, as JSON and as text.

use std::path::Path;

use bailiff_lease::audit::{Audit, Gpu, Lease};
use bailiff_lease::holder::{LEASE_VARIABLE, Life, LocalHost};
use bailiff_lease::{Grant, Leases};
use bailiff_proc::Proc;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::process_tree::command_line;

/// Returns a message while no leases are granted after a restart of Redis.
pub(super) fn grants_paused(audit: &Audit) -> Option<String> {
    let left = audit.barrier?.checked_sub(audit.now).filter(|left| *left > 0)?;
    let left = left.div_ceil(1000);
    Some(format!(
        "Redis was restarted: leases are not granted for {left} s, so that holders can renew their leases"
    ))
}

/// How the environment variables name GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpuNames {
    /// UUIDs, which do not depend on the device order; indexes if the pool has no UUIDs.
    Uuids,
    /// Indexes in PCI bus order.
    Indexes,
}

/// Returns the environment variables of a process that uses a lease's GPUs.
pub(super) fn environment(
    pool: &mut dyn Leases,
    (lease, grant): (&str, &Grant),
    names: GpuNames,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let ids: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
    let uuids = if names == GpuNames::Uuids { uuids(&pool.gpus()?, &ids) } else { None };
    let ids = ids.join(",");
    let visible = uuids.map_or_else(|| ids.clone(), |uuids| uuids.join(","));
    Ok(vec![
        ("CUDA_VISIBLE_DEVICES", visible.clone()),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("NVIDIA_VISIBLE_DEVICES", visible),
        (LEASE_VARIABLE, lease.to_owned()),
        ("BAILIFF_LEASE_TOKEN", grant.token.to_string()),
        ("BAILIFF_LEASE_GPUS", ids),
    ])
}

/// Returns the UUIDs of GPUs if the pool has all of them.
pub(super) fn uuids(gpus: &[(String, Option<String>)], ids: &[String]) -> Option<Vec<String>> {
    let uuid = |id: &String| gpus.iter().find(|(known, _)| known == id)?.1.clone();
    ids.iter().map(uuid).collect()
}

/// Checks that the driver's indexes are still the same as when the pool was created, because a GPU that has fallen
/// off the bus shifts the indexes after it.
pub(super) fn check_indexes(
    pool: &mut dyn Leases,
    grant: &Grant,
    library: Option<&Path>,
) -> Result<(), Failure> {
    let gpus = pool.gpus()?;
    for number in &grant.gpus {
        let Some(known) = uuids(&gpus, &[number.to_string()]).map(|uuids| uuids.concat()) else { continue };
        let now = bailiff_sampler::uuids(library).map_err(|why| {
            Failure::unavailable(format!(
                "cannot check which GPU has index {number}: {why}; run without --index"
            ))
        })?;
        let found = usize::try_from(*number).ok().and_then(|number| now.get(number)?.clone());
        if found.as_ref() != Some(&known) {
            let found = found.unwrap_or_else(|| "none".to_owned());
            return Err(Failure::unavailable(format!(
                "GPU {number} was {known} when the pool was created, but is {found} now; run without --index, or recreate the pool"
            )));
        }
    }
    Ok(())
}

/// Parses a list of GPU indexes or UUIDs such as `0,GPU-…` into pool ids.
pub(super) fn ids(gpus: &[(String, Option<String>)], list: &str) -> Result<Vec<String>, Failure> {
    let named = |name: &str| {
        let found = gpus.iter().find(|(id, uuid)| id == name || uuid.as_deref() == Some(name));
        found.map(|(id, _)| id.clone()).ok_or_else(|| {
            Failure::usage(format!("--gpu: {name:?} is not a GPU of this pool; see `bailiff lease list`"))
        })
    };
    let mut ids = list.split(',').map(|name| named(name.trim())).collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Returns a lease as JSON.
pub(super) fn as_json(lease: &Lease, audit: &Audit, local_host: &LocalHost) -> Value {
    let number = |field| lease.get(field).and_then(|text| text.parse::<u64>().ok());
    let gpu = |id: &str| {
        let uuid = audit.gpus.iter().find(|gpu| gpu.id == id).and_then(|gpu| gpu.uuid.clone());
        json!({"index": id.parse::<u32>().map_or_else(|_| json!(id), |id| json!(id)), "uuid": uuid})
    };
    let waited = number("granted").zip(number("asked")).map(|(granted, asked)| granted.saturating_sub(asked));
    json!({
        "lease": lease.lease,
        "token": number("tok"),
        "state": lease.state,
        "gpus": lease.gpus().map(gpu).collect::<Vec<_>>(),
        "want": number("want"),
        "priority": lease.get("prio").and_then(|text| text.parse::<i32>().ok()),
        "host": lease.get("host"),
        "pid": number("pid"),
        "user": lease.get("user"),
        "cmd": lease.get("cmd"),
        "note": lease.get("note"),
        "job": lease.get("job"),
        "asked": number("asked").and_then(time),
        "acquired": number("granted").and_then(time),
        "expires": time(expiry(lease)),
        "waited_ms": waited,
        "mode": lease.get("mode"),
        "legacy": false,
        "evidence": life(local_host, lease),
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds since 1970")]
fn expiry(lease: &Lease) -> u64 {
    lease.expires.max(0.0) as u64
}

/// Returns whether the holder is alive, as far as known.
pub(super) fn life(local_host: &LocalHost, lease: &Lease) -> &'static str {
    match local_host.life(lease) {
        Life::Alive => "alive",
        Life::Dead => "dead",
        Life::Elsewhere => "elsewhere",
        Life::Timed => "timed",
        Life::Unknown => "unknown",
    }
}

/// Formats milliseconds since 1970 as RFC 3339 in UTC.
pub(super) fn time(ms: u64) -> Option<String> {
    Some(Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?.to_string())
}

/// Formats a duration as `3m 20s`, with at most two units.
pub(super) fn span(ms: u64) -> String {
    let text = humantime::format_duration(std::time::Duration::from_secs(ms / 1000)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

pub(super) fn lease<'a>(audit: &'a Audit, name: &str) -> Option<&'a Lease> {
    audit.leases.iter().find(|lease| lease.lease == name)
}

/// Returns the lease that holds a GPU.
pub(super) fn holder<'a>(audit: &'a Audit, gpu: &Gpu) -> Option<&'a Lease> {
    lease(audit, gpu.owner.as_deref()?)
}

/// Returns the process that runs this one. Shells fork subshells for `$(…)` and pipes, which exit with their command;
/// for these, the shell that forked them is returned.
pub(super) fn runner() -> Option<u32> {
    let proc = Proc::own().ok()?;
    let mut runner = parent(&proc, std::process::id())?;
    while let Some(parent) = parent(&proc, runner).filter(|parent| is_subshell(&proc, *parent, runner)) {
        runner = parent;
    }
    Some(runner)
}

/// Returns the command line of a process as text.
pub(super) fn command(pid: u32) -> String {
    command_line(pid).trim_end().to_owned()
}

fn parent(proc: &Proc, pid: u32) -> Option<u32> {
    Some(proc.stat(pid).ok()?.ppid).filter(|parent| *parent > 1)
}

/// Whether `pid` was forked from `parent` without a later `exec`: both have the same arguments and the same stack
/// start, which the kernel randomizes at each `exec`.
fn is_subshell(proc: &Proc, parent: u32, pid: u32) -> bool {
    let args = |pid| proc.bytes(&format!("{pid}/cmdline")).ok().filter(|args| !args.is_empty());
    let same = |first: Option<Vec<u8>>, other| first.is_some() && first == other;
    same(args(pid), args(parent)) && stack(proc, pid).is_some() && stack(proc, pid) == stack(proc, parent)
}

/// Returns `startstack`, field 28 of `/proc/PID/stat`; the kernel reports 0 without the permission to read it.
fn stack(proc: &Proc, pid: u32) -> Option<u64> {
    let line = proc.text(&format!("{pid}/stat")).ok()?;
    let after = line.rsplit_once(')')?.1;
    after.split_ascii_whitespace().nth(28 - 3)?.parse().ok().filter(|start| *start != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_times_are_formatted() {
        assert_eq!(span(0), "0s");
        assert_eq!(span(200_900), "3m 20s");
        assert_eq!(span(93_784_000), "1day 2h");
        assert_eq!(time(1_763_762_626_500).unwrap(), "2025-11-21T22:03:46.5Z");
    }
}
