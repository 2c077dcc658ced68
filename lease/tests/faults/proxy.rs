//! Something between a client and its server that fails at the moment that was asked for: it tells commands from answers
//! and counts them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens to the connection whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is cut before the command has reached the server.
    CutBefore,
    /// It is cut after the server has answered, and the answer is lost.
    CutAfter,
    /// From this command on nothing goes through any more, and nobody is told.
    SilentBefore,
    /// From this answer on.
    SilentAfter,
}

/// How it fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plan {
    /// Once, at the command or answer of this number, of all connections together.
    Once(Fault, u32),
    /// Everything takes so long, and comes in pieces of so many bytes.
    Slow(Duration, usize),
}

struct Shared {
    plan: Plan,
    server: PathBuf,
    commands: AtomicU32,
    answers: AtomicU32,
    /// Those that are silent stay open; all are closed in the end.
    wires: Mutex<Vec<Arc<Wire>>>,
}

/// A connection.
struct Wire {
    client: TcpStream,
    server: UnixStream,
    silent: AtomicBool,
}

/// A way to a server.
pub(crate) struct Proxy {
    address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    pub(crate) fn start(server: &Path, plan: Plan) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("redis://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            plan,
            server: server.to_owned(),
            commands: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            wires: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                theirs.join(client.unwrap());
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The fault has come.
    pub(crate) fn failed(&self) -> bool {
        let Plan::Once(fault, number) = self.shared.plan else { return false };
        let counter = if fault.is_before() { &self.shared.commands } else { &self.shared.answers };
        counter.load(SeqCst) > number
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for wire in self.shared.wires.lock().unwrap().drain(..) {
            wire.cut();
        }
    }
}

impl Fault {
    const fn is_before(self) -> bool {
        matches!(self, Self::CutBefore | Self::SilentBefore)
    }

    const fn is_cut(self) -> bool {
        matches!(self, Self::CutBefore | Self::CutAfter)
    }
}

impl Wire {
    fn cut(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn join(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = UnixStream::connect(&self.server) else { return };
        client.set_nodelay(true).unwrap();
        let wire = Arc::new(Wire { client, server, silent: AtomicBool::new(false) });
        self.wires.lock().unwrap().push(Arc::clone(&wire));
        for commands in [true, false] {
            let (shared, wire) = (Arc::clone(self), Arc::clone(&wire));
            std::thread::spawn(move || {
                shared.pass(commands, &wire);
                if !wire.silent.load(SeqCst) {
                    wire.cut();
                }
            });
        }
    }

    /// Passes on what comes, command by command or answer by answer, until the connection ends.
    fn pass(&self, commands: bool, wire: &Wire) {
        let (mut client, mut server) = (&wire.client, &wire.server);
        let (from, to): (&mut dyn Read, &mut dyn Write) =
            if commands { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let (mut inbox, mut chunk) = (Vec::new(), [0; 16384]);
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            inbox.extend(&chunk[..read]);
            while let Some(length) = message(&inbox, 0) {
                let message: Vec<u8> = inbox.drain(..length).collect();
                let fault = self.fault(commands);
                if fault.is_some_and(|fault| !fault.is_cut()) {
                    wire.silent.store(true, SeqCst);
                }
                if fault.is_some() || wire.silent.load(SeqCst) || self.send(&message, to).is_err() {
                    return;
                }
            }
        }
    }

    /// What happens to the next one.
    fn fault(&self, commands: bool) -> Option<Fault> {
        let counter = if commands { &self.commands } else { &self.answers };
        let turn = counter.fetch_add(1, SeqCst);
        match self.plan {
            Plan::Once(fault, number) if fault.is_before() == commands && number == turn => Some(fault),
            _ => None,
        }
    }

    fn send(&self, message: &[u8], to: &mut dyn Write) -> std::io::Result<()> {
        let Plan::Slow(latency, piece) = self.plan else { return to.write_all(message) };
        std::thread::sleep(latency);
        message.chunks(piece).try_for_each(|piece| to.write_all(piece))
    }
}

/// Where the message ends that begins there; none where not all of it has come.
fn message(bytes: &[u8], begin: usize) -> Option<usize> {
    let rest = bytes.get(begin..)?;
    let line = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let end = begin + line + 2;
    let number = || std::str::from_utf8(&rest[1..line]).unwrap().parse::<i64>().unwrap();
    match rest[0] {
        b'$' => {
            let length = usize::try_from(number()).map_or(0, |length| length + 2);
            (bytes.len() >= end + length).then_some(end + length)
        }
        b'*' => (0..number()).try_fold(end, |end, _| message(bytes, end)),
        _ => Some(end),
    }
}
