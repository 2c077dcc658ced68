//! Parses a line of `control.log` or `server.log`. Parts of a line are matched, because the wording changes
//! between releases. An unknown line is [`Event::Unknown`], which is counted but is not an error.

/// A parsed line of an MPS log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Time of the line, in the daemon's local time zone; `None` if the line has no `[head]`.
    pub at: Option<&'a str>,
    /// Program that wrote the line.
    pub writer: Writer,
    /// Pid of the writer, in its own PID namespace.
    pub pid: Option<u32>,
    /// Event that the line reports.
    pub event: Event,
}

/// Program that wrote a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Control daemon.
    Control,
    /// Server for GPUs since Volta.
    Server,
    /// Server for GPUs before Volta.
    LegacyServer,
    /// Client process.
    Client,
    /// Program that logs as `Other`, as servers do while they start.
    Other,
    /// Unknown program, or a line without a `[head]`.
    Unknown,
}

/// Reason why a client was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The server has its maximum number of clients.
    Clients,
    /// The GPU has its maximum number of connections.
    DeviceConnections,
    /// The server is shutting down.
    Teardown,
    /// Any other reason.
    Other,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Clients, Self::DeviceConnections, Self::Teardown, Self::Other];

    /// Returns the reason's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::DeviceConnections => "device_connections",
            Self::Teardown => "teardown",
            Self::Other => "other",
        }
    }
}

/// Event reported by a log line. A client's pid is 0 if the client is in another PID namespace.
#[expect(
    missing_docs,
    reason = "fields are named for what they are: pids of servers and clients, users, bytes"
)]
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
    /// A server exits because of a fatal error.
    ServerFailed,
    /// A server cannot initialize the driver, or finds no GPU.
    DriverFailed,
    /// A server does not shut down because this many clients are active.
    ServerBusy { workers: Option<u32> },
    /// A process requests to become a client. `pending` is true if no server is ready for it yet.
    ClientNew { client: u32, uid: Option<u32>, pending: bool },
    /// A client has connected.
    ClientConnected { client: Option<u32> },
    /// A client has become active or inactive.
    ClientStatus { client: Option<u32>, active: bool },
    /// A client has exited, and `left` client contexts remain.
    ClientExited { client: Option<u32>, left: Option<u32> },
    /// A client was rejected.
    ClientRejected { reason: Reason },
    /// A client caused a fatal GPU error, which affects all clients on that GPU.
    ClientFault { client: Option<u32> },
    /// A client is being terminated on request.
    ClientTerminating { client: Option<u32> },
    /// The requested termination of a client succeeded or failed.
    ClientTerminated { well: bool },
    /// The server handles a GPU fault. It stays in state FAULT until all affected clients have exited.
    FaultHandling,
    /// Header of a list of the clients affected by a fault, or of the GPUs to reset.
    FaultDetails,
    /// Memory of a GPU that each client may pin.
    MemoryLimit { device: Option<u32>, bytes: u64 },
    /// Known line that is not relevant.
    Routine,
    /// Unknown line.
    Unknown,
}

impl<'a> Line<'a> {
    /// Parses a line. Parts that are not recognized are `None` or unknown.
    #[must_use]
    pub fn of(line: &'a str) -> Self {
        let (head, text) = split(line.trim_end());
        let (at, writer, pid) = head.map_or((None, Writer::Unknown, None), self::head);
        Self { at, writer, pid, event: event(writer, text) }
    }
}

/// Splits `[head] text` into head and text.
fn split(line: &str) -> (Option<&str>, &str) {
    let parts = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    parts.map_or((None, line), |(head, text)| (Some(head), text.trim_start()))
}

/// Parses a head such as `2026-11-21 06:27:24.009 Legacy Server 18763` into time, writer and pid.
fn head(head: &str) -> (Option<&str>, Writer, Option<u32>) {
    let mut blanks = head.match_indices(' ').map(|(place, _)| place);
    let at = blanks.nth(1).and_then(|place| head.get(..place));
    let rest = at.and_then(|at| head.get(at.len()..)).unwrap_or_default().trim();
    let (name, pid) = rest.rsplit_once(' ').unwrap_or((rest, ""));
    let writer = match name.trim() {
        "Control" => Writer::Control,
        "Server" => Writer::Server,
        "Legacy Server" => Writer::LegacyServer,
        "Client" => Writer::Client,
        "Other" => Writer::Other,
        _ => Writer::Unknown,
    };
    (at, writer, pid.parse().ok())
}

