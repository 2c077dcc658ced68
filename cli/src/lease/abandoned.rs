//! GPUs taken with the GPU.py protocol by processes that have exited.

use std::path::Path;
use std::time::Duration;

use bailiff_lease::audit::{Audit, Gpu, Lease, Record};
use bailiff_lease::holder::{Life, LocalHost, Recorded};
use bailiff_lease::legacy::{Found, WriterEvidence};
use bailiff_lease::{End, Ended, LeaseError, Pool};

use super::gpu_users::Users;
use super::offset;

/// The inode of the initial PID namespace.
const INITIAL_PIDNS: &str = "4026531836";
/// The timeout of the query to the exporter.
const EXPORTER_TIMEOUT: Duration = Duration::from_secs(2);

/// A GPU whose process has exited.
pub(crate) struct Abandoned<'a> {
    pub(crate) gpu: &'a Gpu,
    /// The lease taken by the drop-in; `None` for a record written by GPU.py, which contains only a pid.
    pub(crate) lease: Option<&'a Lease>,
}

/// Returns the abandoned GPUs of a pool: GPUs leased by the drop-in, if the holder and all processes that were
/// given the GPU have exited, and GPUs with a GPU.py record whose pid does not exist.
pub(crate) fn abandoned<'a>(audit: &'a Audit, local_host: &LocalHost) -> Vec<Abandoned<'a>> {
    let as_abandoned = |gpu: &'a Gpu| {
        if let Some(owner) = &gpu.owner {
            let lease = audit.leases.iter().find(|lease| lease.lease == *owner)?;
            let ended = lease.get("mode") == Some("compat") && local_host.chain_life(lease) == Life::Dead;
            return ended.then_some(Abandoned { gpu, lease: Some(lease) });
        }
        let record = gpu.record.as_ref().filter(|record| record.lease.is_none())?;
        let ended = gpu.is_unlisted() && has_ended(record, local_host);
        ended.then_some(Abandoned { gpu, lease: None })
    };
    audit.gpus.iter().filter_map(as_abandoned).collect()
}

/// Splits the abandoned GPUs into those that may be freed and messages about the others. A GPU is kept if a process
/// uses it or may use it, if its record may belong to another host or container, or if an agent will free it. The
/// messages are part of GPU.py's output.
pub(crate) fn freeable<'a>(
    all: Vec<Abandoned<'a>>,
    pool: &Pool,
    (audit, local_host, stream): (&Audit, &LocalHost, &Path),
) -> (Vec<Abandoned<'a>>, Vec<String>) {
    let users = if all.is_empty() { Users::None } else { Users::read(stream, EXPORTER_TIMEOUT) };
    let is_local_record = local_host.pidns == INITIAL_PIDNS && pool.is_local();
    let agent = audit.has_agent_at(local_host);
    let (mut free, mut kept) = (Vec::new(), Vec::new());
    for abandoned in all {
        let why = match (users.of(abandoned.gpu), abandoned.lease) {
            (Ok(pids), _) if !pids.is_empty() => {
                format!("the process that took it has exited, but processes {pids:?} compute on it")
            }
            (Err(why), _) => why,
            (Ok(_), None) if !is_local_record => {
                "its process does not exist here, but may be running on another host or in another container"
                    .to_owned()
            }
            (Ok(_), _) if agent => {
                "the enforcer on this node will free it (see bailiff-enforcer status)".to_owned()
            }
            (Ok(_), _) => {
                free.push(abandoned);
                continue;
            }
        };
        kept.push(format!("GPU {}: {why}; not freed", abandoned.gpu.id));
    }
    (free, kept)
}

impl Abandoned<'_> {
    /// Whether the lease is from an earlier boot.
    pub(crate) fn is_gone(&self, local_host: &LocalHost) -> bool {
        self.lease.is_some_and(|lease| local_host.recorded(lease) == Recorded::Gone)
    }

    /// Frees the GPU if its state is unchanged; returns whether it was freed.
    pub(crate) fn free(&self, pool: &mut Pool) -> Result<bool, LeaseError> {
        match (self.lease, &self.gpu.record) {
            (Some(lease), _) => Ok(pool.end(&lease.lease, End::dead(lease), &[])? == Ended::Done),
            (None, Some(Record { pid, time, .. })) => pool.free_record(&self.gpu.id, (pid, time), offset()),
            (None, None) => Ok(false),
        }
    }
}

/// Whether no process has the record's pid, in this PID namespace or in a nested one.
fn has_ended(record: &Record, local_host: &LocalHost) -> bool {
    let is_pid = record.pid.parse::<u32>().is_ok_and(|pid| pid > 0);
    is_pid && WriterEvidence::collect(local_host, record, Found::Written).lives(local_host) == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_with_unused_pid_has_ended() {
        let local_host = LocalHost::read();
        for (pid, expected) in
            [("0", false), ("-5", false), ("1", false), ("x", false), ("", false), ("4194305", true)]
        {
            let record = Record { pid: pid.to_owned(), time: String::new(), lease: None, seen: None };
            assert_eq!(has_ended(&record, &local_host), expected, "{pid}");
        }
    }
}
