//! The client of a pool in Redis. Every call has a deadline and can be repeated after the connection broke. The
//! client chooses the lease's name, so Redis recognizes a repeated request.

use std::time::Duration;

use redis::{ConnectionInfo, ConnectionLike as _, FromRedisValue, IntoConnectionInfo as _};

use crate::audit::{Audit, Gpu};
use crate::connection::Connection;
use crate::{LeaseError, Op};

/// Maximum number of GPUs, and of leases and waiting requests, of a pool that is read.
pub(crate) const MOST_GPUS: usize = 1024;
const MOST_LEASES: usize = 16_384;

/// A request for GPUs, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The lease's unique name: 128 random bits in hexadecimal.
    pub lease: String,
    /// Number of GPUs. Either all of them are granted or none.
    pub want: u32,
    /// Higher priorities are served first.
    pub priority: i32,
    /// The ticket expires if it is not renewed within this time.
    pub ttl: Duration,
    /// Whether the request fails at once instead of waiting.
    pub nonblock: bool,
    /// Fields of the holder: `pid`, `user`, `offset` (local time minus UTC, in seconds), `legacy_pid` and so on.
    pub about: Vec<(&'static str, String)>,
}

/// GPUs that were granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token. It rises with each grant, and a lower token is no longer valid.
    pub token: u64,
    /// Ids of the GPUs in the pool.
    pub gpus: Vec<u32>,
}

impl Grant {
    /// Parses a token and a list of GPUs, separated by commas.
    pub(crate) fn parse(token: &str, gpus: &str) -> Option<Self> {
        let gpus = gpus.split(',').map(|id| id.parse().ok());
        Some(Self { token: token.parse().ok()?, gpus: gpus.collect::<Option<_>>()? })
    }
}

/// The status of a ticket or lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketStatus {
    /// The lease holds its GPUs.
    Held(Grant),
    /// The ticket is waiting.
    Waiting {
        /// Number of tickets ahead of this ticket.
        before: u64,
    },
    /// Too few GPUs are idle, and the ticket does not wait.
    Busy,
    /// The ticket requests more GPUs than the pool contains.
    Impossible {
        /// The number of GPUs in the pool.
        managed: u64,
    },
    /// The pool contains no GPUs: it was not created, or the prefix is wrong.
    Uninitialised,
    /// Another lease holds some of the lease's GPUs.
    Conflict(Grant),
    /// The lease has ended: `released`, `reaped`, `cancelled`; `refused` if the pool has become too small; `lost` if
    /// another token is valid; `unknown` if the lease is not in Redis.
    Ended(String),
}

/// The result of creating a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Init {
    /// The pool was created, with this number of GPUs.
    Done(u64),
    /// The pool already exists, with this number of GPUs.
    Already(u64),
    /// This number of leases is held, so the pool was not created again.
    Held(u64),
}

impl Init {
    pub(crate) fn of((how, count): (String, u64)) -> Result<Self, LeaseError> {
        match how.as_str() {
            "done" => Ok(Self::Done(count)),
            "initialised" => Ok(Self::Already(count)),
            "held" => Ok(Self::Held(count)),
            _ => Err(LeaseError::unexpected(how)),
        }
    }
}

/// The result of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// The lease was released, or the ticket withdrawn.
    Done,
    /// The lease had already ended, in this state.
    Already(String),
    /// Another lease holds the GPUs.
    Lost,
    /// The lease is not in Redis.
    Unknown,
}

/// The result of extending a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extended {
    /// The new end, in milliseconds since the Unix epoch on Redis' clock.
    Until(u64),
    /// The lease has no time limit, because it ends with its holder.
    Endless,
    /// The lease is not held. Contains its state, or `unknown` if the lease is not in Redis.
    Ended(String),
}

/// A pool in Redis.
pub struct Pool {
    connection: Connection,
    pub(crate) server: ConnectionInfo,
    address: String,
    pub(crate) prefix: String,
    pub(crate) patience: Duration,
    /// For how long the server grants nothing after its restart, according to the last ticket status.
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
    /// Connects. Each reply must arrive within `patience`.
    ///
    /// # Errors
    /// If the server does not respond, or refuses the connection.
    pub fn open(address: &str, prefix: &str, patience: Duration) -> Result<Self, LeaseError> {
        let server = server(address)?;
        let shown = server.addr().to_string();
        let connection =
            Connection::open(&server, patience).map_err(|error| LeaseError::of(&error, &shown))?;
        let prefix = prefix.to_owned();
        Ok(Self { connection, server, address: shown, prefix, patience, closed: None })
    }

    pub(crate) fn reconnect(&mut self) -> Result<(), LeaseError> {
        self.connection = self.connection_of(&self.server)?;
        Ok(())
    }

    /// Returns a connection to the same server with other settings.
    pub(crate) fn connection_of(&self, server: &ConnectionInfo) -> Result<Connection, LeaseError> {
        self.map_error(Connection::open(server, self.patience))
    }

    /// Returns the same pool, on another connection.
    pub(crate) fn another(&self) -> Result<Self, LeaseError> {
        Ok(Self {
            connection: self.connection_of(&self.server)?,
            server: self.server.clone(),
            address: self.address.clone(),
            prefix: self.prefix.clone(),
            patience: self.patience,
            closed: None,
        })
    }

    /// Converts the error of a query that was not made through [`Self::with`].
    pub(crate) fn map_error<T>(&self, answer: redis::RedisResult<T>) -> Result<T, LeaseError> {
        answer.map_err(|error| LeaseError::of(&error, &self.address))
    }

