//! A program that listens at the address of Redis and sends replies that never end.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::wait::until;

/// How the program replies to the first request of each connection.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// The number of requests that are answered with `+OK` first.
    pub after: usize,
    /// The start of the reply.
    pub head: &'static str,
    /// The text that follows, again and again.
    pub body: &'static str,
    /// Pause after each byte.
    pub pause: Option<Duration>,
}

const FAST: Attack = Attack { after: 1, head: "", body: "", pause: None };

/// Endless replies, each with a part of the error that it causes. The time of an endless line can end before its size
/// is reached, because the parser reads it again and again.
pub const ATTACKS: [(Attack, &str); 8] = [
    (Attack { after: 0, head: "$1000000000\r\n", body: "x", ..FAST }, "larger than 8 MiB"),
    (Attack { head: "$1000000000\r\n", body: "x", ..FAST }, "larger than 8 MiB"),
    (Attack { head: "*1000000000\r\n", body: "_\r\n", ..FAST }, "larger than 8 MiB"),
    (Attack { head: "%1000000000\r\n", body: "*1\r\n:1\r\n", ..FAST }, "larger than 8 MiB"),
    (Attack { head: "+", body: "x", ..FAST }, "respon"),
    (Attack { head: "-ERR ", body: "x", ..FAST }, "respon"),
    (Attack { head: "", body: "*1\r\n", ..FAST }, "unexpected response"),
    (
        Attack { head: "$1000000000\r\n", body: "x", pause: Some(Duration::from_millis(20)), ..FAST },
        "does not respond in time",
    ),
];

/// How much more memory a daemon may need for such replies, in MiB.
pub const MOST_MIB: u64 = 64;

/// A running program. Its threads end when the clients disconnect.
pub struct HostileRedis {
    refused: Arc<AtomicUsize>,
}

impl HostileRedis {
    /// Listens at the address of a server that has exited.
    ///
    /// # Panics
    /// If the program cannot listen there.
    pub fn listen(socket: &Path, attack: Attack) -> Self {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).expect("the address is free");
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    serve(stream, attack);
                    count.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { refused }
    }

    /// Waits until clients have ended this many connections.
    pub fn until_refused(&self, count: usize) {
        until("clients to end the connection", || {
            (self.refused.load(Ordering::Relaxed) >= count).then_some(())
        });
    }
}

/// Replies on a connection until the client disconnects.
pub fn serve(mut stream: impl Read + Write, attack: Attack) {
    let mut request = [0; 1 << 14];
    for _ in 0..attack.after {
        if !matches!(stream.read(&mut request), Ok(1..)) || stream.write_all(b"+OK\r\n").is_err() {
            return;
        }
    }
    if !matches!(stream.read(&mut request), Ok(1..)) || stream.write_all(attack.head.as_bytes()).is_err() {
        return;
    }
    let body = if attack.pause.is_some() { attack.body.to_owned() } else { attack.body.repeat(1 << 12) };
    while stream.write_all(body.as_bytes()).is_ok() {
        if let Some(pause) = attack.pause {
            std::thread::park_timeout(pause);
        }
    }
}
