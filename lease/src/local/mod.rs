//! A pool of this machine's own, without a server: who holds a GPU has the kernel's lock (`flock`) of its file. The kernel
//! gives a lock back when the last process has ended that has its descriptor, at once and however it ended, so nothing
//! is renewed, nothing expires, and no pid is believed.
//!
//! ```text
//! /run/bailiff/lease/        0755, the pool's owner's
//!     pool                   0644  which GPUs are handed out
//!     gate                   0666  one at a time goes in
//!     gpu/0, gpu/1, …        0666  locked by who holds the GPU, and a record that says who he is
//!     queue/                 1777
//!         NUMBER-LEASE       0644  a ticket, its waiter's, locked by him
//! ```
//!
//! All but tickets are made by `init` and opened without being created, so that `fs.protected_regular` stands in nobody's
//! way; where others may not look into the directory, its group has what others would have. In `queue/`, which is sticky,
//! each ticket belongs to its waiter: it is made without a name (`O_TMPFILE`), locked, and then linked, so that whoever
//! finds one unlocked knows that its waiter has ended. It is passed by then, and taken away by its owner or by root,
//! whoever of them looks next; others' remain until then and hold up nobody.
//!
//! The first of the queue alone tries the GPUs. Each of the others stands at the lock of the ticket before his own, so one
//! end wakes one waiter. Whoever was stopped while he waited is passed by, and has his place again when he goes on.
//! The gate keeps order and nothing else: what keeps a GPU from being had twice is its lock alone.
//!
//! What others can do: a user may lock the file of an idle GPU without standing in the queue, make a ticket with a low
//! number, or write nonsense into records. None of these takes a GPU from who has it.

mod directory;
mod keeper;
mod list;
mod processes;
mod queue;
mod record;
mod take;
mod waiter;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use crate::audit::Audit;
use crate::holder::LocalHost;
use crate::{Grant, Init, LeaseError, Leases, Released, Ticket, TicketStatus, process};
use directory::{Directory, Gate, Gpu};
use record::Record;
use take::Wish;
use waiter::{Step, Waiter};

/// Descriptors that are passed on have numbers above those that shells and programs give to their own.
const ABOVE: i32 = 100;
/// Whoever waits looks around so often, should he have missed something.
const TICK: Duration = Duration::from_secs(1);

/// A pool of this machine's own.
#[derive(Debug)]
pub struct Local {
    /// The first that is dropped, so that others have what was ours.
    mine: BTreeMap<String, Mine>,
    path: PathBuf,
    directory: Option<Arc<Directory>>,
    local_host: LocalHost,
}

/// A ticket or a lease of this process.
#[derive(Debug)]
enum Mine {
    Waits(Box<Waiter>),
    /// The files are the first that are let go.
    Holds(Vec<File>, Grant, Record),
}

impl Local {
    /// The pool in a directory; it is looked at when something is asked.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), directory: None, mine: BTreeMap::new(), local_host: LocalHost::read() }
    }

    fn directory(&mut self) -> Result<Arc<Directory>, LeaseError> {
        if let Some(directory) = &self.directory {
            return Ok(Arc::clone(directory));
        }
        let directory = Arc::new(Directory::open(&self.path)?);
        self.directory = Some(Arc::clone(&directory));
        Ok(directory)
    }

    /// Tries what has just been let go, without looking around.
    fn hurry(&mut self, lease: &str) -> Result<Option<TicketStatus>, LeaseError> {
        let directory = self.directory()?;
        let Some(Mine::Waits(waiter)) = self.mine.get_mut(lease) else { return Ok(None) };
        let gate = directory.enter();
        let step = waiter.hurry(&directory);
        // Whoever is next finds the gate open.
        drop(gate);
        Ok(step.map(|step| self.keep(lease, step)))
    }

    /// Keeps what came of a step.
    fn keep(&mut self, lease: &str, step: Step) -> TicketStatus {
        match step {
            Step::Took(grant) => TicketStatus::Held(grant),
            Step::Waits(before) => TicketStatus::Waiting { before },
            Step::Ended(how) => {
                self.mine.remove(lease);
                TicketStatus::Ended(how.to_owned())
            }
        }
    }

    /// Writes down what was taken and leaves the queue, where that is still to be done, and tells how it stands then.
    fn settle(&mut self, lease: &str) -> Option<TicketStatus> {
        let Mine::Waits(waiter) = self.mine.get_mut(lease)? else { return None };
        let (grant, taken) = waiter.takes()?;
        let settled = waiter.settle(&grant, taken);
        if let Some(Mine::Waits(waiter)) = self.mine.remove(lease) {
            waiter.go();
        }
        let Some((files, record)) = settled else { return Some(TicketStatus::Ended("cancelled".to_owned())) };
        self.mine.insert(lease.to_owned(), Mine::Holds(files, grant.clone(), record));
        Some(TicketStatus::Held(grant))
    }

    /// Looks around, and where we are the first tries what there is; at the gate, unless that was passed before.
    fn step(
        &mut self,
        lease: &str,
        directory: &Directory,
        gate: Option<Gate<'_>>,
    ) -> Result<TicketStatus, LeaseError> {
        let Some(Mine::Waits(waiter)) = self.mine.get_mut(lease) else {
            return Ok(TicketStatus::Ended("unknown".to_owned()));
        };
        if let Some(step) = waiter.look(directory)? {
            return Ok(self.keep(lease, step));
        }
        let _gate = gate.unwrap_or_else(|| directory.enter());
        let step = waiter.first(directory);
        let status = self.keep(lease, step);
        Ok(self.settle(lease).unwrap_or(status))
    }
}

