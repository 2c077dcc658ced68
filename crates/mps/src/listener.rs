//! The process that listens on the socket in a pipe directory, as recorded by the kernel. The directory's name
//! does not identify it: any process can use that name, and in another mount namespace the same path is a
//! different directory.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

/// The process that listens on a control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// Pid in the caller's PID namespace, or `None` if the process is not in that namespace.
    pub pid: Option<u32>,
    /// Effective user of the process when it started to listen.
    pub uid: u32,
}

impl Listener {
    /// Connects without blocking. The daemon logs two lines about the connection, as for every CUDA program
    /// that starts.
    ///
    /// # Errors
    /// If no process is listening, or permission is denied; [`io::ErrorKind::WouldBlock`] if the backlog is
    /// full.
    pub fn of(pipes: &Path) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(&pipes.join("control"))?)?;
        let peer = getsockopt(&socket, PeerCredentials)?;
        Ok(Self { pid: u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0), uid: peer.uid() })
    }

    /// Returns whether the listener is this process. Compares the users if the listener's pid is unknown.
    pub fn is(&self, pid: u32, uid: Option<u32>) -> bool {
        self.pid.map_or(Some(self.uid) == uid, |own| own == pid)
    }
}

#[cfg(test)]
#[path = "tests/listener.rs"]
mod tests;
