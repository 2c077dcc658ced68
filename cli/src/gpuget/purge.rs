//! `--redis-purge`: frees what those held who are certainly dead.

use bailiff_lease::audit::{Audit, Gpu, Record};
use bailiff_lease::holder::{Here, Life};
use bailiff_lease::{End, Pool};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::place::{Environment, Place};
use super::{Failure, warn};
use crate::lease::offset;
use crate::lease::unclean::used;

/// The PID namespace of the machine itself.
const INITIAL: &str = "4026531836";

/// Whose death is certain.
enum Dead<'a> {
    /// The holder of a lease of ours that plays by GPU.py's rules, and all who may have the GPU after him.
    Lease(&'a str),
    /// The process of a record of GPU.py's.
    Record(&'a Record),
}

pub(super) fn purge(pool: &mut Pool, place: &Place, environment: &Environment) -> Result<(), Failure> {
    let (audit, here) = (pool.audit()?, Here::look());
    let dead: Vec<(&Gpu, Dead<'_>)> =
        audit.gpus.iter().filter_map(|gpu| Some((gpu, dead(gpu, &audit, &here)?))).collect();
    let used = used(&environment.stream, dead.iter().map(|(gpu, _)| *gpu));
    for (gpu, dead) in dead {
        if let Some(pids) = used.get(&gpu.id) {
            // Its descendants, or somebody who asked through a program that has ended.
            warn(&format!("GPU {}: whoever took it is dead, and {pids:?} compute there; not freed", gpu.id));
            continue;
        }
        match dead {
            Dead::Lease(lease) => drop(pool.end(lease, End::Dead, &[])?),
            Dead::Record(record) if here.pidns != INITIAL || !place.is_near() => warn(&format!(
                "GPU {}: there is no process {} here, but it may be one of another host or container; not freed",
                gpu.id, record.pid
            )),
            Dead::Record(record) => {
                pool.strike(&gpu.id, (&record.pid, &record.time), offset())?;
            }
        }
    }
    Ok(())
}

fn dead<'a>(gpu: &'a Gpu, audit: &'a Audit, here: &Here) -> Option<Dead<'a>> {
    if let Some(owner) = &gpu.owner {
        let lease = audit.leases.iter().find(|lease| lease.lease == *owner)?;
        let dead = lease.get("mode") == Some("compat") && here.chained(lease) == Life::Dead;
        return dead.then_some(Dead::Lease(owner));
    }
    let record = gpu.record.as_ref().filter(|record| record.lease.is_none())?;
    (gpu.idle + gpu.pot + gpu.bar == 0 && is_gone(&record.pid)).then_some(Dead::Record(record))
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
