//! Reads the exporter's snapshots from its Unix socket, if only a trusted user can have created the socket.

use std::fs::symlink_metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_lifecycle::file::{self, PATIENCE};
use bailiff_lifecycle::socket;
use bailiff_snapshot::{ProcessKey, wire};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::UCred;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::process_table::Processes;

/// Maximum length of a snapshot, in bytes. A snapshot with 16,384 processes needs a tenth of it.
const LONGEST_LINE: u64 = 64 << 20;
/// Size of the read buffer, in bytes.
const CHUNK: usize = 64 << 10;
/// Shortest and longest wait between connection attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Path of the stream socket, and its permitted owners.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path of the socket.
    pub path: PathBuf,
    /// Trusted owners of the socket, besides root and our own user.
    pub owners: Vec<u32>,
    /// Path of `/proc`, used to identify the exporter.
    pub procfs: PathBuf,
}

/// Event of the stream.
#[derive(Debug)]
pub enum Arrival {
    /// Connected. Contains the process that listens on the socket, if it could be identified.
    Connected(Option<ProcessKey>),
    /// Not connected, or disconnected.
    Lost(StreamError),
    /// A valid snapshot.
    Snapshot(Box<wire::Snapshot>),
    /// A line that is not a valid snapshot.
    Malformed(String),
}

/// Error of connecting to or reading the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// No process listens on the socket.
    #[error("no process listens on {0}; check that bailiff-exporter is running with --stream")]
    NoListener(String),
    /// The socket may have been created by an untrusted user.
    #[error("{0}")]
    Distrusted(String),
    /// The stream was closed or failed.
    #[error("the stream has ended: {0}")]
    Ended(String),
    /// The file system of the socket does not respond.
    #[error("{0}")]
    Silent(String),
}

bailiff_snapshot::label_values! {
/// Reason for a missing stream, as a label value.
pub enum Reason {
    /// The socket is missing, or no process listens on it: `bailiff-exporter` is not running, or runs without
    /// `--stream`.
    NoListener = "no_listener",
    /// The socket or its directory belongs to a user other than root, the enforcer's user and `--stream.user`;
    /// other users can write to the directory; or another user's process listens. The log shows the reason.
    Distrusted = "distrusted",
    /// The stream ended after it had been read, for example because the exporter was restarted.
    Ended = "ended",
    /// The file system of the socket does not respond, or the exporter does not accept the connection.
    NoAnswer = "no_answer",
}
}

impl StreamError {
    /// Returns the reason as a label value.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NoListener(_) => Reason::NoListener,
            Self::Distrusted(_) => Reason::Distrusted,
            Self::Ended(_) => Reason::Ended,
            Self::Silent(_) => Reason::NoAnswer,
        }
    }
}

