#![expect(clippy::disallowed_methods, reason = "the one file that starts processes")]
//! The launcher: a process that keeps the capabilities and does nothing but start sampling workers. It
//! touches neither the driver nor the network, so it is always there when a worker hangs.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The first argument of a launcher process.
pub const LAUNCHER_ROLE: &str = "sampling-launcher";
/// The first argument of a worker process.
pub const WORKER_ROLE: &str = "sampling-worker";

/// Starting a process takes milliseconds; a launcher that is silent for this long is not coming back.
const PATIENCE: Duration = Duration::from_secs(5);

/// The near end of a launcher process.
pub struct Launcher {
    socket: OwnedFd,
    /// Kept so that the launcher is reaped with us; it ends when the socket closes.
    _process: Child,
}

/// A worker process, as the supervisor holds it.
pub(crate) struct Started {
    pub(crate) stream: UnixStream,
    pidfd: OwnedFd,
}

impl Started {
    /// Sends SIGKILL, which a task in an uninterruptible wait takes only once that ends.
    pub(crate) fn kill(&self) {
        if let Err(error) = pidfd_send_signal(&self.pidfd, Signal::KILL) {
            tracing::debug!("the sampling worker was already gone: {error}");
        }
    }
}

impl Launcher {
    /// Starts the launcher, with the rights that this process still has. The program must call [`serve`]
    /// when its first argument is [`LAUNCHER_ROLE`], and [`crate::worker::serve`] for [`WORKER_ROLE`].
    ///
    /// # Errors
    /// Where no process can be started.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = pair(SocketType::SEQPACKET)?;
        let process = role(LAUNCHER_ROLE).stdin(theirs).stdout(Stdio::null()).spawn()?;
        Ok(Self { socket: ours, _process: process })
    }

    /// Asks for a worker.
    pub(crate) fn worker(&self) -> io::Result<Started> {
        rustix::net::send(&self.socket, b"+", SendFlags::NOSIGNAL)?;
        let timeout = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the launcher of sampling workers is silent",
            ));
        }
        let mut received = receive_descriptors(self.socket.as_fd())?.into_iter();
        match (received.next(), received.next()) {
            (Some(stream), Some(pidfd)) => Ok(Started { stream: stream.into(), pidfd }),
            _ => Err(io::Error::other("no sampling worker could be started")),
        }
    }
}

/// The launcher process itself: a worker for each request on standard input, until that closes.
#[must_use]
pub fn serve() -> ExitCode {
    let stdin = io::stdin();
    let mut children: Vec<Child> = Vec::new();
    let mut request = [0; 1];
    while matches!(rustix::net::recv(stdin.as_fd(), &mut request, RecvFlags::empty()), Ok((1, _))) {
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let answered = match start_worker() {
            Ok((child, stream, pidfd)) => {
                children.push(child);
                send_descriptors(stdin.as_fd(), &[stream.as_fd(), pidfd.as_fd()])
            }
            Err(_) => send_descriptors(stdin.as_fd(), &[]),
        };
        if answered.is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn start_worker() -> io::Result<(Child, OwnedFd, OwnedFd)> {
    let (ours, theirs) = pair(SocketType::STREAM)?;
    let child = role(WORKER_ROLE).stdin(theirs.try_clone()?).stdout(theirs).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(pid.ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
    Ok((child, ours, pidfd))
}

fn role(role: &str) -> Command {
    // `/proc/self/exe` names this very program, also after an upgrade has replaced the file.
    let mut command = Command::new("/proc/self/exe");
    // A Ctrl-C at the terminal is for the supervisor; when that ends, the sockets close and so do these.
    command.process_group(0);
    // NVML_MPS_DEVICE_ENUMERATION gives NVML an MPS client's view, in which process lists are missing.
    command.arg(role).env_remove("NVML_MPS_DEVICE_ENUMERATION");
    command
}

fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

fn send_descriptors(socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_descriptors(socket: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let messages = control.drain();
    Ok(messages
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        })
        .collect())
}
