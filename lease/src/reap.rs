//! Ends of leases that their holders do not tell of: by whoever meets the dead, and by the agent of a node, who knows more.

use std::net::IpAddr;
use std::time::Duration;

use redis::ConnectionAddr;

use crate::audit::{Agent, Audit, Lease};
use crate::holder::{Life, LocalHost, are_one_machine};
use crate::{LeaseError, Op, Pool};

/// From a fork to the exec after it takes less: a command that was being started when its runner died bears the lease's
/// name a moment later.
pub const START: Duration = Duration::from_millis(100);

/// Why somebody else than its holder ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End<'a> {
    /// Its holder is dead: this one, as it may be handed on to another; whoever it is, where no pid is given.
    Dead {
        /// His pid.
        pid: &'a str,
        /// When he started.
        start: &'a str,
        /// Whoever took it by GPU.py's rules had said that he knows of it, which decides whose life counts.
        known: bool,
    },
    /// It was not renewed in time.
    Late,
    /// A rule wants it, of the lease with this token.
    Revoked {
        /// The token that was judged.
        token: u64,
        /// Who says so, for GPU.py's log.
        pid: u32,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It has ended now.
    Done,
    /// It was renewed meanwhile, or handed on.
    Kept,
    /// It has another token by now.
    Lost,
    /// It had ended before, or Redis knows nothing of it (`unknown`).
    Already(String),
}

/// What came of putting a GPU back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Back {
    /// It goes to the next.
    Freed,
    /// Not as it was when that was found out: `changed`, `held`, `placed`, `unmanaged`.
    Not(String),
}

impl<'a> End<'a> {
    /// Whoever is said to hold this lease is dead.
    #[must_use]
    pub fn dead(lease: &'a Lease) -> Self {
        let about = |field| lease.get(field).unwrap_or_default();
        Self::Dead { pid: about("pid"), start: about("start"), known: lease.get("known").is_some() }
    }
}

impl Back {
    fn of(told: String) -> Self {
        if told == "freed" { Self::Freed } else { Self::Not(told) }
    }
}