/// Sends the events of the stream until the receiver is closed. Reconnects after errors.
pub async fn follow(source: Source, to: mpsc::Sender<Arrival>) {
    let mut pause = PAUSES.0;
    loop {
        let error = match connect(&source).await {
            Ok((stream, exporter)) => {
                pause = PAUSES.0;
                if to.send(Arrival::Connected(exporter)).await.is_err() {
                    return;
                }
                read(stream, &to).await
            }
            Err(error) => error,
        };
        if to.send(Arrival::Lost(error)).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Connects on a separate thread, because access to the path of the socket may hang.
async fn connect(source: &Source) -> Result<(UnixStream, Option<ProcessKey>), StreamError> {
    let theirs = source.clone();
    let connected = spawn_blocking(move || {
        let path = theirs.path.clone();
        file::within(&path, PATIENCE, move |_| Ok(connected(&theirs)))
    });
    let silent = |error: io::Error| StreamError::Silent(format!("{}: {error}", source.path.display()));
    let (stream, owner) = connected.await.map_err(io::Error::from).flatten().map_err(silent)??;
    let ended = |error: io::Error| StreamError::Ended(error.to_string());
    let stream = UnixStream::from_std(stream).map_err(ended)?;
    let peer = stream.peer_cred().map_err(ended)?;
    let uid = peer.uid();
    if uid == owner {
        let listener = listener(source, &peer);
        Ok((stream, listener))
    } else {
        let path = source.path.display();
        Err(StreamError::Distrusted(format!(
            "{path} belongs to uid {owner}, but a process of uid {uid} listens on it"
        )))
    }
}

fn connected(source: &Source) -> Result<(std::os::unix::net::UnixStream, u32), StreamError> {
    let owner = owner(source)?;
    let stream = socket::connect(&source.path, PATIENCE)
        .and_then(|stream| stream.set_nonblocking(true).map(|()| stream))
        .map_err(|_| StreamError::NoListener(source.path.display().to_string()))?;
    Ok((stream, owner))
}

/// Returns the process that listens on the socket: the pid from the kernel's peer credentials, with its start
/// time from `/proc`. Pid 1 is excluded, because it may have created the socket but is not the exporter.
fn listener(source: &Source, peer: &UCred) -> Option<ProcessKey> {
    let pid = u32::try_from(peer.pid()?).ok().filter(|pid| *pid > 1)?;
    let person = Processes::open(&source.procfs, "").ok()?.own_person(pid)?;
    // A process of root can change its user after it has opened the socket (`--web.user` of the exporter).
    (person.uid == peer.uid() || peer.uid() == 0).then_some(person.stat.key)
}

/// Returns the owner of the socket if it is trusted.
fn owner(source: &Source) -> Result<u32, StreamError> {
    let path = source.path.display();
    let metadata = symlink_metadata(&source.path).map_err(|_| StreamError::NoListener(path.to_string()))?;
    if !metadata.file_type().is_socket() {
        return Err(StreamError::Distrusted(format!("{path} is not a socket")));
    }
    let trusted =
        |uid: u32| uid == 0 || uid == rustix::process::geteuid().as_raw() || source.owners.contains(&uid);
    if !trusted(metadata.uid()) {
        let uid = metadata.uid();
        return Err(StreamError::Distrusted(format!(
            "{path} belongs to uid {uid}, which is not root, the enforcer's user, or a user given by --stream.user"
        )));
    }
    let directory = source.path.parent().unwrap_or(Path::new("/"));
    let above = std::fs::metadata(directory).map_err(|error| StreamError::Distrusted(error.to_string()))?;
    let by_others = above.mode() & 0o002 != 0 && above.mode() & 0o1000 == 0;
    if by_others || !trusted(above.uid()) {
        return Err(StreamError::Distrusted(format!(
            "other users can create a socket in {}",
            directory.display()
        )));
    }
    Ok(metadata.uid())
}

async fn read(stream: UnixStream, to: &mpsc::Sender<Arrival>) -> StreamError {
    let mut stream = BufReader::with_capacity(CHUNK, stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let arrival = match next(&mut stream, &mut line).await {
            Ok(true) => match wire::parse(&line) {
                Ok(snapshot) => Arrival::Snapshot(Box::new(snapshot)),
                Err(error) => Arrival::Malformed(error.to_string()),
            },
            Ok(false) => return StreamError::Ended("the exporter closed it".to_owned()),
            Err(error) => return StreamError::Ended(error.to_string()),
        };
        if to.send(arrival).await.is_err() {
            return StreamError::Ended("the enforcer closed it".to_owned());
        }
        // Frees the memory of a long line before the next snapshot.
        line.shrink_to(CHUNK);
    }
}

/// Reads a line; returns false at the end of the stream.
async fn next(stream: &mut BufReader<UnixStream>, line: &mut Vec<u8>) -> io::Result<bool> {
    let read = (&mut *stream).take(LONGEST_LINE).read_until(b'\n', line).await?;
    if read as u64 == LONGEST_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than any snapshot"));
    }
    Ok(line.ends_with(b"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::net::UnixListener;

    fn source(directory: &tempfile::TempDir) -> Source {
        Source { path: directory.path().join("stream.sock"), owners: Vec::new(), procfs: "/proc".into() }
    }

    #[test]
    fn only_an_owner_to_be_believed_is_believed() {
        let directory = tempfile::tempdir().unwrap();
        let mut source = source(&directory);
        assert!(matches!(owner(&source), Err(StreamError::NoListener(_))));
        std::fs::create_dir(&source.path).unwrap();
        assert!(matches!(owner(&source), Err(StreamError::Distrusted(_))), "a directory is no socket");
        std::fs::remove_dir(&source.path).unwrap();
        let _listener = UnixListener::bind(&source.path).unwrap();
        assert!(owner(&source).is_ok());
        set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(owner(&source), Err(StreamError::Distrusted(_))), "anybody could have put it there");
        set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&source.path, Some(4242), None).unwrap();
            assert!(matches!(owner(&source), Err(StreamError::Distrusted(_))));
            source.owners.push(4242);
            assert_eq!(owner(&source), Ok(4242));
        }
    }

    #[tokio::test]
    async fn exporter_is_the_process_that_listens() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        let _listener = UnixListener::bind(&source.path).unwrap();
        let (_, exporter) = connect(&source).await.unwrap();
        let own =
            Processes::open(Path::new("/proc"), "").unwrap().person(std::process::id()).unwrap().unwrap();
        assert_eq!(exporter, Some(own.stat.key));
        let elsewhere = Source { procfs: directory.path().to_owned(), ..source };
        assert_eq!(connect(&elsewhere).await.unwrap().1, None, "pids of another namespace name others");
    }

    #[tokio::test]
    async fn lines_come_one_by_one_and_invalid_ones_are_reported() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (to, mut from) = mpsc::channel(8);
        tokio::io::AsyncWriteExt::write_all(&mut far, b"{\"version\":1}\nnonsense\ncut").await.unwrap();
        drop(far);
        assert_eq!(read(near, &to).await.reason(), Reason::Ended);
        assert!(matches!(from.recv().await, Some(Arrival::Malformed(_))));
        assert!(matches!(from.recv().await, Some(Arrival::Malformed(_))));
        drop(to);
        assert!(from.recv().await.is_none(), "a line that was cut is no line");
    }
}
