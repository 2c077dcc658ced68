//! A pool on one machine, without a server. A process holds a GPU by a kernel lock (`flock`) on the GPU's file. The
//! kernel releases the lock at once when the last process with the descriptor exits, for whatever reason. Therefore,
//! leases are not renewed and do not expire, and no decision depends on a pid.
//!
//! ```text
//! /run/bailiff/lease/        0755, belongs to the pool's owner
//!     pool                   0644  the list of GPUs
//!     gate                   0644  locked by one client at a time
//!     gpu/0, gpu/1, …        0644  locked by the holder of the GPU
//!     record/0, record/1, …  0666  a record about the holder, which only informs others
//!     queue/                 1777
//!         NUMBER-LEASE       0644  a ticket, owned and locked by its waiter
//! ```
//!
//! Users cannot write to the files that are locked, because they could mount a file system over such a file
//! (`fusermount3`), and keep all others from opening it. Files that users can write to are not opened across a mount.
//!
//! All files except tickets are created by `init` and later opened without `O_CREAT`, so that `fs.protected_regular`
//! does not interfere. If other users cannot enter the directory, its group gets their permissions. `queue/` is
//! sticky, and each ticket belongs to its waiter. A ticket is created without a name (`O_TMPFILE`), locked, and then
//! linked. An unlocked ticket therefore means that its waiter has exited. Such a ticket is skipped, and it is removed
//! when its owner or root reads it next.
//!
//! Only the first waiter in the queue tries to lock GPUs. Each other waiter waits for the lock on the ticket ahead of
//! its own, so that the exit of one waiter wakes one other waiter. A waiter that was stopped is skipped, and gets its
//! position back when it continues. The gate lock only keeps order. The lock on a GPU's file alone prevents the GPU
//! from being granted twice.
//!
//! Other users can lock the file of an idle GPU or the gate without a ticket, create tickets with low numbers, or write
//! invalid records. None of these actions takes a GPU from its holder or affects fencing tokens, and audits show the
//! processes that have a lock.

mod directory;
mod list;
mod lock_holder;
mod path;
mod processes;
mod queue;
mod record;
mod stalled;
mod take;
mod token;
mod waiter;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bailiff_proc::clock::Deadline;
use bailiff_proc::start;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use crate::audit::{Audit, Gpu};
use crate::holder::LocalHost;
use crate::{Grant, Init, LeaseError, Leases, Released, Ticket, TicketStatus};
use directory::{Directory, Gate, ManagedGpu};
use record::Record;
use take::GpuSelection;
use token::TokenClock;
use waiter::{Step, Waiter};

/// Lowest number of inherited descriptors, above those that shells and programs use themselves.
const FIRST_INHERITED_FD: i32 = 100;
/// How often a waiter checks its state even if there is no event.
const TICK: Duration = Duration::from_secs(1);

/// A pool on one machine.
#[derive(Debug)]
pub struct Local {
    /// Tickets and leases of this process. This field is declared first, so that it is dropped first and its locks are
    /// released early.
    entries: BTreeMap<String, OwnEntry>,
    path: PathBuf,
    directory: Option<Arc<Directory>>,
    host: LocalHost,
}

/// A ticket or a lease of this process.
#[derive(Debug)]
enum OwnEntry {
    Waiting(Box<Waiter>),
    /// The files are dropped first.
    Held(Vec<File>, Grant, Record),
}

