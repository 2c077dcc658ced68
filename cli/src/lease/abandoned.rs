//! GPUs that were taken by GPU.py's rules and whose process has ended.

use std::path::Path;

use bailiff_lease::audit::{Audit, Gpu, Lease, Record};
use bailiff_lease::holder::{Here, Life, Recorded};
use bailiff_lease::{End, Ended, Pool, Trouble};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::offset;
use super::unclean::used;

/// The PID namespace of the machine itself.
const INITIAL: &str = "4026531836";

/// A GPU whose process has ended.
pub(crate) struct Abandoned<'a> {
    pub(crate) gpu: &'a Gpu,
    /// The drop-in's lease; none of a record of GPU.py's, which names a pid alone.
    pub(crate) lease: Option<&'a Lease>,
}

/// Those of a pool. A lease is here where its process and those that it was a part of have ended; a record where there is no
/// process of its pid.
pub(crate) fn abandoned<'a>(audit: &'a Audit, here: &Here) -> Vec<Abandoned<'a>> {
    let of = |gpu: &'a Gpu| {
        if let Some(owner) = &gpu.owner {
            let lease = audit.leases.iter().find(|lease| lease.lease == *owner)?;
            let ended = lease.get("mode") == Some("compat") && here.chained(lease) == Life::Dead;
            return ended.then_some(Abandoned { gpu, lease: Some(lease) });
        }
        let record = gpu.record.as_ref().filter(|record| record.lease.is_none())?;
        let ended = gpu.idle + gpu.pot + gpu.bar == 0 && is_gone(&record.pid);
        ended.then_some(Abandoned { gpu, lease: None })
    };
    audit.gpus.iter().filter_map(of).collect()
}

impl Abandoned<'_> {
    /// Nothing runs that the process may have started: proven of a lease alone.
    pub(crate) fn is_all(&self, here: &Here) -> bool {
        self.lease.is_some_and(|lease| here.recorded(lease) == Recorded::EndedWithAll)
    }
}

/// Frees them, but for those that a process uses by the exporter's stream, and those of which another host or container may
/// have the process. Gives how many were freed, and for each other why it was not.
pub(crate) fn free(
    pool: &mut Pool,
    abandoned: &[Abandoned<'_>],
    (here, stream): (&Here, &Path),
) -> Result<(usize, Vec<String>), Trouble> {
    let used = used(stream, abandoned.iter().map(|one| one.gpu));
    let near = here.pidns == INITIAL && pool.is_local();
    let (mut freed, mut kept) = (0, Vec::new());
    for Abandoned { gpu, lease } in abandoned {
        let done = match (used.get(&gpu.id), lease, &gpu.record) {
            // Its descendants, or somebody who asked through a program that has ended.
            (Some(pids), ..) => {
                kept.push(format!(
                    "GPU {}: whoever took it is dead, and {pids:?} compute there; not freed",
                    gpu.id
                ));
                false
            }
            (None, Some(lease), _) => pool.end(&lease.lease, End::dead(lease), &[])? == Ended::Done,
            (None, None, Some(Record { pid, time, .. })) if near => {
                pool.strike(&gpu.id, (pid, time), offset())?
            }
            (None, None, record) => {
                let pid = record.as_ref().map(|record| record.pid.as_str()).unwrap_or_default();
                kept.push(format!(
                    "GPU {}: there is no process {pid} here, but it may be one of another host or container; not freed",
                    gpu.id
                ));
                false
            }
        };
        freed += usize::from(done);
    }
    Ok((freed, kept))
}

/// There is no such process; one of another user's is one.
fn is_gone(pid: &str) -> bool {
    let pid = pid.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_gone() {
        for (pid, gone) in
            [("0", false), ("-5", false), ("1", false), ("x", false), ("", false), ("4194305", true)]
        {
            assert_eq!(is_gone(pid), gone, "{pid}");
        }
    }
}
