//! A relay between exporter and enforcer. It forwards each line of the stream, and records when the line was sent to
//! the enforcer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

use crate::boot;

/// A line, and the time by which it was written to the enforcer's socket.
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) line: Vec<u8>,
}

/// Listens at a path, and connects each client to the exporter.
pub(crate) fn start(listen: &Path, exporter: PathBuf) -> Receiver<Sent> {
    let listener = bound(listen);
    let (to, from) = channel();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (exporter, to) = (exporter.clone(), to.clone());
            std::thread::spawn(move || pass_on(client, &exporter, &to));
        }
    });
    from
}

/// The kernel reports the process that called listen(2) as the exporter, and the enforcer exempts the exporter's
/// descendants. The targets are descendants of this process, so another process calls listen(2).
fn bound(path: &Path) -> UnixListener {
    let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("the relay's socket");
    let program = std::env::current_exe().expect("a program");
    let theirs = socket.try_clone().expect("a socket");
    let status = Command::new(program).arg("listen").stdin(theirs).status().expect("this program");
    assert!(status.success(), "{status}");
    UnixListener::from(socket)
}

/// The main function of the process that calls listen(2).
pub(crate) fn listen() {
    rustix::net::listen(std::io::stdin(), 16).expect("standard input is a socket");
}

/// Forwards lines until one side closes the connection, and then closes the other side.
fn pass_on(mut client: UnixStream, exporter: &Path, to: &Sender<Sent>) {
    let Ok(exporter) = UnixStream::connect(exporter) else { return };
    let mut exporter = BufReader::new(exporter);
    loop {
        let mut line = Vec::new();
        let whole = exporter.read_until(b'\n', &mut line).is_ok_and(|_| line.ends_with(b"\n"));
        if !whole || client.write_all(&line).is_err() || to.send(Sent { at: boot(), line }).is_err() {
            return;
        }
    }
}
