//! Between exporter and enforcer: each line of the stream is passed on, and it is known when the enforcer was sent it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::boot;

/// A line that was written to the enforcer's socket by then.
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) line: Vec<u8>,
}

/// Listens there, and takes each connection on to the exporter.
pub(crate) fn start(listen: &Path, exporter: PathBuf) -> Receiver<Sent> {
    let listener = UnixListener::bind(listen).expect("the relay's socket");
    let (to, from) = channel();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (exporter, to) = (exporter.clone(), to.clone());
            std::thread::spawn(move || pass_on(client, &exporter, &to));
        }
    });
    from
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