impl Leases for Local {
    fn init(&mut self, gpus: &[(u32, Option<String>)], _: i32, force: bool) -> Result<Init, LeaseError> {
        let directory = Directory::make(&self.path)?;
        let gate = directory.enter();
        if !gate.alone {
            return Err(LeaseError::NotNow(
                "somebody was stopped while he asked for GPUs; try again".to_owned(),
            ));
        }
        match directory.managed() {
            Ok(managed) if !force => return Ok(Init::Already(managed.gpus.len() as u64)),
            Ok(managed) => {
                let held = |gpu: &&Gpu| {
                    directory.gpu(gpu.id, OFlags::RDONLY).is_ok_and(|(file, _)| list::is_locked(&file))
                };
                let held = managed.gpus.iter().filter(held).count();
                if held > 0 {
                    return Ok(Init::Held(held as u64));
                }
            }
            Err(LeaseError::Absent(_)) => {}
            Err(_) if force => {}
            Err(error) => return Err(error),
        }
        let mut managed: Vec<Gpu> =
            gpus.iter().map(|(id, uuid)| Gpu { id: *id, uuid: uuid.clone() }).collect();
        managed.sort_by_key(|gpu| gpu.id);
        managed.dedup_by_key(|gpu| gpu.id);
        let count = managed.len() as u64;
        directory.describe(managed)?;
        Ok(Init::Done(count))
    }

    fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError> {
        if self.mine.contains_key(&ticket.lease) {
            return self.touch(&ticket.lease, ticket.ttl, None);
        }
        if ticket.priority != 0 {
            return Err(LeaseError::NotLocalHost("priorities need a pool in Redis: --redis".to_owned()));
        }
        if !queue::is_name(&ticket.lease) {
            return Err(LeaseError::NotLocalHost(format!("{:?} is no name of a lease", ticket.lease)));
        }
        let directory = self.directory()?;
        let managed = directory.managed()?;
        if managed.gpus.is_empty() {
            return Ok(TicketStatus::Uninitialised);
        }
        let us = std::process::id();
        let asked = u64::try_from(queue::now().as_millis()).unwrap_or_default();
        let record = Record::of(ticket, asked, (us, process::start(us).ok().flatten().unwrap_or_default()));
        let fit = Wish::of(&record).fit(&managed) as u64;
        if ticket.want == 0 || u64::from(ticket.want) > fit {
            return Ok(TicketStatus::Impossible { managed: fit });
        }
        let gate = directory.enter();
        let waiter = Waiter::stand(&directory, record, ticket)?;
        self.mine.insert(ticket.lease.clone(), Mine::Waits(Box::new(waiter)));
        let status = self.step(&ticket.lease, &directory, Some(gate))?;
        if ticket.nonblock && matches!(status, TicketStatus::Waiting { .. }) {
            self.mine.remove(&ticket.lease);
            return Ok(TicketStatus::Busy);
        }
        Ok(status)
    }

