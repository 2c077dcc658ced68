//! A waiting ticket of this process: its position in the queue, and the grant when it is first.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::directory::Directory;
use super::queue::{self, Name, Predecessor, QueueEntry, TicketState};
use super::record::Record;
use super::stalled::Stalled;
use super::take::{GpuFile, GpuSelection, Head, Reserved};
use super::token::TokenClock;
use crate::{Grant, LeaseError, Ticket};

/// Maximum number of threads that wait for tickets ahead.
const MOST_WATCHES: usize = 8;

/// A waiting ticket.
#[derive(Debug)]
pub(super) struct Waiter {
    entry: QueueEntry,
    record: Record,
    want: usize,
    selection: GpuSelection,
    /// Whether the request fails instead of waiting, so that the watch is not needed.
    nonblock: bool,
    position: Position,
    stalled: Stalled,
    /// One reference for each thread that waits for a ticket ahead.
    watches: Arc<()>,
    /// GPUs that are locked, but whose records are not written yet. The next waiter may not know about the grant yet.
    pending: Option<(Grant, Vec<GpuFile>)>,
}

/// The position in the queue.
#[derive(Debug)]
enum Position {
    Unknown,
    Behind(Predecessor),
    First(Box<Head>),
}

/// The result of a step.
pub(super) enum Step {
    Granted(Grant),
    Waiting(u64),
    Ended(&'static str),
}

impl Waiter {
    pub(super) fn enqueue(
        directory: &Arc<Directory>,
        record: Record,
        ticket: &Ticket,
    ) -> Result<Self, LeaseError> {
        let entry = QueueEntry::create(directory, &record)?;
        let selection = GpuSelection::of(&record);
        Ok(Self {
            entry,
            record,
            want: ticket.want as usize,
            selection,
            nonblock: ticket.nonblock,
            position: Position::Unknown,
            stalled: Stalled::default(),
            watches: Arc::default(),
            pending: None,
        })
    }

    /// Updates the position in the queue. Returns `None` if this waiter is first and must try the GPUs.
    pub(super) fn update_position(&mut self, directory: &Directory) -> Result<Option<Step>, LeaseError> {
        self.entry.renew();
        let Some(ahead) = queue::before(directory, &self.entry.name)? else {
            return Ok(Some(Step::Ended("cancelled")));
        };
        let mut reserved = Reserved::default();
        let ahead = Stalled::limit(directory, &ahead);
        for (before, name) in ahead.iter().enumerate().rev() {
            let TicketState::Waiting(file) = queue::read_ticket(directory, name) else { continue };
            if self.stalled.skips(name, &file) {
                continue;
            }
            let selection = Record::read(&file).map(|record| GpuSelection::of(&record)).unwrap_or_default();
            if !reserved.add(&selection) {
                self.stalled.watch(directory, &ahead);
                self.set_behind(name, file);
                return Ok(Some(Step::Waiting(before as u64 + 1)));
            }
        }
        if reserved.tickets > 0 {
            self.stalled.watch(directory, &ahead);
        }
        if !matches!(&self.position, Position::First(head) if head.is_current(directory)) {
            let managed = directory.managed()?;
            if self.want > self.selection.count(&managed) {
                return Ok(Some(Step::Ended("refused")));
            }
            self.position = Position::First(Box::new(Head::open(directory, managed, &self.selection)));
        }
        if let Position::First(head) = &mut self.position {
            head.reserved = reserved;
        }
        Ok(None)
    }

    fn set_behind(&mut self, name: &Name, file: File) {
        if !matches!(&self.position, Position::Behind(predecessor) if predecessor.is(name)) {
            // A user can change the order of tickets all the time. Beyond the limit, the waiter polls.
            let watches = !self.nonblock && Arc::strong_count(&self.watches) <= MOST_WATCHES;
            let predecessor = watches.then(|| Predecessor::watch(name, file, &self.watches)).flatten();
            self.position = predecessor.map_or(Position::Unknown, Position::Behind);
        }
    }

    /// Tries the GPUs.
    pub(super) fn try_gpus(&mut self, directory: &Directory) -> Step {
        let Position::First(head) = &mut self.position else { return Step::Waiting(0) };
        let mut taken = head.take(directory, self.want);
        // A GPU may have been released before the watch was started.
        if taken.is_none() && !self.nonblock && head.listen() {
            taken = head.take(directory, self.want);
        }
        let (tokens, before) = (head.managed.tokens, head.reserved.tickets);
        taken.map_or(Step::Waiting(before), |taken| self.grant(taken, tokens))
    }

    /// Tries the GPUs without reading the queue.
    pub(super) fn try_released(&mut self, directory: &Directory) -> Option<Step> {
        let Position::First(head) = &mut self.position else { return None };
        let (tokens, taken) = (head.managed.tokens, head.take(directory, self.want));
        taken.map(|taken| self.grant(taken, tokens))
    }

    /// Creates the grant. The locks are held, so each later grant of these GPUs gets a higher token.
    fn grant(&mut self, mut taken: Vec<GpuFile>, tokens: TokenClock) -> Step {
        taken.sort_by_key(|gpu| gpu.id);
        let gpus = taken.iter().map(|gpu| gpu.id).collect();
        let grant = Grant { token: tokens.next(), gpus };
        self.pending = Some((grant.clone(), taken));
        Step::Granted(grant)
    }

    /// Returns the grant whose records have not been written yet.
    pub(super) fn take_pending(&mut self) -> Option<(Grant, Vec<GpuFile>)> {
        self.pending.take()
    }

    /// Writes the records and leaves the queue. Returns `None` if the ticket was withdrawn meanwhile.
    pub(super) fn complete_grant(
        &mut self,
        directory: &Directory,
        (grant, taken): (&Grant, Vec<GpuFile>),
    ) -> Option<(Vec<File>, Record)> {
        let about = &mut self.record.about;
        let gpus: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
        about.insert("gpus".to_owned(), gpus.join(","));
        about.insert("tok".to_owned(), grant.token.to_string());
        about.insert("granted".to_owned(), queue::now().as_millis().to_string());
        for gpu in &taken {
            self.record.write_for_gpu(directory, gpu.id);
        }
        let files = taken.into_iter().map(|gpu| gpu.file).collect();
        self.entry.leave().then(|| (files, std::mem::take(&mut self.record)))
    }

    /// Drops the waiter after its grant. The slow part is dropped in the background.
    pub(super) fn finish(mut self: Box<Self>) {
        if let Position::First(head) = &mut self.position
            && let Some(watch) = head.watch.take()
        {
            watch.close_in_background(self);
        }
    }

    /// Waits for a change ahead in the queue or, if this waiter is first, for a released GPU. Returns whether it is
    /// first.
    pub(super) fn wait_for_change(&mut self, at_most: Duration) -> bool {
        match &mut self.position {
            Position::Behind(predecessor) => predecessor.wait(at_most),
            Position::First(head) => head.wait_for_release(at_most),
            Position::Unknown => queue::sleep(at_most),
        }
        matches!(self.position, Position::First(_))
    }
}
