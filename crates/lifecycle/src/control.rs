//! The control socket: requests and responses over a Unix socket, one JSON object per line. The kernel
//! identifies the client (`SO_PEERCRED`).

mod query;

use std::ffi::CString;
use std::future::Future;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::unistd::{Gid, Uid, User, getgrouplist};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::socket::Socket;

pub use query::{query, query_within};

/// Maximum size of a request in bytes.
const QUESTION_BYTES: usize = 64 * 1024;

/// Handler of requests.
pub trait Answers: Send + Sync + 'static {
    /// Handles a request, and decides whether this peer is permitted to make it.
    fn answer(&self, peer: &Peer, question: Value) -> impl Future<Output = Value> + Send;

    /// Returns a key for the user of a uid. The uids of one user share the user's places.
    fn user(&self, uid: u32) -> u32 {
        uid
    }

    /// Returns whether requests depend on the groups of a peer, which the name service must look up.
    fn needs_groups(&self) -> bool {
        true
    }
}

/// Limits of a control socket.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of clients. A further client replaces a client without a request in progress, or is
    /// refused.
    pub clients: usize,
    /// Maximum number of clients of one user. At this limit, a further client replaces one of this user.
    pub clients_of_user: usize,
    /// Time limit for sending a request and for reading the response. An idle client is disconnected after
    /// this time.
    pub client: Duration,
    /// Time limit for handling a request.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 16,
            clients_of_user: 16,
            client: Duration::from_secs(5),
            answer: Duration::from_secs(8),
        }
    }
}

/// Returns a response with an error.
pub fn refusal(why: &str) -> Value {
    json!({"ok": false, "error": why})
}

/// Serves until dropped, which removes the socket's file.
pub async fn serve(socket: Socket, answers: Arc<impl Answers>, limits: Limits) {
    let mut places = Places { most: limits.clients, most_of_user: limits.clients_of_user, taken: Vec::new() };
    let mut logged: Option<Instant> = None;
    let welcome = |stream: UnixStream| {
        // The kernel records credentials for every connection. A connection without them is refused.
        let Ok(uid) = stream.peer_cred().map(|peer| answers.user(peer.uid())) else { return };
        let Some(busy) = places.take(uid) else {
            if logged.is_none_or(|at| at.elapsed() >= LOG_PAUSE) {
                logged = Some(Instant::now());
                tracing::warn!(uid, "refuses clients of a socket, because too many are connected");
            }
            return turn_away(stream);
        };
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
    let peer = Peer::of(&stream, answers.needs_groups()).await?;
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

/// Deadline for the name service, which may be remote. If it does not respond, only the primary group
/// counts.
const PATIENCE: Duration = Duration::from_secs(1);
/// Minimum time between two log lines about refused clients.
const LOG_PAUSE: Duration = Duration::from_mins(1);
/// Permits one query at a time, so that a hung name service does not occupy more and more threads.
static ASKING: Semaphore = Semaphore::const_new(1);

/// The peer of a connection, as recorded by the kernel at connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Pid for the log. It may have been reused since. `None` if the process has no pid in this
    /// namespace.
    pub pid: Option<i32>,
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Groups as reported by the name service. The process's own groups can only be read by its pid,
    /// which may be reused.
    pub groups: Vec<u32>,
}

impl Peer {
    async fn of(stream: &UnixStream, needs_groups: bool) -> io::Result<Self> {
        let of = stream.peer_cred()?;
        let (uid, gid) = (of.uid(), of.gid());
        // Root needs no group.
        let groups = if uid == 0 || !needs_groups { Vec::new() } else { groups(uid, gid).await };
        Ok(Self { pid: of.pid().filter(|pid| *pid > 0), uid, gid, groups })
    }

    /// Returns whether the user is root or a member of this group.
    pub fn is_root_or_in(&self, group: u32) -> bool {
        self.uid == 0 || self.gid == group || self.groups.contains(&group)
    }
}

async fn groups(uid: u32, gid: u32) -> Vec<u32> {
    let Ok(Ok(permit)) = timeout(PATIENCE, ASKING.acquire()).await else { return Vec::new() };
    let asked = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        groups_of(uid, gid)
    });
    timeout(PATIENCE, asked).await.ok().and_then(Result::ok).flatten().unwrap_or_default()
}

fn groups_of(uid: u32, gid: u32) -> Option<Vec<u32>> {
    let name = User::from_uid(Uid::from_raw(uid)).ok()??.name;
    let groups = getgrouplist(&CString::new(name).ok()?, Gid::from_raw(gid)).ok()?;
    Some(groups.into_iter().map(Gid::as_raw).collect())
}

// A control socket serves a limited number of clients. Idle clients must not lock out an administrator, so
// at the limit, a new client replaces an idle client: the earliest one of the user with the most clients.

