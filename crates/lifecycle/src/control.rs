//! The control socket: requests and responses over a Unix socket, one JSON object per line. The kernel
//! identifies the client (`SO_PEERCRED`).

mod peer;
mod places;
mod query;

use std::future::Future;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;

pub use peer::Peer;
use places::{Client, Places};
pub use query::{query, query_within};

use crate::socket::Socket;

/// Maximum size of a request in bytes.
const QUESTION_BYTES: usize = 64 * 1024;

/// Handler of requests.
pub trait Answers: Send + Sync + 'static {
    /// Handles a request, and decides whether this peer is permitted to make it.
    fn answer(&self, peer: &Peer, question: Value) -> impl Future<Output = Value> + Send;
}

/// Limits of a control socket.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of clients. A further client replaces a client without a request in progress, or is
    /// refused.
    pub clients: usize,
    /// Time limit for sending a request and for reading the response. An idle client is disconnected after
    /// this time.
    pub client: Duration,
    /// Time limit for handling a request.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { clients: 16, client: Duration::from_secs(5), answer: Duration::from_secs(8) }
    }
}

/// Returns a response with an error.
#[must_use]
pub fn refusal(why: &str) -> Value {
    json!({"ok": false, "error": why})
}

/// Serves until dropped, which removes the socket's file.
pub async fn serve(socket: Socket, answers: Arc<impl Answers>, limits: Limits) {
    let mut places = Places::new(limits.clients);
    let welcome = |stream: UnixStream| {
        // The kernel has credentials for every connection; without them it is refused.
        let Ok(uid) = stream.peer_cred().map(|peer| peer.uid()) else { return };
        let Some(busy) = places.take(uid) else { return turn_away(stream) };
        let (answers, theirs) = (Arc::clone(&answers), Arc::clone(&busy));
        let task = tokio::spawn(async move {
            if let Err(error) = converse(stream, (answers, theirs), limits).await {
                tracing::debug!(%error, "a client of the control socket disconnected");
            }
        });
        places.put(Client { uid, busy, task: task.abort_handle() });
    };
    socket.accept("clients of the control socket", welcome).await;
}

/// Refuses a client. The response fits into the empty socket buffer, so errors are ignored.
fn turn_away(stream: UnixStream) {
    tracing::warn!("refused a control client, because too many are connected");
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(&line(&refusal("too many clients; try again")));
    }
}

/// Input from a client.
enum Received {
    Question(Value),
    Nonsense(&'static str),
    TooMuch,
    Nothing,
}

async fn converse(
    stream: UnixStream,
    (answers, busy): (Arc<impl Answers>, Arc<AtomicBool>),
    limits: Limits,
) -> io::Result<()> {
    let peer = Peer::of(&stream).await?;
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    loop {
        let received = timeout(limits.client, next(&mut from)).await??;
        let last = matches!(received, Received::TooMuch);
        busy.store(true, Ordering::Relaxed);
        let answer = match received {
            Received::Question(question) => {
                match timeout(limits.answer, answers.answer(&peer, question)).await {
                    Ok(answer) => answer,
                    Err(_) => refusal("the request was not handled in time"),
                }
            }
            Received::Nonsense(why) => refusal(why),
            Received::TooMuch => refusal("the request exceeds 64 KiB"),
            Received::Nothing => return Ok(()),
        };
        busy.store(false, Ordering::Relaxed);
        timeout(limits.client, to.write_all(&line(&answer))).await??;
        if last {
            return Ok(());
        }
    }
}

async fn next(from: &mut BufReader<OwnedReadHalf>) -> io::Result<Received> {
    let mut line = Vec::new();
    from.take(QUESTION_BYTES as u64 + 1).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(Received::Nothing);
    }
    if line.len() > QUESTION_BYTES {
        return Ok(Received::TooMuch);
    }
    Ok(match serde_json::from_slice(&line) {
        Ok(question @ Value::Object(_)) => Received::Question(question),
        Ok(_) => Received::Nonsense("a request must be a JSON object"),
        Err(_) => Received::Nonsense("a request must be a line of JSON"),
    })
}

fn line(answer: &Value) -> Vec<u8> {
    // `Value` is printed on one line; the line break ends the response.
    format!("{answer}\n").into_bytes()
}
