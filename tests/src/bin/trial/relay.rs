//! Between exporter and enforcer: each line of the stream is passed on, and it is known when the enforcer was sent it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

use crate::boot;

/// A line that was written to the enforcer's socket by then.
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) line: Vec<u8>,
}

/// Listens there, and takes each connection on to the exporter.
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

/// The kernel names whichever process called listen(2) as the exporter, and its descendants are exempt. The targets are ours,
/// so another process calls it.
fn bound(path: &Path) -> UnixListener {
    let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("the relay's socket");
    let program = std::env::current_exe().expect("a program");
    let theirs = socket.try_clone().expect("a socket");
    let status = Command::new(program).arg("listen").stdin(theirs).status().expect("this program");
    assert!(status.success(), "{status}");
    UnixListener::from(socket)
}

/// What that process does.
pub(crate) fn listen() {
    rustix::net::listen(std::io::stdin(), 16).expect("standard input is a socket");
}

/// Until one side ends; then the other is closed too.
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
