//! The queue: a file a ticket, which its waiter has locked from before it had a name until he ends.

#![expect(clippy::disallowed_methods, reason = "tickets of those who sleep are known by their age")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW,
};
use rustix::fs::{fchmod, flock, fstat, futimens, linkat, openat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

use super::directory::Directory;
use super::record::Record;
use crate::LeaseError;

/// Nobody is believed to sleep for longer without losing his turn.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);
/// Where the end of the one before cannot be waited for it is looked for so often.
const AGAIN: Duration = Duration::from_millis(20);

/// A ticket's name: its number, which orders the queue, and its lease, which nobody else has.
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

    fn text(&self) -> String {
        format!("{:020}-{}", self.number, self.lease)
    }
}

/// Whether a lease's name can be a file's.
pub(super) fn is_name(lease: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&lease.len()) && lease.bytes().all(plain)
}

/// All tickets, in their order. What has another name is none.
pub(super) fn names(directory: &Directory) -> Result<Vec<Name>, LeaseError> {
    let wrong = |error| directory.lease_error("queue", error);
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory.queue).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        names.extend(entry.file_name().to_str().ok().and_then(Name::parse));
    }
    names.sort_unstable();
    Ok(names)
}

/// A ticket of ours; whoever drops it leaves the queue.
#[derive(Debug)]
pub(super) struct Place {
    directory: Arc<Directory>,
    file: File,
    pub(super) name: Name,
    left: bool,
}

impl Place {
    /// Goes to the end of the queue.
    pub(super) fn stand(directory: &Arc<Directory>, record: &Record) -> Result<Self, LeaseError> {
        let last = names(directory)?.last().map_or(0, |name| name.number);
        let name = Name { number: last.saturating_add(1), lease: record.lease.clone() };
        let stand = || {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = File::from(openat(&directory.queue, ".", flags, Mode::from_raw_mode(0o644))?);
            // Others have to see whether it is locked, whatever our umask says.
            fchmod(&file, Mode::from_raw_mode(0o644))?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            record.write(&file)?;
            let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, nameless, &directory.queue, name.text(), AtFlags::SYMLINK_FOLLOW)?;
            Ok(file)
        };
        let file = stand().map_err(|error: std::io::Error| directory.wrong("queue", &error))?;
        Ok(Self { directory: Arc::clone(directory), file, name, left: false })
    }

    /// Says that its waiter is awake.
    pub(super) fn awake(&self) {
        let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // Where that cannot be said others take him for asleep, and he is still served.
        let _ = futimens(&self.file, &Timestamps { last_access: now(), last_modification: now() });
    }

    /// Leaves the queue; whether it was in it.
    pub(super) fn leave(&mut self) -> bool {
        !std::mem::replace(&mut self.left, true) && remove(&self.directory, &self.name) == Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Takes a ticket out of the queue.
pub(super) fn remove(directory: &Directory, name: &Name) -> Result<(), Errno> {
    unlinkat(&directory.queue, name.text(), AtFlags::empty())
}

/// How a ticket stands.
#[derive(Debug)]
pub(super) enum Seen {
    /// Nobody waits for it any more, or it never was a ticket.
    Over,
    /// Its waiter was stopped, or frozen: others pass him by, and he has his place again when he wakes.
    Asleep(File),
    /// Somebody waits for it.
    Waits(File),
}

/// Looks at a ticket. One whose waiter has ended is taken away, where it is ours to do so: in a sticky directory that
/// is its owner's, and root's.
pub(super) fn look(directory: &Directory, name: &Name) -> Seen {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(&directory.queue, name.text(), flags, Mode::empty()) else { return Seen::Over };
    let Ok(found) = fstat(&file) else { return Seen::Over };
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Seen::Over;
    }
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = remove(directory, name);
        return Seen::Over;
    }
    let file = File::from(file);
    let ttl = Record::read(&file).and_then(|record| record.number("ttl_ms"));
    let ttl = ttl.map_or(LONGEST_SLEEP, Duration::from_millis).min(LONGEST_SLEEP);
    let awake = file.metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
    let age = SystemTime::now().duration_since(awake).unwrap_or_default();
    if age > ttl { Seen::Asleep(file) } else { Seen::Waits(file) }
}

/// Time since the epoch.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What is left of the time until then.
pub(super) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Back after a little while.
pub(super) fn rest(at_most: Duration) {
    std::thread::park_timeout(at_most.min(AGAIN));
}

/// The one before us, whose end the kernel tells: a thread stands at the lock of his ticket. Should we go earlier, it
/// stands there until he has ended, or we have.
#[derive(Debug)]
pub(super) struct Ahead {
    name: Name,
    gone: Receiver<()>,
}

impl Ahead {
    pub(super) fn follow(name: &Name, file: File) -> Option<Self> {
        let (tell, gone) = channel();
        let behind = std::thread::Builder::new().name("queue".to_owned());
        let stand = move || {
            if retry_on_intr(|| flock(&file, FlockOperation::LockShared)).is_ok() {
                let _ = tell.send(());
            }
        };
        behind.spawn(stand).ok().map(|_| Self { name: name.clone(), gone })
    }

    pub(super) fn is(&self, name: &Name) -> bool {
        self.name == *name
    }

    /// Back when he has ended, or so late.
    pub(super) fn rest(&self, at_most: Duration) {
        if self.gone.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected) {
            rest(at_most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_ours_is_none() {
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
