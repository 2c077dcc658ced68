//! The queue, with one file per ticket. The waiter locks the file before the file gets a name, and keeps the lock
//! until the waiter exits.

#![expect(clippy::disallowed_methods, reason = "stopped waiters are recognized by the age of their tickets")]

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bailiff_proc::clock::since_boot;
use bailiff_proc::open_below;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW,
};
use rustix::fs::{fchmod, flock, fstat, futimens, linkat, openat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

use super::directory::Directory;
use super::record::Record;
use crate::LeaseError;

/// Longest time without a renewal before a waiter counts as stopped.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);
/// Maximum number of tickets before a waiter whose owners are read, and of tickets that are listed. Earlier ones are
/// ignored.
const MOST_TICKETS: usize = 16_384;
/// Polling interval if the ticket ahead cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A ticket's file name: the time since boot in nanoseconds, which orders the queue, and the unique name of the lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    number: u64,
    pub(super) lease: String,
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let (number, lease) = text.split_once('-')?;
        let digits = number.len() == 20 && number.bytes().all(|digit| digit.is_ascii_digit());
        let number = digits.then(|| number.parse().ok())??;
        is_name(lease).then(|| Self { number, lease: lease.to_owned() })
    }

    pub(super) fn text(&self) -> String {
        format!("{:020}-{}", self.number, self.lease)
    }
}

/// Whether a lease's name can be part of a file name.
pub(super) fn is_name(lease: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&lease.len()) && lease.bytes().all(plain)
}

/// The last tickets of the queue. Any user can create very many files there.
#[derive(Debug, Default)]
pub(super) struct LastTickets {
    names: BinaryHeap<Reverse<Name>>,
    /// Number of all tickets.
    pub(super) all: u64,
}

impl LastTickets {
    fn add(&mut self, name: Name) {
        self.all += 1;
        self.names.push(Reverse(name));
        if self.names.len() > MOST_TICKETS {
            self.names.pop();
        }
    }

    /// Returns the tickets in order.
    pub(super) fn in_order(self) -> Vec<Name> {
        let mut names: Vec<Name> = self.names.into_iter().map(|Reverse(name)| name).collect();
        names.sort_unstable();
        names
    }
}

/// Returns the last tickets of the queue.
pub(super) fn last(directory: &Directory) -> Result<LastTickets, LeaseError> {
    let mut last = LastTickets::default();
    each(directory, |name| last.add(name))?;
    Ok(last)
}

/// Returns the tickets before one, or `None` if that one is no longer in the queue.
pub(super) fn before(directory: &Directory, own: &Name) -> Result<Option<Vec<Name>>, LeaseError> {
    let (mut last, mut is_there) = (LastTickets::default(), false);
    each(directory, |name| match name.cmp(own) {
        Ordering::Less => last.add(name),
        Ordering::Equal => is_there = true,
        Ordering::Greater => {}
    })?;
    Ok(is_there.then(|| last.in_order()))
}

/// Returns the first ticket of a lease.
pub(super) fn of_lease(directory: &Directory, lease: &str) -> Result<Option<Name>, LeaseError> {
    let mut first: Option<Name> = None;
    each(directory, |name| {
        if name.lease == lease && first.as_ref().is_none_or(|first| name < *first) {
            first = Some(name);
        }
    })?;
    Ok(first)
}

/// Reads the names of all tickets, in no order. Files with other names are ignored.
fn each(directory: &Directory, mut take: impl FnMut(Name)) -> Result<(), LeaseError> {
    let wrong = |error| directory.lease_error("queue", error);
    for entry in Dir::read_from(&directory.queue).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        if let Some(name) = entry.file_name().to_str().ok().and_then(Name::parse) {
            take(name);
        }
    }
    Ok(())
}

/// A ticket of this process. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct QueueEntry {
    directory: Arc<Directory>,
    file: File,
    pub(super) name: Name,
    left: bool,
}

