//! The stream: every snapshot as a line of JSON on a Unix socket. A slow client misses lines and gets the
//! newest one; it never delays sampling or other clients.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bailiff_http::Bytes;
use bailiff_lifecycle::socket::Socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;

use crate::schedule::Latest;

/// Maximum number of concurrent clients; others are disconnected.
const MOST_CLIENTS: u64 = 64;
/// Maximum time for writing one line. A slower client is disconnected, because it would keep an old line in
/// memory.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Number of connected clients.
#[derive(Debug, Clone, Default)]
pub struct Clients(Arc<AtomicU64>);

impl Clients {
    /// Returns the number of connected clients.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn enter(&self) -> Option<Present> {
        let enter = |count| (count < MOST_CLIENTS).then_some(count + 1);
        self.0.fetch_update(Relaxed, Relaxed, enter).ok().map(|_| Present(self.clone()))
    }
}

/// Counts one client until it is dropped.
struct Present(Clients);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// Serves the stream until the future is dropped, which also removes the socket file.
pub async fn serve(socket: Socket, latest: Latest, clients: Clients) {
    socket.accept("clients of the stream", |stream| welcome(stream, &latest, &clients)).await;
}

fn welcome(stream: UnixStream, latest: &Latest, clients: &Clients) {
    let Some(present) = clients.enter() else {
        tracing::warn!(most = MOST_CLIENTS, "a stream client was refused, because too many are connected");
        return;
    };
    let latest = latest.clone();
    tokio::spawn(async move {
        let _present = present;
        if let Err(error) = feed(stream, latest).await {
            tracing::debug!(%error, "a stream client has disconnected");
        }
    });
}

/// Sends the latest line at once, then each new one.
async fn feed(stream: UnixStream, mut latest: Latest) -> io::Result<()> {
    let (mut from, mut to) = stream.into_split();
    latest.mark_changed();
    loop {
        tokio::select! {
            changed = latest.changed() => if changed.is_err() { return Ok(()) },
            gone = until_gone(&mut from) => return gone,
        }
        if let Some(line) = newest_line(&mut latest) {
            timeout(WRITE_LIMIT, to.write_all(&line)).await??;
        }
    }
}

fn newest_line(latest: &mut Latest) -> Option<Bytes> {
    latest.borrow_and_update().clone().map(|published| published.line())
}

/// Waits until the client disconnects; its input is ignored.
async fn until_gone(from: &mut OwnedReadHalf) -> io::Result<()> {
    let mut ignored = [0; 256];
    while from.read(&mut ignored).await? > 0 {}
    Ok(())
}
