//! Giving back what another process keeps: it is asked to end, once it is proven to be the one that was meant.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::directory::Directory;
use super::list::is_locked;
use super::processes::{self, Inode};
use super::queue;
use super::record::Record;
use crate::{LeaseError, Released};

/// A keeper ends within.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends a lease that is not of this process, or withdraws a ticket.
pub(super) fn release(
    directory: &Directory,
    (lease, token): (&str, Option<u64>),
    pidns: &str,
) -> Result<Released, LeaseError> {
    let gate = directory.enter();
    let ticket = queue::names(directory)?.into_iter().find(|name| name.lease == lease);
    match ticket.map(|ticket| queue::remove(directory, &ticket)) {
        Some(Ok(())) => return Ok(Released::Done),
        // It was served just now, and is in the records.
        None | Some(Err(Errno::NOENT)) => {}
        Some(Err(_)) => return Ok(Released::Lost),
    }
    let mut ended = Released::Unknown;
    for gpu in directory.managed()?.gpus {
        let Ok((file, _)) = directory.gpu(gpu.id, OFlags::RDONLY) else { continue };
        let Some(record) = Record::read(&file).filter(|record| record.lease == lease) else { continue };
        if token.is_some() && token != record.number("tok") {
            return Ok(Released::Lost);
        }
        match Inode::of(&file).filter(|_| is_locked(&file)) {
            None => ended = Released::Already("released".to_owned()),
            Some(inode) => {
                drop(gate);
                return dismiss(&record, inode, pidns);
            }
        }
    }
    Ok(ended)
}

/// Asks the keeper to end, and waits until he has.
fn dismiss(record: &Record, inode: Inode, pidns: &str) -> Result<Released, LeaseError> {
    if record.get("pidns") != Some(pidns) {
        return Err(LeaseError::Kept("it is kept in another container: release it there".to_owned()));
    }
    let keeper = record.keeper().map_or(0, |(pid, _)| pid);
    let (pid, process) = match keeper_of(keeper, &record.lease, inode) {
        Keeper::Is(pid, process) => (pid, process),
        Keeper::Hidden => return Ok(Released::Lost),
        Keeper::None => {
            return Err(LeaseError::Kept(format!(
                "a command has it and ends with it; those are its processes, as far as you may know them: {:?}",
                processes::having(inode)
            )));
        }
    };
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(_) => return Ok(Released::Lost),
    }
    if gone(&process) {
        Ok(Released::Done)
    } else {
        Err(LeaseError::NotNow(format!("process {pid} keeps it and does not end")))
    }
}

/// Who keeps a lease and does nothing else.
enum Keeper {
    Is(u32, OwnedFd),
    /// Another user's.
    Hidden,
    None,
}

/// Whoever has the lock and was started with the lease's name for a word: a record may be anybody's writing, and a pid
/// anybody's. The process is held before it is looked at.
fn keeper_of(said: u32, lease: &str, inode: Inode) -> Keeper {
    if processes::has(said, inode).is_none() {
        return Keeper::Hidden;
    }
    let keeper = processes::having(inode).into_iter().find_map(|pid| {
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let command = processes::command(pid)?;
        let keeps = command.iter().map(String::as_str).take(4).eq(["bailiff", "lease", "hold", lease]);
        (keeps && processes::has(pid, inode) == Some(true)).then_some((pid, process))
    });
    keeper.map_or(Keeper::None, |(pid, process)| Keeper::Is(pid, process))
}

fn gone(process: &OwnedFd) -> bool {
    let time = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    let poll = || poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time));
    retry_on_intr(poll).is_ok_and(|ready| ready > 0)
}
