//! A pool of GPUs, as a client sees it: questions with a deadline. Each may be asked again after a connection broke:
//! a lease is named by whoever wants it, so Redis knows whether it has answered before.

use std::time::Duration;

use redis::{Client, Connection, FromRedisValue};

use crate::audit::{Audit, Gpu};
use crate::{LeaseError, Op};

/// What a ticket asks for, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The lease's name, unique: 128 random bits in hexadecimal.
    pub lease: String,
    /// How many GPUs; all or none.
    pub want: u32,
    /// Higher ones are served first.
    pub priority: i32,
    /// The ticket is forgotten if it is not renewed for so long.
    pub ttl: Duration,
    /// Where there are not enough, nobody waits.
    pub nonblock: bool,
    /// What is known of the holder: `pid`, `user`, `offset` (seconds from UTC to local time), `legacy_pid` and so on.
    pub about: Vec<(&'static str, String)>,
}

/// GPUs that are held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// It rises with each grant: an older one is worth nothing.
    pub token: u64,
    /// Ids of the pool.
    pub gpus: Vec<u32>,
}

/// How a lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketStatus {
    /// It holds its GPUs.
    Held(Grant),
    /// It waits, behind so many of ours.
    Waiting {
        /// Tickets before it.
        before: u64,
    },
    /// There are not enough, and it would not wait.
    Busy,
    /// It wants more than there are.
    Impossible {
        /// So many there are.
        managed: u64,
    },
    /// The pool has no GPUs: nobody has begun it, or the prefix is mistyped.
    Uninitialised,
    /// Somebody else holds some of its GPUs.
    Conflict(Grant),
    /// It has ended: `released`, `reaped`, `cancelled`, `refused` where there are no longer so many GPUs; `lost` where
    /// another token holds, `unknown` where Redis knows nothing of it.
    Ended(String),
}

/// How a beginning went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Init {
    /// So many GPUs are managed now.
    Done(u64),
    /// It was begun before, with so many.
    Already(u64),
    /// So many are held: it is not begun again under their holders.
    Held(u64),
}

/// How an end went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// Now, or a ticket was withdrawn.
    Done,
    /// Before.
    Already(String),
    /// Somebody else's by now.
    Lost,
    /// Redis knows nothing of it.
    Unknown,
}

/// How it went to give a lease more time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extended {
    /// It ends then, in milliseconds since the Unix epoch by Redis' clock.
    Until(u64),
    /// It has no end of its own: it ends with its holder.
    Endless,
    /// It is not held: its state, `unknown` where Redis knows nothing of it.
    Ended(String),
}

/// A pool.
pub struct Pool {
    connection: Connection,
    /// What it was asked last it did not answer in time, and may yet: another one is used from now on.
    silent: bool,
    pub(crate) client: Client,
    address: String,
    pub(crate) prefix: String,
    pub(crate) patience: Duration,
    /// For so long nothing is given away, as was told when it was last asked about a ticket: the server was restarted.
    pub(crate) closed: Option<Duration>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool")
            .field("address", &self.address)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Connects; no answer takes longer than `patience`.
    ///
    /// # Errors
    /// Where nobody answers, or it refuses.
    pub fn open(address: &str, prefix: &str, patience: Duration) -> Result<Self, LeaseError> {
        let client = client(address)?;
        let shown = client.get_connection_info().addr().to_string();
        let connection = connect(&client, patience).map_err(|error| LeaseError::of(&error, &shown))?;
        let prefix = prefix.to_owned();
        Ok(Self { connection, silent: false, client, address: shown, prefix, patience, closed: None })
    }

    pub(crate) fn reconnect(&mut self) -> Result<(), LeaseError> {
        let connection = connect(&self.client, self.patience);
        self.connection = connection.map_err(|error| LeaseError::of(&error, &self.address))?;
        self.silent = false;
        Ok(())
    }

    /// A connection by other settings of the same server.
    pub(crate) fn connection_of(&self, client: &Client) -> Result<Connection, LeaseError> {
        self.asked(connect(client, self.patience))
    }