    /// Runs a blocking command, whose reply may take up to `at_most`.
    pub(crate) fn block<T: FromRedisValue>(
        &mut self,
        command: &redis::Cmd,
        at_most: Duration,
    ) -> Result<T, LeaseError> {
        let patience = self.patience;
        self.with(|connection| {
            connection.patience = Some(at_most + patience);
            let answer = command.query(connection);
            connection.patience = Some(patience);
            answer
        })
    }

    /// Runs a query on the connection. If an earlier query failed, its reply may still arrive, so a new connection is
    /// opened.
    pub(crate) fn with<T>(
        &mut self,
        query: impl FnOnce(&mut Connection) -> redis::RedisResult<T>,
    ) -> Result<T, LeaseError> {
        if !self.connection.is_open() {
            self.reconnect()?;
        }
        let answer = query(&mut self.connection);
        self.map_error(answer)
    }

    /// Calls a script. If the connection breaks, an idempotent script is called once more. Scripts that act on a GPU
    /// number or a prefix are not repeated, because the second call might affect another holder or another pool.
    pub(crate) fn call<T: FromRedisValue>(&mut self, op: Op, arguments: &[String]) -> Result<T, LeaseError> {
        let mut call = op.script().key(&self.prefix);
        for argument in arguments {
            call.arg(argument);
        }
        match self.with(|connection| call.invoke(connection)) {
            Err(LeaseError::Unreachable { .. }) if !matches!(op, Op::Init | Op::Give | Op::Forget) => {
                self.with(|connection| call.invoke(connection))
            }
            answer => answer,
        }
    }

    pub(crate) fn ticket_status(
        &mut self,
        answer: (String, String, String),
    ) -> Result<TicketStatus, LeaseError> {
        let waits = answer.0 == "waiting";
        self.closed = answer.2.parse().ok().filter(|_| waits).map(Duration::from_millis);
        status(answer)
    }

    /// Sets the end of a lease with a time limit to `span` from now.
    ///
    /// # Errors
    /// If Redis does not respond. The call can be repeated.
    pub fn extend(&mut self, lease: &str, span: Duration) -> Result<Extended, LeaseError> {
        let arguments = [lease.to_owned(), span.as_millis().to_string()];
        let (how, until): (String, u64) = self.call(Op::Extend, &arguments)?;
        Ok(match how.as_str() {
            "extended" => Extended::Until(until),
            "endless" => Extended::Endless,
            _ => Extended::Ended(how),
        })
    }

    /// Returns only the GPUs of the audit, which is cheaper for the server if many tickets are waiting.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn gpus(&mut self) -> Result<Vec<Gpu>, LeaseError> {
        Ok(self.read(&["gpus".to_owned()])?.gpus)
    }

    pub(crate) fn read(&mut self, parts: &[String]) -> Result<Audit, LeaseError> {
        // Commands and names can contain any bytes.
        let text: Vec<u8> = self.call(Op::Audit, parts)?;
        let mut audit: Audit = serde_json::from_str(&String::from_utf8_lossy(&text))
            .map_err(|error| LeaseError::unexpected(error.to_string()))?;
        // Every client of Redis can add entries to the pool's lists, and the cost of a snapshot grows with their number.
        let sizes = [(audit.gpus.len(), MOST_GPUS), (audit.leases.len(), MOST_LEASES)];
        if let Some((size, most)) = sizes.into_iter().find(|(size, most)| size > most) {
            return Err(LeaseError::unexpected(format!(
                "the pool has {size} entries of a kind; at most {most}"
            )));
        }
        // Every client of Redis can write them, and they become values of environment variables.
        for gpu in &mut audit.gpus {
            gpu.uuid = gpu.uuid.take().filter(|uuid| is_uuid(uuid));
        }
        Ok(audit)
    }
}

/// Whether a text may be the UUID of a GPU or a MIG instance.
fn is_uuid(text: &str) -> bool {
    (1..=96).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/".contains(&byte))
}

/// The arguments that name the GPUs of a new pool.
pub(crate) fn numbers_and_uuids(gpus: &[(u32, Option<String>)]) -> impl Iterator<Item = String> {
    gpus.iter().flat_map(|(number, uuid)| [number.to_string(), uuid.clone().unwrap_or_default()])
}

/// Checks that this is a valid Redis address.
///
/// # Errors
/// If the address is invalid.
pub fn check(address: &str) -> Result<(), LeaseError> {
    server(address).map(drop)
}

fn server(address: &str) -> Result<ConnectionInfo, LeaseError> {
    address.into_connection_info().map_err(|_| LeaseError::address(address))
}

pub(crate) fn status((state, first, gpus): (String, String, String)) -> Result<TicketStatus, LeaseError> {
    let unexpected = || LeaseError::unexpected([state.as_str(), &first, &gpus].join(" "));
    let grant = || Grant::parse(&first, &gpus).ok_or_else(unexpected);
    Ok(match state.as_str() {
        "held" => TicketStatus::Held(grant()?),
        "conflict" => TicketStatus::Conflict(grant()?),
        "waiting" => TicketStatus::Waiting { before: first.parse().unwrap_or_default() },
        "busy" => TicketStatus::Busy,
        "impossible" => TicketStatus::Impossible { managed: first.parse().map_err(|_| unexpected())? },
        "uninitialised" => TicketStatus::Uninitialised,
        _ => TicketStatus::Ended(state),
    })
}
