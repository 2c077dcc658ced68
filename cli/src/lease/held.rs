//! A lease that a command is run under: waited for, renewed, lost, given back.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lease::{Grant, LeaseError, Leases, Ticket, TicketStatus};

use super::progress::Progress;
use super::request::{News, obtain, ticket};
use super::told::{self, Names, environment};
use super::{LEASE, offset, open};
use crate::command::Event;
use crate::exit::Failure;
use crate::flags::{self, OnLost};
use crate::say::say;

/// A lease of this process.
pub(crate) struct Held<'a> {
    flags: &'a flags::Run,
    ticket: Ticket,
    grant: Grant,
    pool: Box<dyn Leases>,
}

impl<'a> Held<'a> {
    /// Waits for GPUs in a thread of its own, so that a signal ends it in order.
    pub(crate) fn wait(
        flags: &'a flags::Run,
        (tell, events): (Sender<Event>, &Receiver<Event>),
    ) -> Result<Self, Failure> {
        let words: Vec<String> =
            flags.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut pool = open(&flags.request.pool)?;
        let mut ticket = ticket(&mut *pool, &flags.request, &words.join(" "))?;
        ticket.about.extend(flags.terms.max_time.map(|time| ("max_ms", time.as_millis().to_string())));
        let request = flags.request.clone();
        let waits = Arc::new(Mutex::new((ticket.lease.clone(), Progress::of(ticket.want))));
        let shared = Arc::clone(&waits);
        let waiting = std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
            let obtained = obtain(&mut *pool, &request, &mut ticket, |news| {
                let (name, progress) = &mut *lock(&shared);
                match news {
                    News::Behind(before) => progress.waits(before),
                    News::Named(lease) => {
                        progress.clear();
                        lease.clone_into(name);
                    }
                }
            });
            match &obtained {
                Ok(grant) => lock(&shared).1.granted(grant),
                Err(_) => lock(&shared).1.clear(),
            }
            // Whoever waits for it may be ending.
            let _ = tell.send(Event::Waited);
            obtained.map(|grant| (pool, ticket, grant))
        })?;
        loop {
            match events.recv() {
                Ok(Event::Told(told)) => {
                    let name = {
                        let (name, progress) = &mut *lock(&waits);
                        progress.interrupt();
                        name.clone()
                    };
                    withdraw(flags, &name);
                    return Err(Failure::signalled(told.number));
                }
                Ok(Event::Waited) | Err(_) => break,
                Ok(Event::ChildEnded | Event::Looked(_)) => {}
            }
        }
        let ended = || Err(Failure::unavailable("the wait for GPUs has ended by a fault of its own"));
        let (pool, ticket, grant) = waiting.join().unwrap_or_else(|_| ended())?;
        Ok(Self { flags, ticket, grant, pool })
    }

    /// What the command is told of its GPUs.
    pub(crate) fn environment(&mut self) -> Result<Vec<(&'static str, String)>, Failure> {
        let names = if self.flags.index { Names::Numbers } else { Names::Uuids };
        if self.flags.index {
            told::check_numbers(&mut *self.pool, &self.grant, self.flags.nvml_library.as_deref())?;
        }
        environment(&mut *self.pool, (&self.ticket.lease, &self.grant), names)
    }

    /// From now on whoever is started keeps the lease.
    pub(crate) fn pass_on(&mut self) -> Result<(), Failure> {
        self.pool.make_inheritable(&self.ticket.lease)?;
        Ok(())
    }

    /// How often it is renewed.
    pub(crate) const fn pace(&self) -> Duration {
        self.flags.renew
    }

    /// How long the command has to end, once the lease was lost.
    pub(crate) fn grace(&self) -> Duration {
        if self.flags.on_lost == OnLost::Kill { Duration::ZERO } else { self.flags.terms.grace }
    }

    /// Says that it is still held; true where it was lost, and the command is to be ended for that.
    pub(crate) fn renew(&mut self) -> bool {
        let lost = match self.pool.renew(&self.ticket, &self.grant, LEASE) {
            Ok(TicketStatus::Conflict(shared)) => {
                say(format_args!("somebody else was given GPUs of this lease: {:?}", shared.gpus));
                true
            }
            Ok(TicketStatus::Ended(how)) => {
                say(format_args!("the lease has ended in Redis: {how}"));
                true
            }
            Ok(_) => false,
            // Nobody is given the GPUs while Redis is silent.
            Err(error) => {
                say(format_args!("the lease could not be renewed: {error}"));
                false
            }
        };
        lost && self.flags.on_lost != OnLost::Warn
    }

    /// How much longer it lasts, where it was given more time meanwhile.
    pub(crate) fn more_time(&mut self) -> Option<Duration> {
        let audit = self.pool.audit().ok()?;
        let lease = told::lease(&audit, &self.ticket.lease)?;
        let number = |field| lease.get(field)?.parse::<u64>().ok();
        let left = number("granted")?.saturating_add(number("max_ms")?).saturating_sub(audit.now);
        Some(Duration::from_millis(left)).filter(|left| !left.is_zero())
    }

    /// How many GPUs it has.
    pub(crate) fn gpus(&self) -> usize {
        self.grant.gpus.len()
    }

    /// Gives the GPUs back.
    pub(crate) fn release(mut self) {
        let us = (offset(), std::process::id());
        if let Err(error) = self.pool.release(&self.ticket.lease, Some(self.grant.token), us) {
            say(format_args!("the GPUs could not be given back, and will be once Redis answers: {error}"));
        }
    }
}

/// Leaves the line.
fn withdraw(flags: &flags::Run, lease: &str) {
    let withdrawn = open(&flags.request.pool).and_then(|mut pool| {
        match pool.release(lease, None, (offset(), std::process::id())) {
            // It was granted just now, to this process, and is free with its end.
            Ok(_) | Err(LeaseError::HeldElsewhere(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    });
    if let Err(failure) = withdrawn {
        say(format_args!("the place in the line ends once Redis answers: {failure}"));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