    /// The same pool, on a connection by other settings of the same server.
    pub(crate) fn another(&self, client: &Client) -> Result<Self, LeaseError> {
        Ok(Self {
            connection: self.connection_of(client)?,
            silent: false,
            client: client.clone(),
            address: self.address.clone(),
            prefix: self.prefix.clone(),
            patience: self.patience,
            closed: None,
        })
    }

    /// What was asked of this server outside of it.
    pub(crate) fn asked<T>(&self, answer: redis::RedisResult<T>) -> Result<T, LeaseError> {
        answer.map_err(|error| LeaseError::of(&error, &self.address))
    }

    /// Does something with the connection.
    pub(crate) fn with<T>(
        &mut self,
        act: impl FnOnce(&mut Connection) -> redis::RedisResult<T>,
    ) -> Result<T, LeaseError> {
        if self.silent {
            self.reconnect()?;
        }
        let answer = act(&mut self.connection).map_err(|error| LeaseError::of(&error, &self.address));
        self.silent = matches!(answer, Err(LeaseError::Silent(_)));
        answer
    }

    /// Calls a script, and once more where the connection broke, if it does nothing twice. What goes by a GPU's number, or
    /// by a prefix, may find another holder, or another pool, the second time.
    pub(crate) fn call<T: FromRedisValue>(&mut self, op: Op, arguments: &[String]) -> Result<T, LeaseError> {
        let mut call = op.script().key(&self.prefix);
        for argument in arguments {
            call.arg(argument);
        }
        match self.with(|connection| call.invoke(connection)) {
            Err(LeaseError::Unreachable { .. }) if !matches!(op, Op::Init | Op::Give | Op::Forget) => {
                self.reconnect()?;
                self.with(|connection| call.invoke(connection))
            }
            answer => answer,
        }
    }

