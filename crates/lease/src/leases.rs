//! The operations of a pool, in Redis ([`crate::Pool`]) or on this machine ([`crate::Local`]).

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::audit::{Audit, Gpu};
use crate::holder::LocalHost;
use crate::pool::{Grant, Init, Pool, Released, Ticket, TicketStatus, numbers_and_uuids, status};
use crate::{LeaseError, Op};

/// A pool of GPUs that can be leased.
pub trait Leases: Send {
    /// Creates a pool of these GPUs, given by number and, if known, UUID. `offset` is local time minus UTC, in
    /// seconds.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn init(&mut self, gpus: &[(u32, Option<String>)], offset: i32, force: bool) -> Result<Init, LeaseError>;

    /// Requests GPUs. Repeating the call with the same ticket does not request more GPUs.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError>;

    /// Requests GPUs and waits until they are granted, until the deadline, or indefinitely. `on_position` receives the
    /// number of tickets ahead. Returns [`TicketStatus::Waiting`] if the deadline passed; the ticket is then
    /// withdrawn. The caller must acknowledge a grant at once with [`Self::touch`], because the next waiters may
    /// not be served before that.
    ///
    /// # Errors
    /// If the request is refused.
    fn wait(
        &mut self,
        ticket: &Ticket,
        local_host: (&LocalHost, Option<Instant>),
        on_position: &mut dyn FnMut(u64),
    ) -> Result<TicketStatus, LeaseError>;

    /// Renews a ticket or a lease.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn touch(&mut self, lease: &str, ttl: Duration, token: Option<u64>) -> Result<TicketStatus, LeaseError>;

    /// Restores a lease that the pool has lost.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn reclaim(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError>;