impl Pool {
    /// Whether the server is on this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Unix(_) => true,
            ConnectionAddr::Tcp(host, _) => {
                host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
            }
            _ => false,
        }
    }

    /// Ends a lease or a ticket. GPUs of it that are `busy` are withheld until [`Self::clear`].
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
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
        let told: String = self.call(Op::Kill, &arguments)?;
        Ok(match told.as_str() {
            "reaped" | "revoked" => Ended::Done,
            "waiting" | "held" => Ended::Kept,
            "lost" => Ended::Lost,
            _ => Ended::Already(told.strip_prefix("was ").unwrap_or(&told).to_owned()),
        })
    }

    /// Puts a GPU back that was withheld for this reason, as [`crate::audit::Gpu::quarantine`] has it, and that is quiet.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn clear(&mut self, gpu: &str, why: &str) -> Result<Back, LeaseError> {
        self.call(Op::Clear, &[gpu.to_owned(), why.to_owned()]).map(Back::of)
    }

    /// Puts a GPU back that nobody holds: it is in no place, or withheld, and has this record of GPU.py's (pid and time)
    /// or none.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn resolve(
        &mut self,
        gpu: &str,
        record: Option<(&str, &str)>,
        offset: i32,
    ) -> Result<Back, LeaseError> {
        let mut arguments = vec![gpu.to_owned(), String::new(), offset.to_string()];
        if let Some((pid, time)) = record {
            pid.clone_into(&mut arguments[1]);
            arguments.push(time.to_owned());
        }
        self.call(Op::Resolve, &arguments).map(Back::of)
    }

    /// Says for so long that this node has an agent, or no longer. While it has, nobody else ends what he can look at.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn stand_in(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<(), LeaseError> {
        let about = [
            local_host.host.clone(),
            local_host.boot.clone(),
            local_host.pidns.clone(),
            ttl.as_millis().to_string(),
        ];
        self.call::<String>(Op::Agent, &about).map(drop)
    }

    /// Frees what the dead of this host held, and what was not renewed in time from another; renews for those of this
    /// host who cannot say themselves that they live. Tells how many were freed. Time alone frees nothing of this boot of
    /// this host, nor of one that has an agent; where this one has, the dead are his.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn reap_local_host(&mut self, local_host: &LocalHost, ttl: Duration) -> Result<usize, LeaseError> {
        let audit = self.audit()?;
        let mut freed = 0;
        let dead = audit.dead(local_host);
        if !dead.is_empty() {
            std::thread::park_timeout(START);
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
    /// The one that looks after this PID namespace.
    #[must_use]
    pub fn of(local_host: &LocalHost) -> Self {
        Self { host: local_host.host.clone(), boot: local_host.boot.clone(), pidns: local_host.pidns.clone() }
    }

    fn is_at(&self, (host, boot, pidns): (Option<&str>, Option<&str>, Option<&str>)) -> bool {
        let same = |field, ours: &str| !ours.is_empty() && field == Some(ours);
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

    /// What [`Pool::reap_here`] would free, and why.
    #[must_use]
    pub fn to_reap(&self, local_host: &LocalHost) -> Vec<(&Lease, &'static str)> {
        let dead = self.dead(local_host).into_iter().map(|lease| (lease, "its holder is dead"));
        let late = self
            .late()
            .filter_map(|lease| Some((lease, self.late_why(local_host, (lease, local_host.life(lease)))?)));
        dead.chain(late).collect()
    }

    /// Those whose holders are dead, unless there is an agent, whose they are.
    fn dead(&self, local_host: &LocalHost) -> Vec<&Lease> {
        let leases = if self.has_agent_at(local_host) { &[] } else { self.leases.as_slice() };
        leases.iter().filter(|lease| local_host.life(lease) == Life::Dead).collect()
    }

    /// Why one that is late is to be freed by whoever sees it; none where it is not.
    fn late_why(&self, local_host: &LocalHost, (lease, life): (&Lease, Life)) -> Option<&'static str> {
        // Who is on this machine's GPUs is for its agent to see, wherever and in whichever boot they were taken.
        let is_of_our_agent = || self.has_agent_on(local_host);
        match life {
            Life::Elsewhere if self.has_agent(lease) => None,
            Life::Elsewhere
                if local_host.is_machine(lease.get("host"), lease.get("boot")) && is_of_our_agent() =>
            {
                None
            }
            Life::Elsewhere => Some("it was not renewed in time"),
            Life::Timed => (!is_of_our_agent()).then_some("its time is over"),
            // Whoever was given something and does not say so, stopped perhaps, lets the next have it.
            Life::Alive if lease.state == "held" && !lease.is_acknowledged() => {
                Some("whoever was given it does not say so")
            }
            Life::Alive | Life::Dead | Life::Unknown => None,
        }
    }

    /// An agent can look whether the holder lives: his word counts, and not the time.
    #[must_use]
    pub fn has_agent(&self, lease: &Lease) -> bool {
        self.agents
            .iter()
            .any(|agent| agent.is_at((lease.get("host"), lease.get("boot"), lease.get("pidns"))))
    }

    /// An agent is on this machine, whatever it calls it.
    fn has_agent_on(&self, local_host: &LocalHost) -> bool {
        self.agents.iter().any(|agent| local_host.is_machine(Some(&agent.host), Some(&agent.boot)))
    }

    /// An agent looks after the dead that are to be seen from here, whatever it calls this machine.
    #[must_use]
    pub fn has_agent_at(&self, local_host: &LocalHost) -> bool {
        let place =
            (Some(local_host.host.as_str()), Some(local_host.boot.as_str()), Some(local_host.pidns.as_str()));
        self.agents.iter().any(|agent| agent.is_at(place))
    }
}