impl Local {
    /// The pool in a directory, which is opened at the first operation.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), directory: None, entries: BTreeMap::new(), host: LocalHost::read() }
    }

    fn directory(&mut self) -> Result<Arc<Directory>, LeaseError> {
        if let Some(directory) = &self.directory {
            return Ok(Arc::clone(directory));
        }
        let directory = Arc::new(Directory::open(&self.path)?);
        self.directory = Some(Arc::clone(&directory));
        Ok(directory)
    }

    /// Waits for a change. Returns whether this ticket is first, so that only the GPUs must be tried.
    fn wait_for_change(&mut self, lease: &str, at_most: Duration) -> bool {
        match self.entries.get_mut(lease) {
            Some(OwnEntry::Waiting(waiter)) => waiter.wait_for_change(at_most),
            _ => false,
        }
    }

    /// Tries the GPUs without reading the queue again.
    fn try_released(&mut self, lease: &str) -> Result<Option<TicketStatus>, LeaseError> {
        let directory = self.directory()?;
        let Some(OwnEntry::Waiting(waiter)) = self.entries.get_mut(lease) else { return Ok(None) };
        let gate = directory.enter();
        let step = waiter.try_released(&directory);
        // The next waiter finds the gate unlocked.
        drop(gate);
        Ok(step.map(|step| self.apply(lease, step)))
    }

    /// Applies the result of a step.
    fn apply(&mut self, lease: &str, step: Step) -> TicketStatus {
        match step {
            Step::Granted(grant) => TicketStatus::Held(grant),
            Step::Waiting(before) => TicketStatus::Waiting { before },
            Step::Ended(how) => {
                self.entries.remove(lease);
                TicketStatus::Ended(how.to_owned())
            }
        }
    }

    /// Completes a grant: writes the records and leaves the queue. Returns the status after that, or `None` if there
    /// was nothing to complete.
    fn complete_grant(&mut self, lease: &str) -> Option<TicketStatus> {
        let directory = self.directory().ok()?;
        let OwnEntry::Waiting(waiter) = self.entries.get_mut(lease)? else { return None };
        let (grant, taken) = waiter.take_pending()?;
        let completed = waiter.complete_grant(&directory, (&grant, taken));
        if let Some(OwnEntry::Waiting(waiter)) = self.entries.remove(lease) {
            waiter.finish();
        }
        let Some((files, record)) = completed else {
            return Some(TicketStatus::Ended("cancelled".to_owned()));
        };
        self.entries.insert(lease.to_owned(), OwnEntry::Held(files, grant.clone(), record));
        Some(TicketStatus::Held(grant))
    }

    /// Updates the position in the queue and, if the ticket is first, tries the GPUs. Takes the gate lock unless it is
    /// passed in.
    fn step(
        &mut self,
        lease: &str,
        directory: &Directory,
        gate: Option<Gate<'_>>,
    ) -> Result<TicketStatus, LeaseError> {
        let Some(OwnEntry::Waiting(waiter)) = self.entries.get_mut(lease) else {
            return Ok(TicketStatus::Ended("unknown".to_owned()));
        };
        if let Some(step) = waiter.update_position(directory)? {
            return Ok(self.apply(lease, step));
        }
        let _gate = gate.unwrap_or_else(|| directory.enter());
        let step = waiter.try_gpus(directory);
        let status = self.apply(lease, step);
        Ok(self.complete_grant(lease).unwrap_or(status))
    }
}

impl Leases for Local {
    fn init(&mut self, gpus: &[(u32, Option<String>)], _: i32, force: bool) -> Result<Init, LeaseError> {
        let directory = Directory::make(&self.path)?;
        let gate = directory.enter();
        if !gate.alone {
            return Err(directory.gate_error());
        }
        let mut managed: Vec<ManagedGpu> =
            gpus.iter().map(|(id, uuid)| ManagedGpu { id: *id, uuid: uuid.clone() }).collect();
        managed.sort_by_key(|gpu| gpu.id);
        managed.dedup_by_key(|gpu| gpu.id);
        let mut replaced: BTreeSet<u32> = managed.iter().map(|gpu| gpu.id).collect();
        let mut tokens = TokenClock::default();
        match directory.managed() {
            Ok(old) if !force => {
                // A pool of an older version has no records of their own, and other modes.
                directory.make_gpu_files(&old.gpus, false)?;
                return Ok(Init::Already(old.gpus.len() as u64));
            }
            Ok(old) => {
                replaced.extend(old.gpus.iter().map(|gpu| gpu.id));
                tokens = old.tokens;
            }
            Err(LeaseError::Absent(_)) => {}
            Err(_) if force => {}
            Err(error) => return Err(error),
        }
        let count = managed.len() as u64;
        let locked = match directory.lock_gpus(replaced.iter().filter(|_| force)) {
            Ok(locked) => locked,
            Err(held) => return Ok(Init::Held(held)),
        };
        directory.write_pool((managed, TokenClock::replacing(tokens)), force)?;
        drop(locked);
        Ok(Init::Done(count))
    }

    fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError> {
        if self.entries.contains_key(&ticket.lease) {
            return self.touch(&ticket.lease, ticket.ttl, None);
        }
        if ticket.priority != 0 {
            return Err(LeaseError::NotLocalHost("priorities require a pool in Redis (--redis)".to_owned()));
        }
        if !queue::is_name(&ticket.lease) {
            return Err(LeaseError::NotLocalHost(format!("{:?} is not a valid lease name", ticket.lease)));
        }
        let directory = self.directory()?;
        let managed = directory.managed()?;
        if managed.gpus.is_empty() {
            return Ok(TicketStatus::Uninitialised);
        }
        let own_pid = std::process::id();
        let requested = u64::try_from(queue::now().as_millis()).unwrap_or_default();
        let own_process = (own_pid, start(own_pid).ok().flatten().unwrap_or_default());
        let record = Record::of(ticket, requested, own_process);
        let usable = GpuSelection::of(&record).count(&managed) as u64;
        if ticket.want == 0 || u64::from(ticket.want) > usable {
            return Ok(TicketStatus::Impossible { managed: usable });
        }
        let gate = directory.enter();
        let waiter = Waiter::enqueue(&directory, record, ticket)?;
        self.entries.insert(ticket.lease.clone(), OwnEntry::Waiting(Box::new(waiter)));
        let status = self.step(&ticket.lease, &directory, Some(gate))?;
        if ticket.nonblock && matches!(status, TicketStatus::Waiting { .. }) {
            self.entries.remove(&ticket.lease);
            return Ok(TicketStatus::Busy);
        }
        Ok(status)
    }

    fn wait(
        &mut self,
        ticket: &Ticket,
        (_, until): (&LocalHost, Option<Instant>),
        on_position: &mut dyn FnMut(u64),
    ) -> Result<TicketStatus, LeaseError> {
        let mut status = self.request(ticket)?;
        let mut next_read = Deadline::after(TICK);
        while let TicketStatus::Waiting { before } = status {
            on_position(before);
            let left = until.map(queue::left);
            if left.is_some_and(|left| left.is_zero()) {
                self.entries.remove(&ticket.lease);
                break;
            }
            let at_most = next_read.left().min(left.unwrap_or(TICK));
            let is_first = self.wait_for_change(&ticket.lease, at_most);
            // Any user can cause events of GPUs, and make the queue long.
            status = if is_first && !next_read.passed() {
                self.try_released(&ticket.lease)?.unwrap_or(status)
            } else {
                next_read = Deadline::after(TICK);
                self.touch(&ticket.lease, ticket.ttl, None)?
            };
        }
        Ok(status)
    }

    /// The first call after a grant also writes the records and leaves the queue.
    fn touch(&mut self, lease: &str, _: Duration, token: Option<u64>) -> Result<TicketStatus, LeaseError> {
        if let Some(TicketStatus::Ended(how)) = self.complete_grant(lease) {
            return Ok(TicketStatus::Ended(how));
        }
        match self.entries.get(lease) {
            Some(OwnEntry::Held(_, grant, _)) if token.is_some_and(|token| token != grant.token) => {
                Ok(TicketStatus::Ended("lost".to_owned()))
            }
            Some(OwnEntry::Held(_, grant, _)) => Ok(TicketStatus::Held(grant.clone())),
            _ => {
                let directory = self.directory()?;
                self.step(lease, &directory, None)
            }
        }
    }

