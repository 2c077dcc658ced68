//! What a pool can be asked, whoever keeps it: Redis ([`Pool`]), or the kernel of this machine ([`crate::Local`]).

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::audit::{Audit, Gpu};
use crate::holder::LocalHost;
use crate::{Grant, Init, LeaseError, Pool, Released, Ticket, TicketStatus};

/// A pool of GPUs that are handed out.
pub trait Leases: Send {
    /// Begins a pool of these GPUs, by number and, where known, UUID; `offset` is the local time's, in seconds.
    ///
    /// # Errors
    /// Where there is no answer.
    fn init(&mut self, gpus: &[(u32, Option<String>)], offset: i32, force: bool) -> Result<Init, LeaseError>;

    /// Asks for GPUs; asked again with the same ticket it asks for nothing more.
    ///
    /// # Errors
    /// Where there is no answer.
    fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError>;

    /// Asks, and waits until the GPUs are held, until then, or for ever; `told` hears how many are before it. Gives
    /// [`TicketStatus::Waiting`] where the time was up; the ticket is withdrawn then. Whoever is given something says so at
    /// once by [`Self::touch`]: those behind him may wait for that.
    ///
    /// # Errors
    /// Where it is refused.
    fn wait(
        &mut self,
        ticket: &Ticket,
        local_host: (&LocalHost, Option<Instant>),
        told: &mut dyn FnMut(u64),
    ) -> Result<TicketStatus, LeaseError>;

    /// Says that a ticket or a lease is still wanted.
    ///
    /// # Errors
    /// Where there is no answer.
    fn touch(&mut self, lease: &str, ttl: Duration, token: Option<u64>) -> Result<TicketStatus, LeaseError>;

    /// Asks for a lease that was forgotten.
    ///
    /// # Errors
    /// Where there is no answer.
    fn reclaim(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError>;

    /// Says that a lease is still wanted; one that was forgotten is asked back.
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
    fn renew(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError> {
        match self.touch(&ticket.lease, ttl, Some(grant.token))? {
            TicketStatus::Ended(how) if how == "unknown" => self.reclaim(ticket, grant, ttl),
            status => Ok(status),
        }
    }

    /// Ends a lease, or withdraws a ticket; `by` is the local time's offset and the pid of who says so.
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
    fn release(&mut self, lease: &str, token: Option<u64>, by: (i32, u32)) -> Result<Released, LeaseError>;

    /// Hands a lease on to the process that it is for, or to nobody: what is new of its holder is told in `about`.
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
    fn hand_on(
        &mut self,
        lease: (&str, u64),
        ttl: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError>;

    /// The GPUs that are handed out, and their UUIDs where those are known.
    ///
    /// # Errors
    /// Where there is no answer.
    fn gpus(&mut self) -> Result<Vec<(String, Option<String>)>, LeaseError>;

    /// Those of them that nobody holds just now.
    ///
    /// # Errors
    /// Where there is no answer.
    fn idle(&mut self) -> Result<Vec<Gpu>, LeaseError> {
        let mut gpus = self.audit()?.gpus;
        gpus.retain(|gpu| gpu.idle > 0);
        Ok(gpus)
    }

    /// Everything, at one moment.
    ///
    /// # Errors
    /// Where there is no answer.
    fn audit(&mut self) -> Result<Audit, LeaseError>;

    /// Frees what the dead of this host held, and tells how much that was.
    ///
    /// # Errors
    /// Where there is no answer.
    fn reap_local_host(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<usize, LeaseError>;

    /// From now on whoever is started by this process keeps the lease as long as he lives. Gives the descriptors that do
    /// that; none where the lease is kept elsewhere.
    ///
    /// # Errors
    /// Where the system refuses.
    fn pass_on(&mut self, lease: &str) -> Result<Vec<RawFd>, LeaseError>;
}

impl Leases for Pool {
    fn init(&mut self, gpus: &[(u32, Option<String>)], offset: i32, force: bool) -> Result<Init, LeaseError> {
        self.init(gpus, offset, force)
    }

    fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError> {
        self.request(ticket)
    }

    fn wait(
        &mut self,
        ticket: &Ticket,
        local_host: (&LocalHost, Option<Instant>),
        told: &mut dyn FnMut(u64),
    ) -> Result<TicketStatus, LeaseError> {
        self.wait(ticket, local_host, told)
    }

    fn touch(&mut self, lease: &str, ttl: Duration, token: Option<u64>) -> Result<TicketStatus, LeaseError> {
        self.touch(lease, ttl, token)
    }

    fn reclaim(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError> {
        self.reclaim(ticket, grant, ttl)
    }

    fn release(&mut self, lease: &str, token: Option<u64>, by: (i32, u32)) -> Result<Released, LeaseError> {
        self.release(lease, token, by)
    }

    fn hand_on(
        &mut self,
        lease: (&str, u64),
        ttl: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError> {
        self.transfer(lease, ttl, about)
    }

    fn gpus(&mut self) -> Result<Vec<(String, Option<String>)>, LeaseError> {
        Ok(self.gpus()?.into_iter().map(|gpu| (gpu.id, gpu.uuid)).collect())
    }

    fn idle(&mut self) -> Result<Vec<Gpu>, LeaseError> {
        let mut gpus = self.gpus()?;
        gpus.retain(|gpu| gpu.idle > 0);
        Ok(gpus)
    }

    fn audit(&mut self) -> Result<Audit, LeaseError> {
        self.audit()
    }

    fn reap_local_host(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<usize, LeaseError> {
        self.reap_local_host(local_host, ttl)
    }

    /// Redis knows holders by their identity, and whom they started by the lease's name in their environment.
    fn pass_on(&mut self, _: &str) -> Result<Vec<RawFd>, LeaseError> {
        Ok(Vec::new())
    }
}
