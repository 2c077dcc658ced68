//! Parses the replies of the control daemon. A reply with any unexpected part is a [`ReplyError`], so that a
//! truncated list is not taken for a complete one.

use std::collections::BTreeSet;

use bailiff_snapshot::MpsStatus;

/// A refused command or an unknown reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The server does not exist, or there are no servers.
    #[error("no such server")]
    NoServer,
    /// The daemon denied permission.
    #[error("refused: {0}")]
    Refused(String),
    /// Any other reply, such as the reply to a command that the driver release does not support.
    #[error("invalid reply: {0:?}")]
    Strange(String),
}

/// A row of `ps`. A client has one row for each of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Pid in the client's own PID namespace, or 0 if the daemon does not know it.
    pub pid: u32,
    /// Pid of the server.
    pub server: u32,
    /// GPU, as UUID or a part of it.
    pub device: Option<String>,
    /// Inode of the client's PID namespace.
    pub namespace: Option<u64>,
    /// Command line of the client.
    pub command: Option<String>,
}

/// Parses the reply to `get_server_list`, which lists pids of servers.
///
/// # Errors
/// If the reply contains anything except pids.
pub fn servers(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(reply)
}

/// Parses the reply to `get_client_list`, which may list the pid of a client more than once.
///
/// # Errors
/// If the reply contains anything except pids.
pub fn clients(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(reply)
}

/// Parses the reply to `get_server_status`. Returns `None` for any other text, such as the reply of a driver up
/// to 535, which does not know the command.
pub fn status(reply: &str) -> Option<MpsStatus> {
    match reply.trim() {
        "INITIALIZING" => Some(MpsStatus::Initializing),
        "ACTIVE" => Some(MpsStatus::Active),
        "FAULT" => Some(MpsStatus::Fault),
        _ => None,
    }
}

/// Parses the rows of `ps`, or of `client list --all` in protocol 3. Columns are found by their titles, because releases add columns.
///
/// # Errors
/// If the reply is not such a table, or if a row has no pid or no server.
pub fn processes(reply: &str) -> Result<Vec<Client>, ReplyError> {
    if reply.trim().is_empty() {
        return Ok(Vec::new());
    }
    let strange = || unknown(reply);
    let rows = rows(reply).ok_or_else(strange)?;
    let client = |row: &Row<'_>| {
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

/// Parses a share of the multiprocessors in percent, for new servers or for one server.
///
/// # Errors
/// If the reply is not a number from 0 to 100.
pub fn percentage(reply: &str) -> Result<f64, ReplyError> {
    let number = reply.trim().trim_end_matches('%').parse::<f64>();
    number.ok().filter(|number| (0.0..=100.0).contains(number)).ok_or_else(|| unknown(reply))
}

/// Parses the pinned memory limit of a device, in bytes. An empty reply means no limit and returns `None`.
///
/// # Errors
/// If the reply is not an amount. A bare decimal number is refused, because its unit is not documented.
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

/// Checks that `terminate_client` succeeded: `0`, `CUDA_SUCCESS` or a sentence that reports success.
///
/// # Errors
/// If the response is anything else, or empty.
pub fn terminated(reply: &str) -> Result<(), ReplyError> {
    let text = reply.trim();
    let done = text == "0" || text == "CUDA_SUCCESS" || text.contains("Client termination succeeded");
    if done { Ok(()) } else { Err(unknown(reply)) }
}

/// Parses the reply to `server list` in protocol 3: bare pids, or a table with a PID column. No real reply has been
/// recorded yet.
///
/// # Errors
/// If the reply is neither.
pub fn servers_v3(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    pids(reply).or_else(|_| {
        let rows = rows(reply).ok_or_else(|| unknown(reply))?;
        rows.iter()
            .map(|row| row.cell("PID").and_then(|cell| cell.parse().ok()).ok_or_else(|| unknown(reply)))
            .collect()
    })
}

/// Returns the line that denies permission, if there is one.
pub fn refusal(reply: &str) -> Option<&str> {
    let refuses = |line: &&str| {
        ["Not enough privilege", "Insufficient privileges"].iter().any(|words| line.contains(words))
    };
    reply.lines().map(str::trim).find(refuses)
}

/// Returns whether NVIDIA's client reports that no daemon is listening.
pub fn is_no_daemon(reply: &str) -> bool {
    reply.contains("Cannot find MPS control daemon process")
}

/// Returns whether a starting daemon reports that another daemon is already running.
pub fn is_running(reply: &str) -> bool {
    reply.contains("An instance of this daemon is already running")
}

fn pids(reply: &str) -> Result<BTreeSet<u32>, ReplyError> {
    let lines = reply.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse().map_err(|_| unknown(reply))).collect()
}

/// Returns the error for a reply that was not recognized.
fn unknown(reply: &str) -> ReplyError {
    if let Some(line) = refusal(reply) {
        return ReplyError::Refused(line.to_owned());
    }
    let text = reply.trim();
    // The reply is "Server not found" or "Server 1 not found"; a list contains neither.
    if text.lines().count() == 1 && text.starts_with("Server ") && text.ends_with("not found") {
        return ReplyError::NoServer;
    }
    ReplyError::Strange(text.chars().take(200).collect())
}

/// A row of a table, as pairs of title and cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row<'a>(Vec<(&'a str, String)>);

impl Row<'_> {
    /// Returns the cell in the column with this title.
    pub(crate) fn cell(&self, title: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(title)).map(|(_, cell)| cell.as_str())
    }
}

/// Returns the rows of a table, or `None` if the text has no titles or if a row does not match
/// them.
pub(crate) fn rows(text: &str) -> Option<Vec<Row<'_>>> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let titles: Vec<&str> = lines.next()?.split_whitespace().collect();
    titles.iter().find(|title| title.eq_ignore_ascii_case("PID"))?;
    lines.map(|line| row(&titles, line)).collect()
}

fn row<'a>(titles: &[&'a str], line: &str) -> Option<Row<'a>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let command = titles.iter().position(|title| title.eq_ignore_ascii_case("COMMAND"));
    // A process that is starting or exiting may have no command, so its row contains one word less.
    let Some(command) = command.filter(|_| words.len() + 1 >= titles.len()) else {
        return (words.len() == titles.len())
            .then(|| Row(titles.iter().copied().zip(words.iter().map(|word| (*word).to_owned())).collect()));
    };
    let after = titles.len() - command - 1;
    let end = words.len() - after;
    let mut cells: Vec<String> = words.get(..command)?.iter().map(|word| (*word).to_owned()).collect();
    cells.push(words.get(command..end)?.join(" "));
    cells.extend(words.get(end..)?.iter().map(|word| (*word).to_owned()));
    Some(Row(titles.iter().copied().zip(cells).collect()))
}

#[cfg(test)]
#[path = "tests/reply.rs"]
mod tests;
