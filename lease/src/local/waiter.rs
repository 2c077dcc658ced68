//! Somebody who waits: where he stands, and what he does when it is his turn.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::folder::{Folder, Gate};
use super::queue::{self, Ahead, Name, Place, Seen};
use super::record::Record;
use super::take::{self, Head, Kept, Wish};
use crate::{Grant, Ticket, Trouble};

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    place: Place,
    record: Record,
    want: usize,
    wish: Wish,
    /// Whoever does not wait needs no bell.
    nonblock: bool,
    stands: Stands,
}

/// Where he stands.
#[derive(Debug)]
enum Stands {
    Nowhere,
    Behind(Ahead),
    First(Box<Head>),
}

/// What came of looking around.
pub(super) enum Step {
    Took(Grant, Record, Vec<File>),
    Waits(u64),
    Ended(&'static str),
}

impl Waiter {
    pub(super) fn stand(folder: &Arc<Folder>, record: Record, ticket: &Ticket) -> Result<Self, Trouble> {
        let place = Place::stand(folder, &record)?;
        let wish = Wish::of(&record);
        Ok(Self {
            place,
            record,
            want: ticket.want as usize,
            wish,
            nonblock: ticket.nonblock,
            stands: Stands::Nowhere,
        })
    }

    pub(super) fn step(&mut self, folder: &Folder, gate: &Gate<'_>) -> Result<Step, Trouble> {
        self.place.awake();
        let names = queue::names(folder)?;
        let Some(ours) = names.iter().position(|name| *name == self.place.name) else {
            return Ok(Step::Ended("cancelled"));
        };
        let mut kept = Kept::default();
        for (before, name) in names[..ours].iter().enumerate().rev() {
            let Seen::Waits(file) = queue::look(folder, name) else { continue };
            let wish = Record::read(&file).map(|record| Wish::of(&record)).unwrap_or_default();
            if !kept.add(&wish) {
                self.behind(name, file);
                return Ok(Step::Waits(before as u64 + 1));
            }
        }
        if !matches!(&self.stands, Stands::First(head) if head.is_current(folder)) {
            let managed = folder.managed()?;
            if self.want > self.wish.fit(&managed) {
                return Ok(Step::Ended("refused"));
            }
            self.stands = Stands::First(Box::new(Head::open(folder, managed, &self.wish)));
        }
        Ok(self.first(folder, gate, kept))
    }

    fn behind(&mut self, name: &Name, file: File) {
        if !matches!(&self.stands, Stands::Behind(ahead) if ahead.is(name)) {
            let ahead = (!self.nonblock).then(|| Ahead::follow(name, file)).flatten();
            self.stands = ahead.map_or(Stands::Nowhere, Stands::Behind);
        }
    }

    fn first(&mut self, folder: &Folder, gate: &Gate<'_>, kept: Kept) -> Step {
        let before = kept.tickets;
        let Stands::First(head) = &mut self.stands else { return Step::Waits(before) };
        head.kept = kept;
        let mut taken = head.take(folder, self.want);
        // Somebody may have let go before we listened.
        if taken.is_none() && !self.nonblock && head.listen() {
            taken = head.take(folder, self.want);
        }
        let above = head.token;
        taken.map_or(Step::Waits(before), |taken| self.took(gate, taken, above))
    }

    /// Only tries what there is, as the first.
    pub(super) fn hurry(&mut self, folder: &Folder, gate: &Gate<'_>) -> Option<Step> {
        let Stands::First(head) = &mut self.stands else { return None };
        let above = head.token;
        head.take(folder, self.want).map(|taken| self.took(gate, taken, above))
    }

    /// Writes down who holds them, and leaves the queue.
    fn took(&mut self, gate: &Gate<'_>, mut taken: Vec<take::Gpu>, above: u64) -> Step {
        taken.sort_by_key(|gpu| gpu.id);
        let token = gate.token(above);
        let gpus: Vec<u32> = taken.iter().map(|gpu| gpu.id).collect();
        let about = &mut self.record.about;
        about.insert("gpus".to_owned(), gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        about.insert("tok".to_owned(), token.to_string());
        about.insert("granted".to_owned(), queue::now().as_millis().to_string());
        for gpu in &taken {
            // A full disk keeps nobody from holding what he has locked.
            let _ = self.record.write(&gpu.file);
        }
        if !self.place.leave() {
            return Step::Ended("cancelled");
        }
        Step::Took(
            Grant { token, gpus },
            std::mem::take(&mut self.record),
            taken.into_iter().map(|gpu| gpu.file).collect(),
        )
    }

    /// Has what he wanted; nobody waits until the rest is put away.
    pub(super) fn go(mut self: Box<Self>) {
        if let Stands::First(head) = &mut self.stands
            && let Some(bell) = head.bell.take()
        {
            bell.take_down(self);
        }
    }

    /// Rests, and tells whether a GPU was let go.
    pub(super) fn rest(&mut self, at_most: Duration) -> bool {
        match &mut self.stands {
            Stands::Behind(ahead) => ahead.rest(at_most),
            Stands::First(head) => return head.rest(at_most),
            Stands::Nowhere => queue::rest(at_most),
        }
        false
    }
}