/// Returns the event of a line. Only events that this writer itself logs are recognized.
fn event(writer: Writer, text: &str) -> Event {
    // The rest of such a line is text from any user, and must not be parsed as an event.
    if FOREIGN.iter().any(|words| text.starts_with(words)) {
        return Event::Routine;
    }
    let event = match writer {
        Writer::Control => of_daemon(text).or_else(|| of_end(text)),
        Writer::Server | Writer::LegacyServer | Writer::Other => {
            of_fault(text).or_else(|| of_client(text)).or_else(|| of_server(text)).or_else(|| of_end(text))
        }
        Writer::Client | Writer::Unknown => None,
    };
    event.unwrap_or_else(|| {
        let routine = ROUTINE.iter().any(|words| text.contains(words));
        if routine { Event::Routine } else { Event::Unknown }
    })
}

/// Prefixes of lines in which a control daemon quotes a command, which any user might have sent.
const FOREIGN: [&str; 2] = ["Cmd:", "Unknown command \""];

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

/// Recognizes GPU faults and the clients affected by them.
fn of_fault(text: &str) -> Option<Event> {
    if text.contains("encountered a fatal GPU error") {
        return Some(Event::ClientFault { client: number(text, "Client process ") });
    }
    if text.contains("handling a fatal GPU error") {
        return Some(Event::FaultHandling);
    }
    let details = ["clients have a sticky error set", "devices will be reset"];
    details.iter().any(|words| text.contains(words)).then_some(Event::FaultDetails)
}

/// Recognizes a server's messages about clients.
fn of_client(text: &str) -> Option<Event> {
    if let Some(reason) = rejection(text) {
        return Some(Event::ClientRejected { reason });
    }
    if text.contains("orcefully terminating client") {
        return Some(Event::ClientTerminating { client: number(text, "client ") });
    }
    if text.contains("Client termination ") {
        return Some(Event::ClientTerminated { well: text.contains("succeeded") });
    }
    if text.contains("Status of client") {
        let active = text.contains(" ACTIVE");
        return (active || text.contains("INACTIVE"))
            .then(|| Event::ClientStatus { client: braced(text), active });
    }
    let left = || number(text, "active client contexts is ");
    if text.contains("Client disconnected") || text.contains("Client process disconnected") {
        return Some(Event::ClientExited { client: None, left: left() });
    }
    if !text.contains("Client {") {
        return None;
    }
    let client = braced(text);
    if text.contains("} connected") {
        return Some(Event::ClientConnected { client });
    }
    let gone = text.contains("} exit") || text.contains("} disconnected");
    gone.then(|| Event::ClientExited { client, left: left() })
}

fn rejection(text: &str) -> Option<Reason> {
    if text.contains("aximum number of device connections") {
        return Some(Reason::DeviceConnections);
    }
    if text.contains("client creation denied") {
        return Some(Reason::Teardown);
    }
    if !text.contains("Failed to accept new client") {
        return None;
    }
    Some(if text.contains("aximum number of clients") { Reason::Clients } else { Reason::Other })
}

/// Recognizes the failure of a server, about which the server and the daemon log the same text.
fn of_end(text: &str) -> Option<Event> {
    text.contains("Server encountered a fatal exception").then_some(Event::ServerFailed)
}

/// Recognizes a server's messages about itself.
fn of_server(text: &str) -> Option<Event> {
    if text.contains("Driver initialization failed") {
        return Some(Event::DriverFailed);
    }
    if text.contains("Server was unable to shutdown") {
        return Some(Event::ServerBusy { workers: number(text, "due to ") });
    }
    let limit = text.contains("pinned memory limit").then(|| text.split_once("set to 0x")).flatten();
    let digits = limit?.1.split(|letter: char| !letter.is_ascii_hexdigit()).next()?;
    let bytes = u64::from_str_radix(digits, 16).ok()?;
    Some(Event::MemoryLimit { device: number(text, "for device "), bytes })
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

/// Returns the first number in braces, as in `{4267, 0}` and `{PID: 4267, Context ID: 0}`.
fn braced(text: &str) -> Option<u32> {
    let inside = text.split_once('{')?.1;
    digits(inside.trim_start_matches(|letter: char| !letter.is_ascii_digit() && letter != '}'))
}

fn digits(text: &str) -> Option<u32> {
    text.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
#[path = "tests/log.rs"]
mod tests;
