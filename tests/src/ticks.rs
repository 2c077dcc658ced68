//! The exporter's stream, read snapshot by snapshot.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;

use bailiff_snapshot::wire::{self, Snapshot};

use crate::wait::until;

/// A client of an exporter's stream.
pub struct Ticks(BufReader<UnixStream>);

impl Ticks {
    /// Connects to this socket once a server is listening.
    pub fn of(path: &Path) -> Self {
        Self(BufReader::new(until("the stream", || UnixStream::connect(path).ok())))
    }

    /// Returns the next snapshot.
    pub fn tick(&mut self) -> Snapshot {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).expect("the stream goes on");
        wire::parse(&line).expect("a snapshot of our version")
    }

    /// Passes the next snapshots to the closure until it returns a value, and returns that value.
    pub fn until<T>(&mut self, what: &str, query: impl Fn(&Snapshot) -> Option<T>) -> T {
        until(what, || query(&self.tick()))
    }

    /// Returns the first of the next snapshots that matches.
    pub fn find(&mut self, expected: impl Fn(&Snapshot) -> bool) -> Snapshot {
        until("such a snapshot", || Some(self.tick()).filter(|snapshot| expected(snapshot)))
    }
}
