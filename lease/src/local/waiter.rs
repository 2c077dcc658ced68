//! Somebody who waits: where he stands, and what he does when it is his turn.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::directory::Directory;
use super::queue::{self, Ahead, Name, Place, Seen};
use super::record::Record;
use super::take::{self, Head, Kept, Wish};
use crate::{Grant, LeaseError, Ticket};

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
    /// He has the locks, and the next may not know yet.
    took: Option<(Grant, Vec<take::Gpu>)>,
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
    Took(Grant),
    Waits(u64),
    Ended(&'static str),
}

impl Waiter {
    pub(super) fn stand(
        directory: &Arc<Directory>,
        record: Record,
        ticket: &Ticket,
    ) -> Result<Self, LeaseError> {
        let place = Place::stand(directory, &record)?;
        let wish = Wish::of(&record);
        Ok(Self {
            place,
            record,
            want: ticket.want as usize,
            wish,
            nonblock: ticket.nonblock,
            stands: Stands::Nowhere,
            took: None,
        })
    }

    /// Finds his place; whoever is the first is to try the GPUs.
    pub(super) fn look(&mut self, directory: &Directory) -> Result<Option<Step>, LeaseError> {
        self.place.awake();
        let names = queue::names(directory)?;
        let Some(ours) = names.iter().position(|name| *name == self.place.name) else {
            return Ok(Some(Step::Ended("cancelled")));
        };
        let mut kept = Kept::default();
        for (before, name) in names[..ours].iter().enumerate().rev() {
            let Seen::Waits(file) = queue::look(directory, name) else { continue };
            let wish = Record::read(&file).map(|record| Wish::of(&record)).unwrap_or_default();
            if !kept.add(&wish) {
                self.behind(name, file);
                return Ok(Some(Step::Waits(before as u64 + 1)));
            }
        }
        if !matches!(&self.stands, Stands::First(head) if head.is_current(directory)) {
            let managed = directory.managed()?;
            if self.want > self.wish.fit(&managed) {
                return Ok(Some(Step::Ended("refused")));
            }
            self.stands = Stands::First(Box::new(Head::open(directory, managed, &self.wish)));
        }
        if let Stands::First(head) = &mut self.stands {
            head.kept = kept;
            head.look_up();
        }
        Ok(None)
    }

    fn behind(&mut self, name: &Name, file: File) {
        if !matches!(&self.stands, Stands::Behind(ahead) if ahead.is(name)) {
            let ahead = (!self.nonblock).then(|| Ahead::follow(name, file)).flatten();
            self.stands = ahead.map_or(Stands::Nowhere, Stands::Behind);
        }
    }

    /// Tries the GPUs.
    pub(super) fn first(&mut self, directory: &Directory) -> Step {
        let Stands::First(head) = &mut self.stands else { return Step::Waits(0) };
        let mut taken = head.take(directory, self.want);
        // Somebody may have let go before we listened.
        if taken.is_none() && !self.nonblock && head.listen() {
            taken = head.take(directory, self.want);
        }
        let (above, before) = (head.token, head.kept.tickets);
        taken.map_or(Step::Waits(before), |taken| self.took(taken, above))
    }

    /// Only tries what there is, as the first who has heard the bell.
    pub(super) fn hurry(&mut self, directory: &Directory) -> Option<Step> {
        let Stands::First(head) = &mut self.stands else { return None };
        let (above, taken) = (head.token, head.take(directory, self.want));
        if taken.is_none() {
            head.quiet();
        }
        taken.map(|taken| self.took(taken, above))
    }

    /// A token is the time, so that tokens rise over all GPUs, and above the last that was given with one of them: clocks
    /// are set back.
    fn took(&mut self, mut taken: Vec<take::Gpu>, above: u64) -> Step {
        taken.sort_by_key(|gpu| gpu.id);
        let now = u64::try_from(queue::now().as_micros()).unwrap_or_default();
        let gpus = taken.iter().map(|gpu| gpu.id).collect();
        let grant = Grant { token: now.max(above + 1), gpus };
        self.took = Some((grant.clone(), taken));
        Step::Took(grant)
    }

    /// What he has taken and is still to be written down.
    pub(super) fn takes(&mut self) -> Option<(Grant, Vec<take::Gpu>)> {
        self.took.take()
    }

    /// Writes down who holds them, and leaves the queue; nothing where the ticket was withdrawn meanwhile.
    pub(super) fn settle(&mut self, grant: &Grant, taken: Vec<take::Gpu>) -> Option<(Vec<File>, Record)> {
        let about = &mut self.record.about;
        let gpus: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
        about.insert("gpus".to_owned(), gpus.join(","));
        about.insert("tok".to_owned(), grant.token.to_string());
        about.insert("granted".to_owned(), queue::now().as_millis().to_string());
        for gpu in &taken {
            // A full disk keeps nobody from holding what he has locked.
            let _ = self.record.write(&gpu.file);
        }
        let files = taken.into_iter().map(|gpu| gpu.file).collect();
        self.place.leave().then(|| (files, std::mem::take(&mut self.record)))
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