    /// Locks in the kernel are never lost, so this call only renews the lease.
    fn reclaim(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError> {
        self.touch(&ticket.lease, ttl, Some(grant.token))
    }

    /// A lease that another process holds is released by terminating that process, if it does nothing else.
    fn release(&mut self, lease: &str, token: Option<u64>, _: (i32, u32)) -> Result<Released, LeaseError> {
        if let Some(TicketStatus::Ended(how)) = self.complete_grant(lease) {
            return Ok(Released::Already(how));
        }
        match self.entries.get(lease) {
            Some(OwnEntry::Held(_, grant, _)) if token.is_some_and(|token| token != grant.token) => {
                Ok(Released::Lost)
            }
            Some(_) => {
                self.entries.remove(lease);
                Ok(Released::Done)
            }
            None => lock_holder::release(&*self.directory()?, (lease, token, None), &self.host),
        }
    }

    fn release_gpu(
        &mut self,
        gpu: &str,
        (lease, token): (&str, Option<u64>),
        by: (i32, u32),
    ) -> Result<Released, LeaseError> {
        if self.entries.contains_key(lease) {
            return self.release(lease, token, by);
        }
        lock_holder::release(&*self.directory()?, (lease, token, Some(gpu)), &self.host)
    }

    fn gpus(&mut self) -> Result<Vec<(String, Option<String>)>, LeaseError> {
        let gpus = self.directory()?.managed()?.gpus;
        Ok(gpus.into_iter().map(|gpu| (gpu.id.to_string(), gpu.uuid)).collect())
    }

    fn idle(&mut self) -> Result<Vec<Gpu>, LeaseError> {
        list::idle(&*self.directory()?)
    }

    fn audit(&mut self) -> Result<Audit, LeaseError> {
        list::audit(&*self.directory()?, &self.host)
    }

    /// Writes the fields in `about` into the record. The field `lock_holder` is the pid of the process that will
    /// hold the lock.
    fn transfer(
        &mut self,
        (lease, token): (&str, u64),
        _: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError> {
        self.complete_grant(lease);
        let Some(OwnEntry::Held(_, grant, record)) = self.entries.get_mut(lease) else {
            return Ok(TicketStatus::Ended("unknown".to_owned()));
        };
        if grant.token != token {
            return Ok(TicketStatus::Ended("lost".to_owned()));
        }
        record.about.extend(about.iter().map(|(field, value)| ((*field).to_owned(), value.clone())));
        let (record, grant) = (record.clone(), grant.clone());
        let directory = self.directory()?;
        grant.gpus.iter().for_each(|gpu| record.write_for_gpu(&directory, *gpu));
        Ok(TicketStatus::Held(grant))
    }

    /// The kernel has already released the locks of exited processes, so no leases need to be ended.
    fn reap_local_host(&mut self, _: &LocalHost, _: Duration) -> Result<usize, LeaseError> {
        self.directory()?.managed().map(|_| 0)
    }

    fn make_inheritable(&mut self, lease: &str) -> Result<Vec<RawFd>, LeaseError> {
        self.complete_grant(lease);
        let Some(OwnEntry::Held(files, ..)) = self.entries.get_mut(lease) else { return Ok(Vec::new()) };
        for file in &mut *files {
            // If the descriptor limit is too low, the descriptor keeps its number. Both descriptors share the lock.
            if let Ok(high) = fcntl_dupfd_cloexec(&*file, FIRST_INHERITED_FD) {
                *file = high.into();
            }
            fcntl_setfd(&*file, FdFlags::empty())
                .map_err(|error| directory::lease_error(&self.path, error))?;
        }
        Ok(files.iter().map(AsRawFd::as_raw_fd).collect())
    }
}
