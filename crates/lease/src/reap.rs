//! Ends leases that the holder has not released. This is done by any client that finds an exited holder, and by the
//! node's agent.

use std::net::IpAddr;
use std::time::Duration;

use redis::ConnectionAddr;

use crate::audit::{Agent, Audit, Lease};
use crate::error::excerpt;
use crate::holder::{Life, LocalHost, are_one_machine};
use crate::{LeaseError, Leases as _, Op, Pool};

/// Longest time from fork to exec. A command that was being started when its runner was killed has the lease's name in
/// its environment only after that time.
pub const EXEC_DELAY: Duration = Duration::from_millis(100);

/// Why a lease is ended by a process other than its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End<'a> {
    /// This holder has exited. The lease is kept if it has been transferred since. An empty pid matches every holder.
    Dead {
        /// The holder's pid.
        pid: &'a str,
        /// The holder's start time.
        start: &'a str,
        /// Whether the lease was taken under GPU.py's rules and has been acknowledged. That decides which processes
        /// count as holders.
        known: bool,
    },
    /// The lease was not renewed in time.
    Late,
    /// A rule revokes the lease with this token.
    Revoked {
        /// The token that the rule evaluated.
        token: u64,
        /// The caller's pid, for GPU.py's log.
        pid: u32,
    },
}

/// The result of ending a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The lease has ended now.
    Done,
    /// The lease was renewed or transferred meanwhile, and is kept.
    Kept,
    /// The lease has another token.
    Lost,
    /// The lease had already ended, or is not in Redis (`unknown`).
    Already(String),
}

/// The result of returning a GPU to the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReturnOutcome {
    /// The GPU is given to the next ticket.
    Freed,
    /// The GPU was not returned, because its state has changed: `changed`, `held`, `placed`, `unmanaged`.
    Not(String),
}

impl<'a> End<'a> {
    /// The recorded holder of this lease has exited.
    pub fn dead(lease: &'a Lease) -> Self {
        let about = |field| lease.get(field).unwrap_or_default();
        Self::Dead { pid: about("pid"), start: about("start"), known: lease.get("known").is_some() }
    }
}

impl ReturnOutcome {
    fn of(answer: String) -> Self {
        if answer == "freed" { Self::Freed } else { Self::Not(excerpt(answer)) }
    }
}

impl Pool {
    /// Whether the server is on this host.
    pub fn is_local(&self) -> bool {
        match self.server.addr() {
            ConnectionAddr::Unix(_) => true,
            ConnectionAddr::Tcp(host, _) => {
                host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
            }
            _ => false,
        }
    }

    /// Ends a lease or a ticket. Its GPUs that are listed in `busy` are quarantined until [`Self::clear`].
    ///
    /// # Errors
    /// If Redis does not respond. The call can be repeated.
    pub fn end(&mut self, lease: &str, end: End<'_>, busy: &[String]) -> Result<Ended, LeaseError> {
        let none = String::new;
        let (why, token, pid, start) = match end {
            End::Dead { pid, start, known: false } => ("dead", none(), pid.to_owned(), start.to_owned()),
            End::Dead { pid, start, known: true } => ("known_dead", none(), pid.to_owned(), start.to_owned()),
            End::Late => ("late", none(), none(), none()),
            End::Revoked { token, pid } => ("revoked", token.to_string(), pid.to_string(), none()),
        };
        let mut arguments = vec![lease.to_owned(), why.to_owned(), token, pid, start];
        arguments.extend_from_slice(busy);
        let answer: String = self.call(Op::Kill, &arguments)?;
        Ok(match answer.as_str() {
            "reaped" | "revoked" => Ended::Done,
            "waiting" | "held" => Ended::Kept,
            "lost" => Ended::Lost,
            _ => Ended::Already(excerpt(answer.strip_prefix("was ").unwrap_or(&answer).to_owned())),
        })
    }

    /// Ends the quarantine of a GPU, if its reason is still `why`, as in [`crate::audit::Gpu::quarantine`].
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn clear(&mut self, gpu: &str, why: &str) -> Result<ReturnOutcome, LeaseError> {
        self.call(Op::Clear, &[gpu.to_owned(), why.to_owned()]).map(ReturnOutcome::of)
    }

