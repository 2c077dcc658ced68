//! What a control daemon says, understood. Nothing here is believed by halves: an answer that is not all of what it should be
//! is [`Odd`], so that a list that was cut short is never taken for a whole one.

use std::collections::BTreeSet;
use std::fmt;

use crate::table;

/// What is said instead of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// There is no such server, or none at all.
    #[error("no such server")]
    NoServer,
    /// It is not for this user.
    #[error("refused: {0}")]
    Refused(String),
    /// Anything else, such as what a release says to a command that it does not know.
    #[error("not understood: {0:?}")]
    Strange(String),
}

/// How a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It starts, or makes its contexts again.
    Initializing,
    /// It takes clients.
    Active,
    /// A client has faulted: no new client is taken until all that shared its GPU have ended.
    Fault,
    /// The daemon does not tell: up to 535 it knows no such command.
    Unknown,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Initializing, Self::Active, Self::Fault, Self::Unknown];

    /// Its name.
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

/// A client, as `ps` tells. It has a row for each of its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its pid, in the PID namespace of the next but one; 0 where the daemon cannot know it.
    pub pid: u32,
    /// Its server.
    pub server: u32,
    /// The GPU, by UUID or a part of it.
    pub device: Option<String>,
    /// The inode of its PID namespace.
    pub namespace: Option<u64>,
    /// What it was started as.
    pub command: Option<String>,
}

/// The pids of `get_server_list`.
///
/// # Errors
/// Where it is anything but pids.
pub fn servers(said: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(said)
}

/// The pids of `get_client_list`. A client may be told more than once.
///
/// # Errors
/// Where it is anything but pids.
pub fn clients(said: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(said)
}

/// What `get_server_status` says; what is no status is [`Status::Unknown`].
#[must_use]
pub fn status(said: &str) -> Status {
    match said.trim() {
        "INITIALIZING" => Status::Initializing,
        "ACTIVE" => Status::Active,
        "FAULT" => Status::Fault,
        _ => Status::Unknown,
    }
}

/// The rows of `ps`, by their titles: releases add columns.
///
/// # Errors
/// Where it is no such table, or a row of it has no pid or no server.
pub fn processes(said: &str) -> Result<Vec<Client>, ReplyError> {
    if said.trim().is_empty() {
        return Ok(Vec::new());
    }
    let strange = || odd(said);
    let rows = table::rows(said).ok_or_else(strange)?;
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

/// A share of the multiprocessors: `get_default_active_thread_percentage` and that of a server.
///
/// # Errors
/// Where it is no number from 0 to 100.
pub fn percentage(said: &str) -> Result<f64, ReplyError> {
    let number = said.trim().trim_end_matches('%').parse::<f64>();
    number.ok().filter(|number| (0.0..=100.0).contains(number)).ok_or_else(|| odd(said))
}

/// Bytes that a client may pin of a device; none where nothing is said, which is no limit.
///
/// # Errors
/// Where it is no amount. A bare number is none either: nobody documents its unit.
pub fn memory_limit(said: &str) -> Result<Option<u64>, ReplyError> {
    let text = said.trim();
    if text.is_empty() {
        return Ok(None);
    }
    amount(text).map(Some).ok_or_else(|| odd(said))
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

/// Whether `terminate_client` did it: `0`, `CUDA_SUCCESS`, or a sentence that says so.
///
/// # Errors
/// Where it says anything else, or nothing.
pub fn terminated(said: &str) -> Result<(), ReplyError> {
    let text = said.trim();
    let done = text == "0" || text == "CUDA_SUCCESS" || text.contains("Client termination succeeded");
    if done { Ok(()) } else { Err(odd(said)) }
}

/// The pids of protocol 3's `server list`: a table with a column PID, or pids alone. No release's answer is recorded here.
///
/// # Errors
/// Where it is neither.
pub fn servers_v3(said: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(said).or_else(|_| {
        let rows = table::rows(said).ok_or_else(|| odd(said))?;
        rows.iter()
            .map(|row| row.cell("PID").and_then(|cell| cell.parse().ok()).ok_or_else(|| odd(said)))
            .collect()
    })
}

/// The rows of protocol 3's `client list --all`, which are those of `ps` as far as they bear the same titles.
///
/// # Errors
/// Where it is no such table.
pub fn clients_v3(said: &str) -> Result<Vec<Client>, ReplyError> {
    processes(said)
}

/// The line that refuses, where there is one.
#[must_use]
pub fn refusal(said: &str) -> Option<&str> {
    let refuses = |line: &&str| {
        ["Not enough privilege", "Insufficient privileges"].iter().any(|words| line.contains(words))
    };
    said.lines().map(str::trim).find(refuses)
}

/// Whether a client says that nobody listens.
#[must_use]
pub fn is_no_daemon(said: &str) -> bool {
    said.contains("Cannot find MPS control daemon process")
}

/// Whether a daemon that was to start says that one runs there already.
#[must_use]
pub fn is_running(said: &str) -> bool {
    said.contains("An instance of this daemon is already running")
}

fn pids(said: &str) -> Result<BTreeSet<u32>, ReplyError> {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse().map_err(|_| odd(said))).collect()
}

/// What it is that is no answer.
fn odd(said: &str) -> ReplyError {
    if let Some(line) = refusal(said) {
        return ReplyError::Refused(line.to_owned());
    }
    let text = said.trim();
    // "Server not found", "Server 1 not found"; neither is part of a list.
    if text.lines().count() == 1 && text.starts_with("Server ") && text.ends_with("not found") {
        return ReplyError::NoServer;
    }
    ReplyError::Strange(text.chars().take(200).collect())
}

#[cfg(test)]
#[path = "tests/words.rs"]
mod tests;
