//! Parses the control daemon's responses. A response is accepted only as a whole, so that a truncated list is
//! never taken for a complete one; anything else is a [`ReplyError`].

use std::collections::BTreeSet;
use std::fmt;

use crate::table;

/// A refusal or an unknown response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// There is no such server, or none at all.
    #[error("no such server")]
    NoServer,
    /// Permission denied.
    #[error("refused: {0}")]
    Refused(String),
    /// Anything else, such as the response to an unknown command.
    #[error("not understood: {0:?}")]
    Strange(String),
}

/// State of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It starts, or recreates its contexts.
    Initializing,
    /// It accepts clients.
    Active,
    /// A client has faulted: no new client is accepted until all clients on its GPU have exited.
    Fault,
    /// Not reported: driver 535 and older do not know the command.
    Unknown,
}

impl Status {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Initializing, Self::Active, Self::Fault, Self::Unknown];

    /// Label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Active => "active",
            Self::Fault => "fault",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

/// A row of `ps`: a client on one of its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Pid in the PID namespace of `namespace`; 0 if the daemon cannot know it.
    pub pid: u32,
    /// Pid of its server.
    pub server: u32,
    /// UUID of the GPU, or a part of it.
    pub device: Option<String>,
    /// Inode of its PID namespace.
    pub namespace: Option<u64>,
    /// Its command.
    pub command: Option<String>,
}

/// Parses the pids of `get_server_list`.
///
/// # Errors
/// If it contains anything but pids.
pub fn servers(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(reply)
}

/// Parses the pids of `get_client_list`; a client may be listed more than once.
///
/// # Errors
/// If it contains anything but pids.
pub fn clients(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(reply)
}

/// Parses `get_server_status`; any other text is [`Status::Unknown`].
#[must_use]
pub fn status(reply: &str) -> Status {
    match reply.trim() {
        "INITIALIZING" => Status::Initializing,
        "ACTIVE" => Status::Active,
        "FAULT" => Status::Fault,
        _ => Status::Unknown,
    }
}

/// Parses the rows of `ps` by their column titles, because releases add columns.
///
/// # Errors
/// If it is not such a table, or a row has no pid or no server.
pub fn processes(reply: &str) -> Result<Vec<Client>, ReplyError> {
    if reply.trim().is_empty() {
        return Ok(Vec::new());
    }
    let strange = || unknown(reply);
    let rows = table::rows(reply).ok_or_else(strange)?;
    let client = |row: &table::Row<'_>| {
        let word = |title| row.cell(title).filter(|cell| !cell.is_empty()).map(str::to_owned);
        Some(Client {
            pid: row.cell("PID")?.parse().ok()?,
            server: row.cell("SERVER")?.parse().ok()?,
            device: word("DEVICE"),
            namespace: row.cell("NAMESPACE").and_then(|cell| cell.parse().ok()),
            command: word("COMMAND"),
        })
    };
    rows.iter().map(|row| client(row).ok_or_else(strange)).collect()
}

/// Parses a share of the multiprocessors.
///
/// # Errors
/// If it is not a number from 0 to 100.
pub fn percentage(reply: &str) -> Result<f64, ReplyError> {
    let number = reply.trim().trim_end_matches('%').parse::<f64>();
    number.ok().filter(|number| (0.0..=100.0).contains(number)).ok_or_else(|| unknown(reply))
}

/// Parses the limit of pinned memory of a device in bytes; an empty response means no limit.
///
/// # Errors
/// If it is not an amount. A number without a unit is refused, because its unit is not documented.
pub fn memory_limit(reply: &str) -> Result<Option<u64>, ReplyError> {
    let text = reply.trim();
    if text.is_empty() {
        return Ok(None);
    }
    amount(text).map(Some).ok_or_else(|| unknown(reply))
}

fn amount(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_suffix(" bytes").unwrap_or(text).strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    let shift = match text.chars().next_back()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return None,
    };
    let number: u64 = text.get(..text.len() - 1)?.trim_end().parse().ok()?;
    number.checked_mul(1 << shift)
}

/// Checks that `terminate_client` succeeded: `0`, `CUDA_SUCCESS`, or a sentence that says so.
///
/// # Errors
/// If the response is anything else, or empty.
pub fn terminated(reply: &str) -> Result<(), ReplyError> {
    let text = reply.trim();
    let done = text == "0" || text == "CUDA_SUCCESS" || text.contains("Client termination succeeded");
    if done { Ok(()) } else { Err(unknown(reply)) }
}

/// Parses the pids of protocol 3's `server list`: a table with a column PID, or only pids. No recorded response
/// exists.
///
/// # Errors
/// If it is neither.
pub fn servers_v3(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(reply).or_else(|_| {
        let rows = table::rows(reply).ok_or_else(|| unknown(reply))?;
        rows.iter()
            .map(|row| row.cell("PID").and_then(|cell| cell.parse().ok()).ok_or_else(|| unknown(reply)))
            .collect()
    })
}

/// Parses the rows of protocol 3's `client list --all`, as far as they have the titles of `ps`.
///
/// # Errors
/// If it is not such a table.
pub fn clients_v3(reply: &str) -> Result<Vec<Client>, ReplyError> {
    processes(reply)
}

/// Returns the line with a refusal, if any.
#[must_use]
pub fn refusal(reply: &str) -> Option<&str> {
    let refuses = |line: &&str| {
        ["Not enough privilege", "Insufficient privileges"].iter().any(|words| line.contains(words))
    };
    reply.lines().map(str::trim).find(refuses)
}

/// Returns whether a client reports that no daemon listens.
#[must_use]
pub fn is_no_daemon(reply: &str) -> bool {
    reply.contains("Cannot find MPS control daemon process")
}

/// Returns whether a starting daemon reports that another one already runs.
#[must_use]
pub fn is_running(reply: &str) -> bool {
    reply.contains("An instance of this daemon is already running")
}

fn pids(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    let lines = reply.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse().map_err(|_| unknown(reply))).collect()
}

/// Returns the error for an unknown response.
fn unknown(reply: &str) -> ReplyError {
    if let Some(line) = refusal(reply) {
        return ReplyError::Refused(line.to_owned());
    }
    let text = reply.trim();
    // "Server not found", "Server 1 not found"; neither is part of a list.
    if text.lines().count() == 1 && text.starts_with("Server ") && text.ends_with("not found") {
        return ReplyError::NoServer;
    }
    ReplyError::Strange(text.chars().take(200).collect())
}

#[cfg(test)]
#[path = "tests/reply.rs"]
mod tests;
