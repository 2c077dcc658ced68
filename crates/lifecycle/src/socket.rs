//! Unix sockets: permissions, removal of stale sockets, and connecting with a deadline.

#![expect(clippy::disallowed_methods, reason = "a deadline over several waits needs a clock")]

use std::fs::{Permissions, remove_file, set_permissions, symlink_metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::exit::plain;

/// Pause after a failure to accept a client, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Who can connect to a socket, as its permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// Its owner and group.
    Group = 0o660,
    /// All users.
    All = 0o666,
}

/// A listening socket with its file.
#[derive(Debug)]
pub struct Socket {
    /// The listener.
    pub listener: UnixListener,
    /// Its file.
    pub file: File,
}

/// The file of a socket. It is removed on drop, unless another program has replaced it, or this program's user has
/// changed and may not remove it. The next start replaces the remaining file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    inode: (u64, u64),
}

/// Connects. Waits at most `limit` for a daemon whose backlog is full.
///
/// # Errors
/// If no process is listening, permission is denied, or the connection is not accepted in time.
pub fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// A connection with one deadline for all reads and writes.
#[derive(Debug)]
pub struct Timed {
    stream: UnixStream,
    end: Instant,
}

impl Timed {
    /// Connects; `limit` applies to that and to all reads and writes.
    ///
    /// # Errors
    /// As for [`connect`].
    pub fn connect(path: &Path, limit: Duration) -> io::Result<Self> {
        let end = Instant::now() + limit;
        Ok(Self { stream: connect(path, limit)?, end })
    }

    /// Wraps a connection; `limit` applies to all its reads and writes.
    pub fn of(stream: UnixStream, limit: Duration) -> Self {
        Self { stream, end: Instant::now() + limit }
    }

    /// Sets the deadline for the following reads and writes.
    pub fn expect_within(&mut self, limit: Duration) {
        self.end = Instant::now() + limit;
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    /// Opens a listening socket for its owner and group, and replaces a stale socket. `what` is its name in errors, such
    /// as `stream`.
    ///
    /// # Errors
    /// If a process is listening on the socket, the file is not a socket, or the directory cannot
    /// be used.
    pub fn open(path: &Path, what: &str) -> Result<Self> {
        Self::open_for(Clients::Group, path, what)
    }

    /// Like [`Self::open`], for these clients.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_for(clients: Clients, path: &Path, what: &str) -> Result<Self> {
        let bound = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                clear(path, what)?;
                UnixListener::bind(path)
            }
            bound => bound,
        };
        bound.and_then(|listener| Self::prepare(listener, path, clients)).map_err(|error| {
            let (name, why) = (path.display(), plain(&error));
            anyhow!("cannot open the {what} socket {name}: {why}; its directory must exist and be writable")
        })
    }

    /// Accepts clients until dropped, which removes the file. `clients` names them in the log.
    pub async fn accept(self, clients: &str, mut welcome: impl FnMut(tokio::net::UnixStream)) {
        let Self { listener, file: _file } = self;
        let listener = match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept {clients}"),
        };
        loop {
            match listener.accept().await {
                Ok((stream, _)) => welcome(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept {clients}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Returns the group whose members can connect.
    ///
    /// # Errors
    /// If the file no longer exists.
    pub fn group(&self) -> io::Result<u32> {
        symlink_metadata(&self.file.path).map(|metadata| metadata.gid())
    }

    fn prepare(listener: UnixListener, path: &Path, clients: Clients) -> io::Result<Self> {
        let file = File { path: path.to_owned(), inode: inode(path)? };
        set_permissions(path, Permissions::from_mode(clients as u32))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, file })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode)
            && let Err(error) = remove_file(&self.path)
            && error.kind() != io::ErrorKind::PermissionDenied
        {
            tracing::warn!(%error, socket = %self.path.display(), "cannot remove the socket");
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes a stale socket, but no other file.
fn clear(path: &Path, what: &str) -> Result<()> {
    let name = path.display();
    if !symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        bail!("cannot open the {what} socket {name}: a file with this name exists and is not a socket");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(remove_file(path)
            .map_err(|error| anyhow!("cannot replace the stale {what} socket {name}: {}", plain(&error)))?),
        Err(error) => bail!("cannot open the {what} socket {name}: {}", plain(&error)),
        Ok(_) => {
            bail!(
                "cannot open the {what} socket {name}: another program listens on it; check whether an instance is already running"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("stream.sock");
        drop(UnixListener::bind(&path).expect("the path is free"));
        let socket = Socket::open(&path, "stream").expect("no process is listening on the socket");
        let mode = symlink_metadata(&path).expect("the socket exists").permissions().mode();
        assert_eq!(mode & 0o777, Clients::Group as u32);
        let error = Socket::open(&path, "stream").expect_err("this process is listening on the socket");
        assert!(error.to_string().contains("another program listens"), "{error}");
        drop(socket);
        assert!(!path.exists(), "the socket is removed with its server");
    }

    #[test]
    fn what_is_not_ours_stays() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("notes");
        set_up_file(&path);
        assert!(
            Socket::open(&path, "stream")
                .expect_err("the path is not a socket")
                .to_string()
                .contains("not a socket")
        );
        assert!(path.exists());
        let nowhere = directory.path().join("missing/stream.sock");
        let error = Socket::open(&nowhere, "stream").expect_err("there is no such directory").to_string();
        assert!(error.contains("no such file or directory"), "{error}");
        let socket = Socket::open(&directory.path().join("a"), "stream").expect("the path is free");
        std::fs::rename(&path, directory.path().join("a")).expect("both paths are in one directory");
        drop(socket);
        assert!(directory.path().join("a").exists(), "another program's file is not removed");
    }

    #[expect(clippy::disallowed_methods, reason = "a file that is in the way")]
    fn set_up_file(path: &Path) {
        std::fs::write(path, "notes").expect("the directory is writable");
    }
}