    fn wait(
        &mut self,
        ticket: &Ticket,
        (_, until): (&LocalHost, Option<Instant>),
        told: &mut dyn FnMut(u64),
    ) -> Result<TicketStatus, LeaseError> {
        let mut status = self.request(ticket)?;
        while let TicketStatus::Waiting { before } = status {
            told(before);
            let left = until.map(queue::left);
            if left.is_some_and(|left| left.is_zero()) {
                self.mine.remove(&ticket.lease);
                break;
            }
            let at_most = left.unwrap_or(TICK).min(TICK);
            let rung = match self.mine.get_mut(&ticket.lease) {
                Some(Mine::Waits(waiter)) => waiter.rest(at_most),
                _ => false,
            };
            let hurried = if rung { self.hurry(&ticket.lease)? } else { None };
            status = hurried.map_or_else(|| self.touch(&ticket.lease, ticket.ttl, None), Ok)?;
        }
        Ok(status)
    }

    /// Whoever has just been served is written down, and leaves the queue, with his first word.
    fn touch(&mut self, lease: &str, _: Duration, token: Option<u64>) -> Result<TicketStatus, LeaseError> {
        if let Some(TicketStatus::Ended(how)) = self.settle(lease) {
            return Ok(TicketStatus::Ended(how));
        }
        match self.mine.get(lease) {
            Some(Mine::Holds(_, grant, _)) if token.is_some_and(|token| token != grant.token) => {
                Ok(TicketStatus::Ended("lost".to_owned()))
            }
            Some(Mine::Holds(_, grant, _)) => Ok(TicketStatus::Held(grant.clone())),
            _ => {
                let directory = self.directory()?;
                self.step(lease, &directory, None)
            }
        }
    }

    /// The kernel forgets no lock.
    fn reclaim(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError> {
        self.touch(&ticket.lease, ttl, Some(grant.token))
    }

    /// One of another process is given back by that process, which is asked to end; only one that does nothing but keep
    /// it can be asked.
    fn release(&mut self, lease: &str, token: Option<u64>, _: (i32, u32)) -> Result<Released, LeaseError> {
        if let Some(TicketStatus::Ended(how)) = self.settle(lease) {
            return Ok(Released::Already(how));
        }
        match self.mine.get(lease) {
            Some(Mine::Holds(_, grant, _)) if token.is_some_and(|token| token != grant.token) => {
                Ok(Released::Lost)
            }
            Some(_) => {
                self.mine.remove(lease);
                Ok(Released::Done)
            }
            None => keeper::release(&*self.directory()?, (lease, token), &self.local_host.pidns),
        }
    }

    fn gpus(&mut self) -> Result<Vec<(String, Option<String>)>, LeaseError> {
        let gpus = self.directory()?.managed()?.gpus;
        Ok(gpus.into_iter().map(|gpu| (gpu.id.to_string(), gpu.uuid)).collect())
    }

    fn audit(&mut self) -> Result<Audit, LeaseError> {
        list::audit(&*self.directory()?, &self.local_host)
    }

    /// What is new is written into the record; the process that will keep it is told as `keeper`.
    fn hand_on(
        &mut self,
        (lease, token): (&str, u64),
        _: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError> {
        self.settle(lease);
        let Some(Mine::Holds(files, grant, record)) = self.mine.get_mut(lease) else {
            return Ok(TicketStatus::Ended("unknown".to_owned()));
        };
        if grant.token != token {
            return Ok(TicketStatus::Ended("lost".to_owned()));
        }
        record.about.extend(about.iter().map(|(field, value)| ((*field).to_owned(), value.clone())));
        for file in files {
            record.write(file).map_err(|error| LeaseError::file(&self.path, &error))?;
        }
        Ok(TicketStatus::Held(grant.clone()))
    }

    /// The kernel has done it.
    fn reap_local_host(&mut self, _: &LocalHost, _: Duration) -> Result<usize, LeaseError> {
        self.directory()?.managed().map(|_| 0)
    }

    fn pass_on(&mut self, lease: &str) -> Result<Vec<RawFd>, LeaseError> {
        self.settle(lease);
        let Some(Mine::Holds(files, ..)) = self.mine.get_mut(lease) else { return Ok(Vec::new()) };
        for file in &mut *files {
            // Where so many descriptors are not allowed it keeps its number. The lock is that of both.
            if let Ok(high) = fcntl_dupfd_cloexec(&*file, ABOVE) {
                *file = high.into();
            }
            fcntl_setfd(&*file, FdFlags::empty())
                .map_err(|error| directory::lease_error(&self.path, error))?;
        }
        Ok(files.iter().map(AsRawFd::as_raw_fd).collect())
    }
}