    /// Renews a lease, or restores it if the pool has lost it.
    ///
    /// # Errors
    /// If the pool does not respond. The call can be repeated.
    fn renew(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError> {
        match self.touch(&ticket.lease, ttl, Some(grant.token))? {
            TicketStatus::Ended(how) if how == "unknown" => self.reclaim(ticket, grant, ttl),
            status => Ok(status),
        }
    }

    /// Ends a lease, or withdraws a ticket. `by` is the caller's UTC offset and pid, for the log.
    ///
    /// # Errors
    /// If the pool does not respond. The call can be repeated.
    fn release(&mut self, lease: &str, token: Option<u64>, by: (i32, u32)) -> Result<Released, LeaseError>;

    /// Ends the lease of one GPU. In the machine's own pool, no other GPU is considered, because users can write the name
    /// of any lease into their own records.
    ///
    /// # Errors
    /// If the pool does not respond. The call can be repeated.
    fn release_gpu(
        &mut self,
        _gpu: &str,
        (lease, token): (&str, Option<u64>),
        by: (i32, u32),
    ) -> Result<Released, LeaseError> {
        self.release(lease, token, by)
    }

    /// Transfers a lease to the process for which it was taken, or to no process. `about` contains the new holder's
    /// fields.
    ///
    /// # Errors
    /// If the pool does not respond. The call can be repeated.
    fn transfer(
        &mut self,
        lease: (&str, u64),
        ttl: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError>;

    /// Returns the GPUs in the pool, and their UUIDs if known.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn gpus(&mut self) -> Result<Vec<(String, Option<String>)>, LeaseError>;

    /// The GPUs that are idle.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn idle(&mut self) -> Result<Vec<Gpu>, LeaseError>;

    /// The whole state of the pool at one moment.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn audit(&mut self) -> Result<Audit, LeaseError>;

    /// Frees the GPUs of holders on this host that have exited. Returns how many leases ended.
    ///
    /// # Errors
    /// If the pool does not respond.
    fn reap_local_host(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<usize, LeaseError>;

    /// Whether grants can be paused, which an audit shows, because the pool is on a server that was restarted.
    fn pauses_grants(&self) -> bool {
        false
    }

    /// Whether the time limit of a lease can be extended. Otherwise, the limit in an audit only informs, because other
    /// users may have written it.
    fn extends_leases(&self) -> bool {
        false
    }

    /// Lets every process that this process starts from now on share the lease while it is running. Returns the file
    /// descriptors to inherit. The list is empty if the lease is not based on descriptors.
    ///
    /// # Errors
    /// If the system call fails.
    fn make_inheritable(&mut self, lease: &str) -> Result<Vec<RawFd>, LeaseError>;
}

impl Leases for Pool {
    fn init(&mut self, gpus: &[(u32, Option<String>)], offset: i32, force: bool) -> Result<Init, LeaseError> {
        let mut arguments = vec![offset.to_string(), u8::from(force).to_string()];
        arguments.extend(numbers_and_uuids(gpus));
        Init::of(self.call(Op::Init, &arguments)?)
    }

    fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError> {
        let mut arguments = vec![
            ticket.lease.clone(),
            ticket.want.to_string(),
            ticket.priority.to_string(),
            ticket.ttl.as_millis().to_string(),
            u8::from(ticket.nonblock).to_string(),
        ];
        arguments.extend(fields(&ticket.about));
        let answer = self.call(Op::Enqueue, &arguments)?;
        self.ticket_status(answer)
    }

    fn wait(
        &mut self,
        ticket: &Ticket,
        local_host: (&LocalHost, Option<Instant>),
        on_position: &mut dyn FnMut(u64),
    ) -> Result<TicketStatus, LeaseError> {
        self.wait(ticket, local_host, on_position)
    }

    fn touch(&mut self, lease: &str, ttl: Duration, token: Option<u64>) -> Result<TicketStatus, LeaseError> {
        let token = token.map(|token| token.to_string()).unwrap_or_default();
        let answer = self.call(Op::Touch, &[lease.to_owned(), ttl.as_millis().to_string(), token])?;
        self.ticket_status(answer)
    }

    fn reclaim(&mut self, ticket: &Ticket, grant: &Grant, ttl: Duration) -> Result<TicketStatus, LeaseError> {
        let gpus: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
        let mut arguments =
            vec![ticket.lease.clone(), grant.token.to_string(), gpus.join(","), ttl.as_millis().to_string()];
        arguments.extend(fields(&ticket.about));
        status(self.call(Op::Reclaim, &arguments)?)
    }

    fn release(
        &mut self,
        lease: &str,
        token: Option<u64>,
        (offset, pid): (i32, u32),
    ) -> Result<Released, LeaseError> {
        let token = token.map(|token| token.to_string()).unwrap_or_default();
        let arguments = [lease.to_owned(), token, offset.to_string(), pid.to_string()];
        let how: String = self.call(Op::Release, &arguments)?;
        Ok(match how.as_str() {
            "released" | "cancelled" => Released::Done,
            "lost" => Released::Lost,
            "unknown" => Released::Unknown,
            _ => match how.strip_prefix("was ") {
                Some(state) => Released::Already(state.to_owned()),
                None => return Err(LeaseError::unexpected(how)),
            },
        })
    }

    fn transfer(
        &mut self,
        (lease, token): (&str, u64),
        ttl: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError> {
        let mut arguments = vec![lease.to_owned(), token.to_string(), ttl.as_millis().to_string()];
        arguments.extend(fields(about));
        status(self.call(Op::Transfer, &arguments)?)
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
        self.read(&[])
    }

    fn reap_local_host(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<usize, LeaseError> {
        self.reap_local_host(local_host, ttl)
    }

    fn pauses_grants(&self) -> bool {
        true
    }

    fn extends_leases(&self) -> bool {
        true
    }

    /// Redis identifies holders by pid and start time, and their children by the lease's name in the environment.
    fn make_inheritable(&mut self, _: &str) -> Result<Vec<RawFd>, LeaseError> {
        Ok(Vec::new())
    }
}

fn fields(about: &[(&'static str, String)]) -> impl Iterator<Item = String> {
    about.iter().flat_map(|(field, value)| [(*field).to_owned(), value.clone()])
}