    /// Begins a pool of these GPUs, by number and, where known, UUID; `offset` is the local time's, in seconds.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn init(
        &mut self,
        gpus: &[(u32, Option<String>)],
        offset: i32,
        force: bool,
    ) -> Result<Init, LeaseError> {
        let mut arguments = vec![offset.to_string(), u8::from(force).to_string()];
        for (number, uuid) in gpus {
            arguments.extend([number.to_string(), uuid.clone().unwrap_or_default()]);
        }
        let (how, count): (String, u64) = self.call(Op::Init, &arguments)?;
        match how.as_str() {
            "done" => Ok(Init::Done(count)),
            "initialised" => Ok(Init::Already(count)),
            "held" => Ok(Init::Held(count)),
            other => Err(LeaseError::Strange(other.to_owned())),
        }
    }

    /// Asks for GPUs.
    ///
    /// # Errors
    /// Where there is no answer; asking again with the same ticket asks for nothing more.
    pub fn request(&mut self, ticket: &Ticket) -> Result<TicketStatus, LeaseError> {
        let mut arguments = vec![
            ticket.lease.clone(),
            ticket.want.to_string(),
            ticket.priority.to_string(),
            ticket.ttl.as_millis().to_string(),
            u8::from(ticket.nonblock).to_string(),
        ];
        for (field, value) in &ticket.about {
            arguments.extend([(*field).to_owned(), value.clone()]);
        }
        let answer = self.call(Op::Enqueue, &arguments)?;
        self.stands(answer)
    }

    /// Says that a ticket or a lease is still wanted.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn touch(
        &mut self,
        lease: &str,
        ttl: Duration,
        token: Option<u64>,
    ) -> Result<TicketStatus, LeaseError> {
        let token = token.map(|token| token.to_string()).unwrap_or_default();
        let answer = self.call(Op::Touch, &[lease.to_owned(), ttl.as_millis().to_string(), token])?;
        self.stands(answer)
    }

    fn stands(&mut self, answer: (String, String, String)) -> Result<TicketStatus, LeaseError> {
        let waits = answer.0 == "waiting";
        self.closed = answer.2.parse().ok().filter(|_| waits).map(Duration::from_millis);
        status(answer)
    }

    /// Asks for a lease that Redis no longer knows, where [`Self::touch`] has said `unknown`: it was restarted from
    /// an older state.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn reclaim(
        &mut self,
        ticket: &Ticket,
        grant: &Grant,
        ttl: Duration,
    ) -> Result<TicketStatus, LeaseError> {
        let gpus: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
        let mut arguments =
            vec![ticket.lease.clone(), grant.token.to_string(), gpus.join(","), ttl.as_millis().to_string()];
        for (field, value) in &ticket.about {
            arguments.extend([(*field).to_owned(), value.clone()]);
        }
        status(self.call(Op::Reclaim, &arguments)?)
    }

    /// Ends a lease, or withdraws a ticket; `pid` is who says so, for the log.
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
    pub fn release(
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
                None => return Err(LeaseError::Strange(how)),
            },
        })
    }

    /// Hands a lease on to the process that it is for, or to nobody: what is new of its holder is told in `about`.
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
    pub fn transfer(
        &mut self,
        (lease, token): (&str, u64),
        ttl: Duration,
        about: &[(&'static str, String)],
    ) -> Result<TicketStatus, LeaseError> {
        let mut arguments = vec![lease.to_owned(), token.to_string(), ttl.as_millis().to_string()];
        for (field, value) in about {
            arguments.extend([(*field).to_owned(), value.clone()]);
        }
        status(self.call(Op::Transfer, &arguments)?)
    }

    /// Lets a lease that has an end of its own end so long from now.
    ///
    /// # Errors
    /// Where there is no answer; it may be asked again.
    pub fn extend(&mut self, lease: &str, span: Duration) -> Result<Extended, LeaseError> {
        let arguments = [lease.to_owned(), span.as_millis().to_string()];
        let (how, until): (String, u64) = self.call(Op::Extend, &arguments)?;
        Ok(match how.as_str() {
            "extended" => Extended::Until(until),
            "endless" => Extended::Endless,
            _ => Extended::Ended(how),
        })
    }

    /// Everything, at one moment.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn audit(&mut self) -> Result<Audit, LeaseError> {
        self.look(&[])
    }

    /// The GPUs of it, with less to do for the server where many wait.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn gpus(&mut self) -> Result<Vec<Gpu>, LeaseError> {
        Ok(self.look(&["gpus".to_owned()])?.gpus)
    }

    fn look(&mut self, of: &[String]) -> Result<Audit, LeaseError> {
        // Commands and names are whatever bytes their owners like.
        let text: Vec<u8> = self.call(Op::Audit, of)?;
        serde_json::from_str(&String::from_utf8_lossy(&text))
            .map_err(|error| LeaseError::Strange(error.to_string()))
    }
}

/// Whether this is an address of Redis.
///
/// # Errors
/// Where it is none.
pub fn check(address: &str) -> Result<(), LeaseError> {
    client(address).map(drop)
}

fn client(address: &str) -> Result<Client, LeaseError> {
    Client::open(address).map_err(|_| LeaseError::address(address))
}

fn connect(client: &Client, patience: Duration) -> redis::RedisResult<Connection> {
    let connection = client.get_connection_with_timeout(patience)?;
    connection.set_read_timeout(Some(patience))?;
    connection.set_write_timeout(Some(patience))?;
    Ok(connection)
}

fn status((state, first, gpus): (String, String, String)) -> Result<TicketStatus, LeaseError> {
    let number = || first.parse::<u64>().map_err(|_| LeaseError::Strange(format!("{state} {first:?}")));
    let grant = || {
        let ids =
            gpus.split(',').map(|id| id.parse().map_err(|_| LeaseError::Strange(format!("GPU {id:?}"))));
        Ok(Grant { token: number()?, gpus: ids.collect::<Result<_, LeaseError>>()? })
    };
    Ok(match state.as_str() {
        "held" => TicketStatus::Held(grant()?),
        "conflict" => TicketStatus::Conflict(grant()?),
        "waiting" => TicketStatus::Waiting { before: first.parse().unwrap_or_default() },
        "busy" => TicketStatus::Busy,
        "impossible" => TicketStatus::Impossible { managed: number()? },
        "uninitialised" => TicketStatus::Uninitialised,
        _ => TicketStatus::Ended(state),
    })
}