/// A connected client.
struct Client {
    uid: u32,
    /// Whether it waits for a response.
    busy: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Client {
    fn is_idle(&self) -> bool {
        !self.busy.load(Ordering::Relaxed)
    }
}

/// Clients, in order of arrival.
struct Places {
    most: usize,
    most_of_user: usize,
    taken: Vec<Client>,
}

impl Places {
    /// Takes a place for a client of this user and returns its busy flag; `None` if all clients that it could replace
    /// are busy.
    fn take(&mut self, uid: u32) -> Option<Arc<AtomicBool>> {
        self.taken.retain(|client| !client.task.is_finished());
        if self.taken.iter().filter(|client| client.uid == uid).count() >= self.most_of_user {
            let own = |client: &Client| client.uid == uid && client.is_idle();
            let place = self.taken.iter().position(own)?;
            self.taken.remove(place).task.abort();
        } else if self.taken.len() >= self.most {
            self.taken.remove(self.least(uid)?).task.abort();
        }
        Some(Arc::default())
    }

    fn put(&mut self, client: Client) {
        self.taken.push(client);
    }

    /// Returns the index of the client to replace: the earliest idle client of the user with the most clients;
    /// of users with equally many, root comes last.
    fn least(&self, uid: u32) -> Option<usize> {
        let of = |uid| self.taken.iter().filter(|client| client.uid == uid).count();
        let rank = |client: &Client| {
            let new = usize::from(client.uid == uid);
            (of(client.uid) + new, client.uid != 0)
        };
        let silent = self.taken.iter().enumerate().filter(|(_, client)| client.is_idle());
        // `max_by_key` returns the last of equal entries.
        silent.rev().max_by_key(|(_, client)| rank(client)).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_group_members_may() {
        let peer = |uid, gid, groups: &[u32]| Peer { pid: Some(1), uid, gid, groups: groups.to_vec() };
        let cases = [
            (peer(0, 0, &[]), true),
            (peer(1000, 990, &[]), true),
            (peer(1000, 1000, &[27, 990]), true),
            (peer(1000, 1000, &[27, 0]), false),
            (peer(1000, 0, &[]), false),
        ];
        for (peer, expected) in cases {
            assert_eq!(peer.is_root_or_in(990), expected, "{peer:?}");
        }
    }

    #[test]
    fn the_name_service_knows_roots_groups() {
        assert!(groups_of(0, 0).is_some_and(|groups| groups.contains(&0)));
        assert_eq!(groups_of(u32::MAX - 7, 0), None);
    }

    /// Fills 4 places with clients (uid, whether busy), and returns the index of the one that a client of `uid`
    /// replaces.
    fn least(taken: &[(u32, bool)], uid: u32, most_of_user: usize) -> Option<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts");
        let mut places = Places { most: 4, most_of_user, taken: Vec::new() };
        let mut tasks = Vec::new();
        for (uid, is_busy) in taken {
            let task = runtime.spawn(std::future::pending::<()>());
            places.put(Client { uid: *uid, busy: Arc::new((*is_busy).into()), task: task.abort_handle() });
            tasks.push(task.abort_handle().id());
        }
        places.take(uid)?;
        tasks.iter().position(|task| places.taken.iter().all(|client| client.task.id() != *task))
    }

    #[test]
    fn user_with_most_clients_is_replaced_and_root_last() {
        let cases = [
            (vec![(0, false), (7, false), (7, false), (8, false)], 0, Some(1)),
            (vec![(0, false), (7, true), (7, false), (8, false)], 0, Some(2)),
            (vec![(0, false), (8, false), (7, false), (7, false)], 8, Some(1)),
            (vec![(0, false), (7, false), (8, false), (9, false)], 0, Some(0)),
            (vec![(0, false), (7, false), (8, false), (9, false)], 7, Some(1)),
            (vec![(0, false), (7, false), (8, false), (9, false)], 6, Some(1)),
            (vec![(0, true), (7, true), (7, true), (8, true)], 0, None),
        ];
        for (taken, uid, expected) in cases {
            assert_eq!(least(&taken, uid, 4), expected, "{uid} comes to {taken:?}");
        }
    }

    #[test]
    fn user_replaces_only_own_clients_at_the_limit_of_a_user() {
        let cases = [
            (vec![(7, false), (7, false), (8, false)], 7, Some(0)),
            (vec![(8, false), (7, true), (7, false)], 7, Some(2)),
            (vec![(8, false), (7, true), (7, true)], 7, None),
            (vec![(7, false), (7, false), (8, false), (9, false)], 9, Some(0)),
        ];
        for (taken, uid, expected) in cases {
            assert_eq!(least(&taken, uid, 2), expected, "{uid} comes to {taken:?}");
        }
    }
}
