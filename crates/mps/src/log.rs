//! One line of `control.log` or `server.log`. Wording changes between releases, so events are recognized by parts of a line; an
//! unknown line is [`Event::Unknown`], to be counted, and never a fault.

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// When, in the daemon's local time; none in a line without a head.
    pub at: Option<&'a str>,
    /// The program that wrote it.
    pub writer: Writer,
    /// Its pid, in its own PID namespace.
    pub pid: Option<u32>,
    /// What happened.
    pub event: Event,
}

/// The program that wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The control daemon.
    Control,
    /// A server.
    Server,
    /// A server for GPUs before Volta.
    LegacyServer,
    /// A client.
    Client,
    /// A program that calls itself `Other`, as servers do while they start.
    Other,
    /// Unknown.
    Unknown,
}

/// Why a client was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The server has as many as it can have.
    Clients,
    /// A device has as many as it can have.
    DeviceConnections,
    /// The server is about to end.
    Teardown,
    /// Another one.
    Other,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Clients, Self::DeviceConnections, Self::Teardown, Self::Other];

    /// Its name.
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

/// What happened. A client's pid of 0 is one of another PID namespace.
#[expect(
    missing_docs,
    reason = "fields are named for what they are: pids of servers and clients, users, bytes"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A daemon starts.
    DaemonStarting,
    /// A server starts, for this user.
    ServerStarting { server: u32, uid: Option<u32> },
    /// A server takes clients from now on.
    ServerReady { server: u32 },
    /// A server has ended.
    ServerExited { server: u32, status: Option<i32> },
    /// A server cannot go on, and ends.
    ServerFailed,
    /// A server does not find its driver or its GPUs.
    DriverFailed,
    /// A server does not exit, because this many clients are active.
    ServerBusy { workers: Option<u32> },
    /// A process requests to be a client; `pending` while there is no server for it.
    ClientNew { client: u32, uid: Option<u32>, pending: bool },
    /// A client has a context.
    ClientConnected { client: Option<u32> },
    /// A client's state has changed.
    ClientStatus { client: Option<u32>, active: bool },
    /// A client has exited; this many contexts are left.
    ClientExited { client: Option<u32>, left: Option<u32> },
    /// A client was not taken.
    ClientRejected { reason: Reason },
    /// A client has made a GPU fault, which is everybody's on that GPU.
    ClientFault { client: Option<u32> },
    /// A client is ended, as it was asked for.
    ClientTerminating { client: Option<u32> },
    /// That went well, or not.
    ClientTerminated { well: bool },
    /// The server deals with a fault: it is in the state FAULT until those that it hit have ended.
    FaultHandling,
    /// Those that a fault hit, or the devices that will be reset, follow.
    FaultDetails,
    /// How much of a device each client may pin.
    MemoryLimit { device: Option<u32>, bytes: u64 },
    /// Known, and of no interest.
    Routine,
    /// Nothing known.
    Unknown,
}

impl<'a> Line<'a> {
    /// Understands a line, as far as it can be understood.
    #[must_use]
    pub fn of(line: &'a str) -> Self {
        let (head, text) = split(line.trim_end());
        let (at, writer, pid) = head.map_or((None, Writer::Unknown, None), self::head);
        Self { at, writer, pid, event: event(writer, text) }
    }
}

/// Head and text: `[head] text`.
fn split(line: &str) -> (Option<&str>, &str) {
    let parts = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    parts.map_or((None, line), |(head, text)| (Some(head), text.trim_start()))
}

/// `2026-11-21 06:27:24.009 Legacy Server 18763`.
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

/// What happened, as only its own writer can know it.
fn event(writer: Writer, text: &str) -> Event {
    // What follows is a user's own, and may be anything.
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

/// Prefixes of lines in which a control daemon quotes a command, which any user may have sent.
const FOREIGN: [&str; 2] = ["Cmd:", "Unknown command \""];

/// What every client, every start and every question brings.
const ROUTINE: [&str; 11] = [
    "To connect CUDA applications to this daemon",
    "User did not send valid credentials",
    "Received new client request",
    "Creating worker thread",
    "Receive command failed, assuming client exit",
    "Creating server context on device",
    "Accepting connection",
    // A process connected only to learn which process listens, as our exporter does.
    "Unable to accept connection",
    "NEW UI",
    "UI closed",
    "Exit with status",
];

/// What the daemon says of servers and clients.
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

/// Faults of GPUs, and those that they hit.
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

/// What a server says of clients.
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

/// The exit of a server, as the server itself and its daemon log it.
fn of_end(text: &str) -> Option<Event> {
    text.contains("Server encountered a fatal exception").then_some(Event::ServerFailed)
}

/// What a server says of itself.
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

/// The number right after these words.
fn number(text: &str, words: &str) -> Option<u32> {
    digits(text.split_once(words)?.1)
}

fn signed(text: &str, words: &str) -> Option<i32> {
    let rest = text.split_once(words)?.1;
    let word = rest.split(|letter: char| !(letter.is_ascii_digit() || letter == '-')).next()?;
    word.parse().ok()
}

/// The first number in braces: `{4267, 0}` and `{PID: 4267, Context ID: 0}`.
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
