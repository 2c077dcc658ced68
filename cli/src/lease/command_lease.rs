//! The lease of a command: waiting for it, renewing it, and releasing it.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lease::{Grant, LeaseError, Leases, Ticket, TicketStatus};

use super::flags::{self, OnLost};
use super::format::{self, GpuNames, environment};
use super::progress::Progress;
use super::request::{RequestEvent, obtain, ticket};
use super::{LEASE, offset, open};
use crate::command::Event;
use crate::exit::Failure;
use crate::output::{joined, print_message};

/// A lease that this process holds for a command.
pub(crate) struct CommandLease<'a> {
    flags: &'a flags::Run,
    ticket: Ticket,
    grant: Grant,
    pool: Box<dyn Leases>,
}

impl<'a> CommandLease<'a> {
    /// Waits for GPUs in a separate thread, so that a signal can cancel the request.
    pub(crate) fn wait(
        flags: &'a flags::Run,
        (sender, events): (Sender<Event>, &Receiver<Event>),
    ) -> Result<Self, Failure> {
        let command = joined(flags.command.iter().map(|arg| arg.to_string_lossy()), " ");
        let mut pool = open(&flags.request.pool)?;
        let mut ticket = ticket(&mut *pool, &flags.request, &command)?;
        ticket.about.extend(flags.time_limit.max_time.map(|time| ("max_ms", time.as_millis().to_string())));
        let request = flags.request.clone();
        let progress_state = Arc::new(Mutex::new((ticket.lease.clone(), Progress::new(ticket.want))));
        let shared = Arc::clone(&progress_state);
        let waiting = std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
            let obtained = obtain(&mut *pool, &request, &mut ticket, |event| {
                let (name, progress) = &mut *lock(&shared);
                match event {
                    RequestEvent::Behind(before) => progress.waiting(before),
                    RequestEvent::Renamed(lease) => {
                        progress.clear();
                        lease.clone_into(name);
                    }
                }
            });
            match &obtained {
                Ok(grant) => lock(&shared).1.granted(grant),
                Err(_) => lock(&shared).1.clear(),
            }
            // Fails only if the receiver is ending.
            let _ = sender.send(Event::Waited);
            obtained.map(|grant| (pool, ticket, grant))
        })?;
        loop {
            match events.recv() {
                Ok(Event::Signal(signal)) => {
                    let name = {
                        let (name, progress) = &mut *lock(&progress_state);
                        progress.interrupt();
                        name.clone()
                    };
                    withdraw(flags, &name);
                    return Err(Failure::signalled(signal.number));
                }
                Ok(Event::Waited) | Err(_) => break,
                Ok(Event::ChildEnded | Event::Sampled(_)) => {}
            }
        }
        let panicked = || Err(Failure::unavailable("internal error while waiting for GPUs"));
        let (pool, ticket, grant) = waiting.join().unwrap_or_else(|_| panicked())?;
        Ok(Self { flags, ticket, grant, pool })
    }

    /// Returns the environment variables that name the leased GPUs.
    pub(crate) fn environment(&mut self) -> Result<Vec<(&'static str, String)>, Failure> {
        let names = if self.flags.index { GpuNames::Indexes } else { GpuNames::Uuids };
        if self.flags.index {
            format::check_indexes(&mut *self.pool, &self.grant, self.flags.nvml_library.as_deref())?;
        }
        environment(&mut *self.pool, (&self.ticket.lease, &self.grant), names)
    }

    /// Passes the lease's locks to processes started from now on.
    pub(crate) fn pass_on(&mut self) -> Result<(), Failure> {
        self.pool.make_inheritable(&self.ticket.lease)?;
        Ok(())
    }

    /// Returns the renewal interval.
    pub(crate) const fn renew_interval(&self) -> Duration {
        self.flags.renew
    }

    /// Returns the time between SIGTERM and SIGKILL after the lease was lost.
    pub(crate) fn grace(&self) -> Duration {
        if self.flags.on_lost == OnLost::Kill { Duration::ZERO } else { self.flags.time_limit.grace }
    }

    /// Renews the lease; returns true if it was lost and the command must be stopped.
    pub(crate) fn renew(&mut self) -> bool {
        let lost = match self.pool.renew(&self.ticket, &self.grant, LEASE) {
            Ok(TicketStatus::Conflict(shared)) => {
                print_message(format_args!(
                    "GPUs of this lease were granted to another lease: {:?}",
                    shared.gpus
                ));
                true
            }
            Ok(TicketStatus::Ended(how)) => {
                print_message(format_args!("the lease has ended: {how}"));
                true
            }
            Ok(_) => false,
            // While Redis does not respond, it cannot grant the GPUs to another request either.
            Err(error) => {
                print_message(format_args!("cannot renew the lease: {error}"));
                false
            }
        };
        lost && self.flags.on_lost != OnLost::Warn
    }

    /// Returns the remaining time if the lease was extended.
    pub(crate) fn extension(&mut self) -> Option<Duration> {
        let audit = self.pool.extends_leases().then(|| self.pool.audit().ok())??;
        let lease = format::lease(&audit, &self.ticket.lease)?;
        let number = |field| lease.get(field)?.parse::<u64>().ok();
        let left = number("granted")?.saturating_add(number("max_ms")?).saturating_sub(audit.now);
        Some(Duration::from_millis(left)).filter(|left| !left.is_zero())
    }

    /// Returns the number of leased GPUs.
    pub(crate) fn gpus(&self) -> usize {
        self.grant.gpus.len()
    }

    /// Releases the GPUs.
    pub(crate) fn release(mut self) {
        let holder = (offset(), std::process::id());
        if let Err(error) = self.pool.release(&self.ticket.lease, Some(self.grant.token), holder) {
            print_message(format_args!(
                "cannot release the GPUs now; they are released when Redis responds again: {error}"
            ));
        }
    }
}

/// Cancels the request in the queue.
fn withdraw(flags: &flags::Run, lease: &str) {
    let withdrawn = open(&flags.request.pool).and_then(|mut pool| {
        match pool.release(lease, None, (offset(), std::process::id())) {
            // The lease was granted to this process just now, and is released when this process exits.
            Ok(_) | Err(LeaseError::HeldElsewhere(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    });
    if let Err(failure) = withdrawn {
        print_message(format_args!(
            "cannot cancel the lease request now; it expires when Redis responds again: {failure}"
        ));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
