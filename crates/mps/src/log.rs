//! Parses a line of `control.log` or `server.log`. Parts of a line are matched, because the wording changes
//! between releases. An unknown line is [`Event::Unknown`], which is counted but is not an error.

use bailiff_snapshot::MpsRejection;

/// Event reported by a log line. A client's pid is 0 if the client is in another PID namespace.
#[expect(missing_docs, reason = "fields are named for what they are: pids of servers and clients, users")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The control daemon starts.
    DaemonStarting,
    /// A server starts for this user.
    ServerStarting { server: u32, uid: Option<u32> },
    /// A server is ready for clients.
    ServerReady { server: u32 },
    /// A server has exited.
    ServerExited { server: u32, status: Option<i32> },
    /// A process requests to become a client. `pending` is true if no server is ready for it yet.
    ClientNew { client: u32, uid: Option<u32>, pending: bool },
    /// A client was rejected.
    ClientRejected { reason: MpsRejection },
    /// A client caused a fatal GPU error, which affects all clients on that GPU.
    ClientFault,
    /// Known line that is not counted.
    Routine,
    /// Unknown line.
    Unknown,
}

impl Event {
    /// Returns the event of a line. Only events that its writer itself logs are recognized.
    pub fn of(line: &str) -> Self {
        let (head, text) = split(line.trim_end());
        // The rest of such a line is any user's text, and must not be taken for an event.
        if FOREIGN.iter().any(|words| text.starts_with(words)) {
            return Self::Routine;
        }
        let (event, known): (_, &[Words]) = match head.map(writer) {
            Some("Control") => (of_daemon(text), &OF_BOTH),
            // A server logs as `Other` while it starts.
            Some("Server" | "Legacy Server" | "Other") => (of_server(text), &OF_SERVER),
            _ => (None, &[]),
        };
        let has = |(words, details): &Words| {
            text.contains(words) && details.iter().any(|detail| text.contains(detail))
        };
        event.unwrap_or_else(|| {
            let routine = known.iter().any(has) || ROUTINE.iter().any(|words| text.contains(words));
            if routine { Self::Routine } else { Self::Unknown }
        })
    }
}

/// Splits `[head] text` into head and text.
fn split(line: &str) -> (Option<&str>, &str) {
    let parts = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    parts.map_or((None, line), |(head, text)| (Some(head), text.trim_start()))
}

/// Returns the writer in a head such as `2026-11-21 06:27:24.009 Legacy Server 18763`.
fn writer(head: &str) -> &str {
    let name = head.splitn(3, ' ').nth(2).unwrap_or_default().trim();
    name.rsplit_once(' ').map_or(name, |(name, _)| name.trim())
}

/// Prefixes of lines in which a control daemon quotes a command, which any user might have sent.
const FOREIGN: [&str; 2] = ["Cmd:", "Unknown command \""];

/// Text that a known line contains, and further texts, of which it contains at least one.
type Words = (&'static str, &'static [&'static str]);

/// The failure of a server, which the server and the daemon log in the same words.
const OF_BOTH: [Words; 1] = [("Server encountered a fatal exception", &[""])];

/// What a server logs about its clients and itself.
const OF_SERVER: [Words; 13] = [
    OF_BOTH[0],
    ("handling a fatal GPU error", &[""]),
    ("clients have a sticky error set", &[""]),
    ("devices will be reset", &[""]),
    ("orcefully terminating client", &[""]),
    ("Client termination ", &[""]),
    ("Status of client", &[" ACTIVE", "INACTIVE"]),
    ("Client disconnected", &[""]),
    ("Client process disconnected", &[""]),
    ("Client {", &["} connected", "} exit", "} disconnected"]),
    ("Driver initialization failed", &[""]),
    ("Server was unable to shutdown", &[""]),
    ("pinned memory limit", &["set to 0x"]),
];

/// Parts of lines that are logged for every client, start or query.
const ROUTINE: [&str; 11] = [
    "To connect CUDA applications to this daemon",
    "User did not send valid credentials",
    "Received new client request",
    "Creating worker thread",
    "Receive command failed, assuming client exit",
    "Creating server context on device",
    "Accepting connection",
    // Logged if a process connects only to find out which process is listening, as the exporter does.
    "Unable to accept connection",
    "NEW UI",
    "UI closed",
    "Exit with status",
];

/// Recognizes the daemon's messages about servers and clients.
fn of_daemon(text: &str) -> Option<Event> {
    if text.contains("Starting control daemon") {
        return Some(Event::DaemonStarting);
    }
    if let Some(server) = number(text, "Starting new server ") {
        return Some(Event::ServerStarting { server, uid: number(text, "for user ") });
    }
    if let Some(server) = number(text, "NEW SERVER ") {
        return text.contains("Ready").then_some(Event::ServerReady { server });
    }
    if let Some(client) = number(text, "NEW CLIENT ") {
        let pending = text.contains("pending");
        return Some(Event::ClientNew { client, uid: number(text, "from user "), pending });
    }
    let server = number(text, "Server ").filter(|_| text.contains(" exited with status"))?;
    Some(Event::ServerExited { server, status: signed(text, "status ") })
}

/// Recognizes what a server logs about faults and rejected clients.
fn of_server(text: &str) -> Option<Event> {
    if text.contains("encountered a fatal GPU error") {
        return Some(Event::ClientFault);
    }
    rejection(text).map(|reason| Event::ClientRejected { reason })
}

fn rejection(text: &str) -> Option<MpsRejection> {
    if text.contains("aximum number of device connections") {
        return Some(MpsRejection::DeviceConnections);
    }
    if text.contains("client creation denied") {
        return Some(MpsRejection::Teardown);
    }
    if !text.contains("Failed to accept new client") {
        return None;
    }
    Some(if text.contains("aximum number of clients") { MpsRejection::Clients } else { MpsRejection::Other })
}

/// Returns the number that directly follows these words.
fn number(text: &str, words: &str) -> Option<u32> {
    digits(text.split_once(words)?.1)
}

fn signed(text: &str, words: &str) -> Option<i32> {
    let rest = text.split_once(words)?.1;
    let word = rest.split(|letter: char| !(letter.is_ascii_digit() || letter == '-')).next()?;
    word.parse().ok()
}

fn digits(text: &str) -> Option<u32> {
    text.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
#[path = "tests/log.rs"]
mod tests;
