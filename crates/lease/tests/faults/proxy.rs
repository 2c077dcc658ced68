//! A proxy between a client and its server that fails at a chosen position. It parses and counts commands and
//! replies.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fault of the connection at that position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is cut before the command reaches the server.
    CutBefore,
    /// The connection is cut after the server has replied, and the reply is lost.
    CutAfter,
    /// From this command on, nothing is forwarded, but the connection stays open.
    SilentBefore,
    /// From this reply on, nothing is forwarded, but the connection stays open.
    SilentAfter,
}

/// The plan of faults.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plan {
    /// The fault occurs once, at the command or reply with this number, counted over all connections.
    Once(Fault, u32),
    /// Every message is delayed, and sent in pieces of this many bytes.
    Slow(Duration, usize),
}

struct ProxyState {
    plan: Plan,
    server: PathBuf,
    commands: AtomicU32,
    answers: AtomicU32,
    /// Silent connections stay open. All connections are closed at the end.
    connections: Mutex<Vec<Arc<ProxyConnection>>>,
}

/// A connection.
struct ProxyConnection {
    client: TcpStream,
    server: UnixStream,
    silent: AtomicBool,
}

/// A proxy for one server.
pub(crate) struct Proxy {
    address: String,
    shared: Arc<ProxyState>,
}

impl Proxy {
    pub(crate) fn start(server: &Path, plan: Plan) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("redis://{}", listener.local_addr().unwrap());
        let shared = Arc::new(ProxyState {
            plan,
            server: server.to_owned(),
            commands: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                accepting.accept(client.unwrap());
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns whether the fault has occurred.
    pub(crate) fn failed(&self) -> bool {
        let Plan::Once(fault, number) = self.shared.plan else { return false };
        let counter = if fault.is_before() { &self.shared.commands } else { &self.shared.answers };
        counter.load(SeqCst) > number
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            connection.cut();
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

impl ProxyConnection {
    fn cut(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl ProxyState {
    fn accept(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = UnixStream::connect(&self.server) else { return };
        client.set_nodelay(true).unwrap();
        let connection = Arc::new(ProxyConnection { client, server, silent: AtomicBool::new(false) });
        self.connections.lock().unwrap().push(Arc::clone(&connection));
        for commands in [true, false] {
            let (shared, connection) = (Arc::clone(self), Arc::clone(&connection));
            std::thread::spawn(move || {
                shared.pass(commands, &connection);
                if !connection.silent.load(SeqCst) {
                    connection.cut();
                }
            });
        }
    }

    /// Forwards messages, one command or reply at a time, until the connection is closed.
    fn pass(&self, commands: bool, connection: &ProxyConnection) {
        let (mut client, mut server) = (&connection.client, &connection.server);
        let (from, to): (&mut dyn Read, &mut dyn Write) =
            if commands { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let (mut inbox, mut chunk) = (Vec::new(), [0; 16384]);
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            inbox.extend(&chunk[..read]);
            while let Some(length) = message(&inbox, 0) {
                let message: Vec<u8> = inbox.drain(..length).collect();
                let fault = self.fault(commands);
                if fault.is_some_and(|fault| !fault.is_cut()) {
                    connection.silent.store(true, SeqCst);
                }
                if fault.is_some() || connection.silent.load(SeqCst) || self.send(&message, to).is_err() {
                    return;
                }
            }
        }
    }

    /// Returns the fault for the next message.
    fn fault(&self, commands: bool) -> Option<Fault> {
        let counter = if commands { &self.commands } else { &self.answers };
        let position = counter.fetch_add(1, SeqCst);
        match self.plan {
            Plan::Once(fault, number) if fault.is_before() == commands && number == position => Some(fault),
            _ => None,
        }
    }

    fn send(&self, message: &[u8], to: &mut dyn Write) -> std::io::Result<()> {
        let Plan::Slow(latency, piece) = self.plan else { return to.write_all(message) };
        std::thread::sleep(latency);
        message.chunks(piece).try_for_each(|piece| to.write_all(piece))
    }
}

/// Returns the end of the message that starts at `start`, or `None` if the message is incomplete.
fn message(bytes: &[u8], start: usize) -> Option<usize> {
    let rest = bytes.get(start..)?;
    let line = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let end = start + line + 2;
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
