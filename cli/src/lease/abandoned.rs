//! GPUs that were taken by GPU.py's rules and whose process has ended.

use std::path::Path;
use std::time::Duration;

use bailiff_lease::audit::{Audit, Gpu, Lease, Record};
use bailiff_lease::holder::{Life, LocalHost, Recorded};
use bailiff_lease::legacy::{Found, WriterEvidence};
use bailiff_lease::{End, Ended, LeaseError, Pool};

use super::offset;
use super::unclean::Users;

/// The PID namespace of the machine itself.
const INITIAL: &str = "4026531836";
/// The exporter is asked for so long which processes are on a GPU.
const PATIENCE: Duration = Duration::from_secs(2);

/// A GPU whose process has ended.
pub(crate) struct Abandoned<'a> {
    pub(crate) gpu: &'a Gpu,
    /// The drop-in's lease; none of a record of GPU.py's, which names a pid alone.
    pub(crate) lease: Option<&'a Lease>,
}

/// Those of a pool: by a lease of the drop-in, whose process and all that were given the number have ended, or by a record of
/// GPU.py's, of whose pid there is no process.
pub(crate) fn abandoned<'a>(audit: &'a Audit, local_host: &LocalHost) -> Vec<Abandoned<'a>> {
    let of = |gpu: &'a Gpu| {
        if let Some(owner) = &gpu.owner {
            let lease = audit.leases.iter().find(|lease| lease.lease == *owner)?;
            let ended = lease.get("mode") == Some("compat") && local_host.chain_life(lease) == Life::Dead;
            return ended.then_some(Abandoned { gpu, lease: Some(lease) });
        }
        let record = gpu.record.as_ref().filter(|record| record.lease.is_none())?;
        let ended = gpu.idle + gpu.pot + gpu.bar == 0 && has_ended(record, local_host);
        ended.then_some(Abandoned { gpu, lease: None })
    };
    audit.gpus.iter().filter_map(of).collect()
}

/// Which of them may be freed, and for each other why not: a process is on it by the exporter's stream, or may be; its
/// process may be one of another host or container; an agent will free it.
pub(crate) fn freeable<'a>(
    all: Vec<Abandoned<'a>>,
    pool: &Pool,
    (audit, local_host, stream): (&Audit, &LocalHost, &Path),
) -> (Vec<Abandoned<'a>>, Vec<String>) {
    let users = if all.is_empty() { Users::None } else { Users::read(stream, PATIENCE) };
    let near = local_host.pidns == INITIAL && pool.is_local();
    let agent = audit.has_agent_at(local_host);
    let (mut free, mut kept) = (Vec::new(), Vec::new());
    for one in all {
        let why = match (users.of(one.gpu), one.lease) {
            (Ok(pids), _) if !pids.is_empty() => {
                format!("the process that took it has ended, but {pids:?} compute on it")
            }
            (Err(why), _) => why,
            (Ok(_), None) if !near => {
                "its process has ended here, but it may be one of another host or container".to_owned()
            }
            (Ok(_), _) if agent => "the enforcer of this node frees it (bailiff-enforcer status)".to_owned(),
            (Ok(_), _) => {
                free.push(one);
                continue;
            }
        };
        kept.push(format!("GPU {}: {why}; not freed", one.gpu.id));
    }
    (free, kept)
}

impl Abandoned<'_> {
    /// Nothing of it is left: it was of another boot.
    pub(crate) fn is_gone(&self, local_host: &LocalHost) -> bool {
        self.lease.is_some_and(|lease| local_host.recorded(lease) == Recorded::Gone)
    }

    /// Frees it, if it is still as it was found.
    pub(crate) fn free(&self, pool: &mut Pool) -> Result<bool, LeaseError> {
        match (self.lease, &self.gpu.record) {
            (Some(lease), _) => Ok(pool.end(&lease.lease, End::dead(lease), &[])? == Ended::Done),
            (None, Some(Record { pid, time, .. })) => pool.free_record(&self.gpu.id, (pid, time), offset()),
            (None, None) => Ok(false),
        }
    }
}

/// There is no process of the record's pid: not here, and not in a PID namespace below.
fn has_ended(record: &Record, local_host: &LocalHost) -> bool {
    let is_pid = record.pid.parse::<u32>().is_ok_and(|pid| pid > 0);
    is_pid && WriterEvidence::collect(local_host, record, Found::Written).lives(local_host) == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_a_pid_without_a_process_has_ended() {
        let local_host = LocalHost::read();
        for (pid, expected) in
            [("0", false), ("-5", false), ("1", false), ("x", false), ("", false), ("4194305", true)]
        {
            let record = Record { pid: pid.to_owned(), time: String::new(), lease: None, seen: None };
            assert_eq!(has_ended(&record, &local_host), expected, "{pid}");
        }
    }
}
