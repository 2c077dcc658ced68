//! Releases a lease that another process holds. That process is terminated once its identity is proven.

#![expect(clippy::disallowed_methods, reason = "signals the lock holder")]

use std::time::Duration;

use bailiff_proc::Pidfd;
use bailiff_proc::clock::Deadline;
use rustix::io::Errno;
use rustix::process::Signal;

use super::directory::Directory;
use super::list::{Lock, lock, verified};
use super::processes::{self, Inode, Locks};
use super::queue;
use super::record::Record;
use crate::holder::LocalHost;
use crate::{LeaseError, Released};

/// How long a lock holder may take to exit.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends a lease of another process, on a certain GPU or any, or withdraws that process's ticket.
pub(super) fn release(
    directory: &Directory,
    (lease, token, only): (&str, Option<u64>, Option<&str>),
    local_host: &LocalHost,
) -> Result<Released, LeaseError> {
    let gate = directory.enter();
    // A waiting request has no token.
    let ticket = if token.is_none() { queue::of_lease(directory, lease)? } else { None };
    match ticket.map(|ticket| queue::remove(directory, &ticket)) {
        Some(Ok(())) => return Ok(Released::Done),
        // The ticket was served just now, so the lease is in the records.
        None | Some(Err(Errno::NOENT)) => {}
        Some(Err(_)) => return Ok(Released::Lost),
    }
    let mut ended = Released::Unknown;
    let all = directory.managed()?.gpus.into_iter();
    for gpu in all.filter(|gpu| only.is_none_or(|only| gpu.id.to_string() == only)) {
        let Ok((file, _)) = directory.gpu(gpu.id) else { continue };
        let record = Record::of_gpu(directory, gpu.id);
        let Some(record) = record.filter(|record| record.lease == lease) else { continue };
        let Some(inode) = Inode::of(&file).filter(|_| lock(&file, &gate) == Lock::Exclusive) else {
            ended = Released::Already("released".to_owned());
            continue;
        };
        // Every user can write a record with this name.
        if verified(record.clone(), &Locks::read(), inode, local_host).is_none() {
            continue;
        }
        drop(gate);
        if token.is_some() && token != record.number("tok") {
            return Ok(Released::Lost);
        }
        return terminate_holder(&record, inode, &local_host.pidns);
    }
    drop(gate);
    if ended != Released::Unknown {
        return Ok(ended);
    }
    // The record may be unreadable, or another user may have overwritten it.
    let ids = directory.managed()?.gpus.into_iter().map(|gpu| gpu.id);
    let files = ids.filter(|id| only.is_none_or(|only| id.to_string() == only)).filter_map(|id| {
        let (file, _) = directory.gpu(id).ok()?;
        Inode::of(&file)
    });
    let found = files.collect::<Vec<_>>().into_iter().find_map(|inode| hold_process(lease, inode));
    found.map_or(Ok(ended), |(pid, process)| terminate(pid, &process))
}

/// Sends SIGTERM to the lock holder and waits until it has exited.
fn terminate_holder(record: &Record, inode: Inode, pidns: &str) -> Result<Released, LeaseError> {
    if record.get("pidns") != Some(pidns) {
        return Err(LeaseError::HeldElsewhere(
            "the lease is held in another container; release it there".to_owned(),
        ));
    }
    let recorded = record.lock_holder().map_or(0, |(pid, _)| pid);
    let (pid, process) = match find_lock_holder(recorded, &record.lease, inode) {
        LockHolder::Found(pid, process) => (pid, process),
        LockHolder::Hidden => return Ok(Released::Lost),
        LockHolder::None => {
            return Err(LeaseError::HeldElsewhere(format!(
                "a running command holds the lease until it exits; its visible processes: {:?}",
                processes::holding(inode)
            )));
        }
    };
    terminate(pid, &process)
}

fn terminate(pid: u32, process: &Pidfd) -> Result<Released, LeaseError> {
    if process.send(Signal::TERM).is_err() {
        return Ok(Released::Lost);
    }
    if process.exited_by(Some(Deadline::after(PATIENCE))) == Ok(true) {
        Ok(Released::Done)
    } else {
        Err(LeaseError::Blocked(format!("process {pid} holds the lease and did not exit")))
    }
}

/// The process `bailiff lease hold` that holds a lease and does nothing else.
enum LockHolder {
    Found(u32, Pidfd),
    /// The process belongs to another user.
    Hidden,
    None,
}

/// Finds the process that holds the lock and was started as `bailiff lease hold LEASE`. Both are checked, because any
/// user can write a record, and a pid can be reused. The pidfd is opened before the checks.
fn find_lock_holder(recorded: u32, lease: &str, inode: Inode) -> LockHolder {
    if processes::holds(recorded, inode).is_none() {
        return LockHolder::Hidden;
    }
    hold_process(lease, inode).map_or(LockHolder::None, |(pid, process)| LockHolder::Found(pid, process))
}

/// Finds the process that has the lock and was started as `bailiff lease hold LEASE`.
fn hold_process(lease: &str, inode: Inode) -> Option<(u32, Pidfd)> {
    processes::holding(inode).into_iter().find_map(|pid| {
        let process = Pidfd::open(pid).ok()??;
        let command = processes::command(pid)?;
        let is_hold = command.iter().map(String::as_str).take(4).eq(["bailiff", "lease", "hold", lease]);
        (is_hold && processes::holds(pid, inode) == Some(true)).then_some((pid, process))
    })
}
