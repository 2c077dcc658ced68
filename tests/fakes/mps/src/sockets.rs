//! Sockets that preserve packet boundaries.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen, recv,
    socket_with,
};

/// Maximum length of a packet.
const MOST: usize = 64 << 10;

/// Connects to a daemon.
///
/// # Errors
/// If no process is listening.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

pub(crate) fn bound(path: &Path) -> io::Result<OwnedFd> {
    let socket = new()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 64)?;
    Ok(socket)
}

fn new() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a packet. An empty text is sent as a packet too.
///
/// # Errors
/// If the peer has disconnected.
pub fn send(socket: impl AsFd, text: &str) -> io::Result<()> {
    let packet = format!("{text}\0");
    rustix::net::send(socket, packet.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Returns the next packet, or `None` if the peer has disconnected.
///
/// # Errors
/// If the packet cannot be read.
pub fn receive(socket: impl AsFd) -> io::Result<Option<String>> {
    let mut packet = vec![0; MOST];
    match recv(socket, packet.as_mut_slice(), RecvFlags::empty()) {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Ok(None),
        Ok((read, _)) => {
            packet.truncate(read);
            let text = String::from_utf8_lossy(&packet).into_owned();
            Ok(Some(text.trim_end_matches('\0').to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}
