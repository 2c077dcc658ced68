//! Tests sockets on which this process listens.

use std::os::fd::OwnedFd;

use nix::sys::socket::{Backlog, bind, listen};

use super::*;

fn listening(directory: &Path, backlog: i32) -> OwnedFd {
    let server = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(server.as_raw_fd(), &UnixAddr::new(&directory.join("control")).unwrap()).unwrap();
    listen(&server, Backlog::new(backlog).unwrap()).unwrap();
    server
}

#[test]
fn listener_is_identified_by_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(Listener::of(directory.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    let server = listening(directory.path(), 8);
    let peer = Listener::of(directory.path()).unwrap();
    let own = (std::process::id(), nix::unistd::geteuid().as_raw());
    assert_eq!((peer.pid, peer.uid), (Some(own.0), own.1));
    assert!(peer.is(own.0, None) && !peer.is(own.0 + 1, Some(own.1)));
    let hidden = Listener { pid: None, ..peer };
    assert!(hidden.is(7, Some(own.1)) && !hidden.is(7, Some(own.1 + 1)) && !hidden.is(7, None));
    drop(server);
    assert_eq!(Listener::of(directory.path()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn full_backlog_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let _server = listening(directory.path(), 0);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let waiting: Vec<OwnedFd> = (0..4)
        .map(|_| {
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
            let _ = connect(socket.as_raw_fd(), &UnixAddr::new(&directory.path().join("control")).unwrap());
            socket
        })
        .collect();
    assert_eq!(Listener::of(directory.path()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(waiting);
}