impl QueueEntry {
    /// Creates a ticket at the end of the queue.
    pub(super) fn create(directory: &Arc<Directory>, record: &Record) -> Result<Self, LeaseError> {
        // The clock, not the last number, because a user could create a file with the highest one.
        let number = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX);
        let name = Name { number, lease: record.lease.clone() };
        let create = || {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = File::from(openat(&directory.queue, ".", flags, Mode::from_raw_mode(0o644))?);
            // Other users must be able to test the lock, regardless of the umask.
            fchmod(&file, Mode::from_raw_mode(0o644))?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            record.write(&file)?;
            let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, nameless, &directory.queue, name.text(), AtFlags::SYMLINK_FOLLOW)?;
            Ok(file)
        };
        let file = create().map_err(|error: std::io::Error| directory.file_error("queue", &error))?;
        Ok(Self { directory: Arc::clone(directory), file, name, left: false })
    }

    /// Marks the waiter as running.
    pub(super) fn renew(&self) {
        let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // If this fails, others treat the waiter as stopped, but it is still served.
        let _ = futimens(&self.file, &Timestamps { last_access: now(), last_modification: now() });
    }

    /// Leaves the queue. Returns whether the ticket was still in it.
    pub(super) fn leave(&mut self) -> bool {
        !std::mem::replace(&mut self.left, true) && remove(&self.directory, &self.name) == Ok(())
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Removes a ticket from the queue.
pub(super) fn remove(directory: &Directory, name: &Name) -> Result<(), Errno> {
    unlinkat(&directory.queue, name.text(), AtFlags::empty())
}

/// The state of a ticket.
#[derive(Debug)]
pub(super) enum TicketState {
    /// The waiter has exited, or the file is not a ticket.
    Over,
    /// The waiter was stopped or frozen. It is skipped, and gets its position back when it continues.
    Asleep(File),
    /// The waiter is running.
    Waiting(File),
}

/// Reads a ticket. If its waiter has exited, tries to remove the ticket. Because the directory is sticky, only the
/// ticket's owner and root can do this.
pub(super) fn read_ticket(directory: &Directory, name: &Name) -> TicketState {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let Ok(file) = open_below(&directory.queue, name.text(), flags) else { return TicketState::Over };
    let Ok(found) = fstat(&file) else { return TicketState::Over };
    // A user can add links to the pool's own files, which belong to root.
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink > 1 {
        return TicketState::Over;
    }
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = remove(directory, name);
        return TicketState::Over;
    }
    let file = File::from(file);
    let ttl = Record::read(&file).and_then(|record| record.number("ttl_ms"));
    let ttl = ttl.map_or(LONGEST_SLEEP, Duration::from_millis).min(LONGEST_SLEEP);
    let renewed = file.metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
    // A time in the future counts as not renewed. If the clock was set back, the next renewal corrects the time.
    match SystemTime::now().duration_since(renewed) {
        Ok(age) if age <= ttl => TicketState::Waiting(file),
        _ => TicketState::Asleep(file),
    }
}

/// Time since the epoch.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time that is left until a deadline.
pub(super) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Sleeps for one polling interval.
pub(super) fn sleep(at_most: Duration) {
    std::thread::park_timeout(at_most.min(POLL_INTERVAL));
}

/// The ticket ahead. A thread blocks on its lock, so that the kernel reports when the ticket ends. If this process's
/// ticket leaves the queue first, the thread stays blocked until the waiter ahead or this process exits.
#[derive(Debug)]
pub(super) struct Predecessor {
    name: Name,
    gone: Receiver<()>,
}

impl Predecessor {
    pub(super) fn watch(name: &Name, file: File, watches: &Arc<()>) -> Option<Self> {
        let (sender, gone) = channel();
        let watches = Arc::clone(watches);
        let thread = std::thread::Builder::new().name("queue".to_owned());
        let wait = move || {
            if retry_on_intr(|| flock(&file, FlockOperation::LockShared)).is_ok() {
                let _ = sender.send(());
            }
            drop(watches);
        };
        thread.spawn(wait).ok().map(|_| Self { name: name.clone(), gone })
    }

    pub(super) fn is(&self, name: &Name) -> bool {
        self.name == *name
    }

    /// Waits, at most for `at_most`, until the waiter ahead has left the queue.
    pub(super) fn wait(&self, at_most: Duration) {
        if self.gone.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected) {
            sleep(at_most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_of_other_format_is_no_ticket() {
        let name = Name { number: 7, lease: "0a".to_owned() };
        assert_eq!(Name::parse(&name.text()), Some(name));
        for text in [
            ".",
            "..",
            "7-0a",
            "00000000000000000007",
            "00000000000000000007-",
            "-0a",
            "00000000000000000007-a/b",
            "+0000000000000000007-0a",
            "99999999999999999999-0a",
            "00000000000000000007-a-b",
            "gate",
        ] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }
}
