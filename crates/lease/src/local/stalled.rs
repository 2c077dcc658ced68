//! Tickets that are skipped, so that one user cannot block the queue: the tickets of a user beyond a number, and
//! tickets that could have got their GPUs and did not take them.

#![expect(clippy::disallowed_methods, reason = "a stalled ticket is recognized by elapsed time")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use bailiff_proc::{open_below, user_of};
use rustix::fs::{FileType, FlockOperation, OFlags, Stat, flock, fstat};
use rustix::process::geteuid;

use super::directory::Directory;
use super::queue::{self, Name, TicketState};
use super::record::Record;
use super::take::GpuSelection;

/// This many tickets of another user are waited for; further ones are served after them.
const MOST_TICKETS: usize = 64;
/// A ticket is skipped after its GPUs were idle for this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval of looking for idle GPUs.
const INTERVAL: Duration = Duration::from_secs(5);

/// What a waiter knows about the tickets ahead.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// Other users of whom a ticket stalled, and tickets of the waiter's own user that did.
    users: BTreeSet<u32>,
    tickets: BTreeSet<Name>,
    /// Whose ticket is first and could take its GPUs, and since when. A user can have another ticket be first at any time.
    first: Option<(First, Instant)>,
    checked: Option<Instant>,
}

/// The first ticket: one of another user, or a certain one of the waiter's own user.
#[derive(Debug, PartialEq, Eq)]
enum First {
    OfUser(u32),
    Own(Name),
}

impl Stalled {
    /// Returns the tickets without those of a user beyond the limit.
    pub(super) fn limit<'a>(directory: &Directory, ahead: &'a [Name]) -> Vec<&'a Name> {
        if ahead.len() <= MOST_TICKETS {
            return ahead.iter().collect();
        }
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        let within = |name: &&Name| {
            let found = open_below(&directory.queue, name.text(), OFlags::PATH).and_then(fstat);
            // Any user can link files of others, such as records, into the queue.
            let is_ticket =
                |found: &Stat| found.st_nlink == 1 && FileType::from_raw_mode(found.st_mode).is_file();
            let Some(owner) = found.ok().filter(is_ticket).map(|found| user_of(found.st_uid)) else {
                return false;
            };
            let count = counts.entry(owner).or_default();
            *count += 1;
            *count <= MOST_TICKETS || owner == user_of(geteuid().as_raw())
        };
        ahead.iter().filter(within).collect()
    }

    /// Returns whether a ticket is skipped.
    pub(super) fn skips(&self, name: &Name, file: &File) -> bool {
        self.tickets.contains(name) || owner(file).is_some_and(|owner| self.users.contains(&owner))
    }

    /// Examines the first ticket, and adds it if it has stalled.
    pub(super) fn watch(&mut self, directory: &Directory, ahead: &[&Name]) {
        if self.checked.is_some_and(|checked| checked.elapsed() < INTERVAL) {
            return;
        }
        self.checked = Some(Instant::now());
        let first = ahead.iter().find_map(|name| match queue::read_ticket(directory, name) {
            TicketState::Waiting(file) if !self.skips(name, &file) => Some((*name, file)),
            _ => None,
        });
        let Some((name, file)) = first.filter(|(_, file)| can_take(directory, file)) else {
            self.first = None;
            return;
        };
        let other = owner(&file).filter(|owner| *owner != user_of(geteuid().as_raw()));
        let first = other.map_or_else(|| First::Own(name.clone()), First::OfUser);
        match self.first.take() {
            Some((before, since)) if before == first && since.elapsed() >= PATIENCE => match first {
                First::OfUser(user) => drop(self.users.insert(user)),
                First::Own(name) => drop(self.tickets.insert(name)),
            },
            Some((before, since)) if before == first => self.first = Some((first, since)),
            _ => self.first = Some((first, Instant::now())),
        }
    }
}

/// Returns the user of a ticket, also if a subordinate uid of the user owns it.
fn owner(file: &File) -> Option<u32> {
    file.metadata().ok().map(|found| user_of(found.uid()))
}

/// Returns whether as many GPUs as the ticket requests are idle, or never will be.
fn can_take(directory: &Directory, ticket: &File) -> bool {
    let Ok(managed) = directory.managed() else { return false };
    let record = Record::read(ticket).unwrap_or_default();
    let selection = GpuSelection::of(&record);
    let idle = managed.gpus.iter().filter(|gpu| {
        let file = selection.accepts(gpu.id).then(|| directory.gpu(gpu.id).ok()).flatten();
        // Closing the file releases the lock at once. A waiter that finds the GPU locked meanwhile tries again.
        file.is_some_and(|(file, _)| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok())
    });
    let want = record.number("want").unwrap_or(1).max(1);
    // A ticket that requests more than there are is never served.
    idle.count() as u64 >= want || want > selection.count(&managed) as u64
}
