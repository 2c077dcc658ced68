//! Giving back what another process keeps: it is asked to end, once it is proven to be the one that was meant.

#![expect(clippy::disallowed_methods, reason = "waits for a process")]

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::folder::Folder;
use super::list::is_locked;
use super::processes::{self, Inode};
use super::queue;
use super::record::Record;
use crate::{Released, Trouble};

/// A keeper ends within.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends a lease that is not of this process, or withdraws a ticket.
pub(super) fn release(
    folder: &Folder,
    (lease, token): (&str, Option<u64>),
    pidns: &str,
) -> Result<Released, Trouble> {
    let gate = folder.enter();
    let ticket = queue::names(folder)?.into_iter().find(|name| name.lease == lease);
    if let Some(ticket) = ticket {
        return Ok(match queue::remove(folder, &ticket) {
            Ok(()) | Err(Errno::NOENT) => Released::Done,
            Err(_) => Released::Lost,
        });
    }
    let mut ended = Released::Unknown;
    for gpu in folder.managed()?.gpus {
        let Ok((file, _)) = folder.gpu(gpu.id, OFlags::RDONLY) else { continue };
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
fn dismiss(record: &Record, inode: Inode, pidns: &str) -> Result<Released, Trouble> {
    let no = |why: String| Err(Trouble::NotHere(why));
    if record.get("pidns") != Some(pidns) {
        return no("it is kept in another container: release it there".to_owned());
    }
    let (pid, start) = record.keeper().unwrap_or_default();
    let opened =
        i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let Some(Ok(keeper)) = opened.filter(|_| processes::lives(pid, start)) else {
        let heirs = processes::having(inode);
        return no(format!(
            "its keeper has ended; those whom he started have the GPU, and it is free with them: {heirs:?}"
        ));
    };
    match processes::has(pid, inode) {
        None => return Ok(Released::Lost),
        Some(false) => return Ok(Released::Already("released".to_owned())),
        Some(true) => {}
    }
    // The record may be anybody's writing, the words that a process was started with are its own.
    if !processes::command(pid).unwrap_or_default().contains(&record.lease) {
        return no(format!("it belongs to a command that runs (process {pid}) and ends with it"));
    }
    match pidfd_send_signal(&keeper, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(_) => return Ok(Released::Lost),
    }
    if gone(&keeper) {
        Ok(Released::Done)
    } else {
        Err(Trouble::NotNow(format!("process {pid} keeps it and does not end")))
    }
}

fn gone(process: &impl std::os::fd::AsFd) -> bool {
    let began = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(began.elapsed());
        let time = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => {}
            polled => return polled.is_ok_and(|ready| ready > 0),
        }
    }
}