    /// Returns a GPU to the pool, if no lease holds the GPU. It must be quarantined or not in any list, and must
    /// have this GPU.py record (pid and time) or no record.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn resolve(
        &mut self,
        gpu: &str,
        record: Option<(&str, &str)>,
        offset: i32,
    ) -> Result<ReturnOutcome, LeaseError> {
        let mut arguments = vec![gpu.to_owned(), String::new(), offset.to_string()];
        if let Some((pid, time)) = record {
            pid.clone_into(&mut arguments[1]);
            arguments.push(time.to_owned());
        }
        self.call(Op::Resolve, &arguments).map(ReturnOutcome::of)
    }

    /// Registers this node's agent for `ttl`; zero removes it. While the agent is registered, it alone ends leases on
    /// its node.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn register_agent(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<(), LeaseError> {
        let about = [
            local_host.host.clone(),
            local_host.boot.clone(),
            local_host.pidns.clone(),
            ttl.as_millis().to_string(),
        ];
        self.call::<String>(Op::Agent, &about).map(drop)
    }

    /// Frees the leases of exited holders on this host, and leases of other hosts that were not renewed in time.
    /// Renews the leases of running holders on this host that did not renew them. Returns how many leases were freed.
    /// Expiry alone does not free a lease of this host's current boot or of a node with an agent. If an agent is
    /// registered on this node, the agent does this instead.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn reap_local_host(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<usize, LeaseError> {
        let audit = self.audit()?;
        let mut freed = 0;
        let dead = audit.dead(local_host);
        if !dead.is_empty() {
            std::thread::park_timeout(EXEC_DELAY);
        }
        for lease in dead.into_iter().filter(|lease| local_host.life(lease) == Life::Dead) {
            freed += usize::from(self.end(&lease.lease, End::dead(lease), &[])? == Ended::Done);
        }
        for lease in audit.late() {
            let life = local_host.life(lease);
            if life == Life::Alive && lease.is_acknowledged() {
                self.touch(&lease.lease, ttl, None)?;
            } else if audit.late_why(local_host, (lease, life)).is_some() {
                freed += usize::from(self.end(&lease.lease, End::Late, &[])? == Ended::Done);
            }
        }
        Ok(freed)
    }
}

impl Agent {
    /// The agent of this PID namespace.
    pub fn of(local_host: &LocalHost) -> Self {
        Self { host: local_host.host.clone(), boot: local_host.boot.clone(), pidns: local_host.pidns.clone() }
    }

    fn is_at(&self, (host, boot, pidns): (Option<&str>, Option<&str>, Option<&str>)) -> bool {
        let same = |field, own: &str| !own.is_empty() && field == Some(own);
        same(boot, &self.boot)
            && same(pidns, &self.pidns)
            && are_one_machine((Some(&self.host), Some(&self.boot)), (host, boot))
    }
}

impl Audit {
    /// Leases and tickets that were not renewed in time.
    pub fn late(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().filter(|lease| self.is_late(lease))
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
    pub(crate) fn is_late(&self, lease: &Lease) -> bool {
        lease.expires < self.now as f64
    }

    /// Returns the leases that [`Pool::reap_local_host`] would free, with the reasons.
    pub fn to_reap(&self, local_host: &LocalHost) -> Vec<(&Lease, &'static str)> {
        let dead = self.dead(local_host).into_iter().map(|lease| (lease, "the holder has exited"));
        let late = self
            .late()
            .filter_map(|lease| Some((lease, self.late_why(local_host, (lease, local_host.life(lease)))?)));
        dead.chain(late).collect()
    }

    /// Returns the leases of exited holders on this host. If an agent is registered, returns none, because the agent
    /// reaps them.
    fn dead(&self, local_host: &LocalHost) -> Vec<&Lease> {
        let leases = if self.has_agent_at(local_host) { &[] } else { self.leases.as_slice() };
        leases.iter().filter(|lease| local_host.life(lease) == Life::Dead).collect()
    }

    /// Returns why any client can free this late lease, or `None` if that is not permitted.
    fn late_why(&self, local_host: &LocalHost, (lease, life): (&Lease, Life)) -> Option<&'static str> {
        // The agent on this machine sees the processes on its GPUs, regardless of the boot and namespace in which the
        // leases were taken.
        let is_of_our_agent = || self.has_agent_on(local_host);
        match life {
            Life::Elsewhere if self.has_agent(lease) => None,
            Life::Elsewhere
                if local_host.is_machine(lease.get("host"), lease.get("boot")) && is_of_our_agent() =>
            {
                None
            }
            Life::Elsewhere => Some("the lease was not renewed in time"),
            Life::Timed => (!is_of_our_agent()).then_some("the lease has expired"),
            // A holder that does not acknowledge its grant, for example because it was stopped, loses the grant to the
            // next ticket.
            Life::Alive if lease.state == "held" && !lease.is_acknowledged() => {
                Some("the holder did not acknowledge the lease")
            }
            Life::Alive | Life::Dead | Life::Unknown => None,
        }
    }

    /// Whether an agent can check the lease's holder. If so, its decision counts instead of the expiry.
    pub fn has_agent(&self, lease: &Lease) -> bool {
        self.agents
            .iter()
            .any(|agent| agent.is_at((lease.get("host"), lease.get("boot"), lease.get("pidns"))))
    }

    /// Whether an agent is running on this machine, under any host name.
    fn has_agent_on(&self, local_host: &LocalHost) -> bool {
        self.agents.iter().any(|agent| local_host.is_machine(Some(&agent.host), Some(&agent.boot)))
    }

    /// Whether an agent serves the PID namespace of this process, under any host name.
    pub fn has_agent_at(&self, local_host: &LocalHost) -> bool {
        let place =
            (Some(local_host.host.as_str()), Some(local_host.boot.as_str()), Some(local_host.pidns.as_str()));
        self.agents.iter().any(|agent| agent.is_at(place))
    }
}
