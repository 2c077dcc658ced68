#![expect(clippy::disallowed_methods, reason = "the one file that starts processes")]
//! The launcher: a process that keeps the capabilities and does nothing but start sampling workers. It
//! touches neither the driver nor the network, so it is always there when a worker hangs.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::settings::{Claims, Commands, SamplerSettings};

/// The first argument of a launcher process.
pub const LAUNCHER_ROLE: &str = "sampling-launcher";
/// The first argument of a worker process.
pub const WORKER_ROLE: &str = "sampling-worker";

/// Starting a process takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// The argument of a worker that is to leave command lines alone.
const PLAIN: &str = "plain";

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

/// What kind of worker is asked for: a byte on the launcher's socket, and all that can be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// As the settings say.
    Whole = b'+' as isize,
    /// One that leaves command lines and environments alone, since reading one hung.
    Plain = b'-' as isize,
}

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// Workers can no longer be started: only the launcher has the privileges.
    #[error("the launcher of sampling workers has ended")]
    LauncherGone,
    /// This time.
    #[error("no sampling worker could be started: {0}")]
    ThisTime(#[from] io::Error),
}

impl Started {
    /// Sends SIGKILL, which a task in an uninterruptible wait takes only once that ends.
    pub(crate) fn kill(&self) {
        if let Err(error) = pidfd_send_signal(&self.pidfd, Signal::KILL) {
            tracing::debug!("the sampling worker was already gone: {error}");
        }
    }

    /// Whether the process has ended: all of it, its way through the driver's `close` included.
    pub(crate) fn ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl Launcher {
    /// Starts the launcher, with the rights that this process still has. What workers read is settled here and
    /// cannot be changed later. The program must call [`serve`] when its first argument is [`LAUNCHER_ROLE`],
    /// and [`crate::worker::serve`] for [`WORKER_ROLE`].
    ///
    /// # Errors
    /// If no process can be started, or a path is not UTF-8.
    pub fn start(settings: &SamplerSettings) -> io::Result<Self> {
        let (ours, theirs) = pair(SocketType::SEQPACKET)?;
        let settings = serde_json::to_string(settings)?;
        let process = role(LAUNCHER_ROLE).arg(settings).stdin(theirs).stdout(Stdio::null()).spawn()?;
        Ok(Self { socket: ours, _process: process })
    }

    /// Requests a worker.
    pub(crate) fn worker(&self, asked: Asked) -> Result<Started, WorkerError> {
        let gone = |error: Errno| match error {
            Errno::PIPE | Errno::CONNRESET => WorkerError::LauncherGone,
            error => WorkerError::ThisTime(error.into()),
        };
        rustix::net::send(&self.socket, &[asked as u8], SendFlags::NOSIGNAL).map_err(gone)?;
        let timeout = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)).map_err(gone)? == 0 {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        let Some(received) = receive_descriptors(self.socket.as_fd()).map_err(gone)? else {
            return Err(WorkerError::LauncherGone);
        };
        let mut received = received.into_iter();
        match (received.next(), received.next()) {
            (Some(stream), Some(pidfd)) => Ok(Started { stream: stream.into(), pidfd }),
            _ => Err(io::Error::other("the system starts no process").into()),
        }
    }
}

/// The launcher process itself: a worker for each request on standard input, until that closes.
#[must_use]
pub fn serve() -> ExitCode {
    let Some(settings) = std::env::args_os().nth(2) else { return ExitCode::FAILURE };
    let stdin = io::stdin();
    let mut children: Vec<Child> = Vec::new();
    let mut request = [0; 1];
    while matches!(rustix::net::recv(stdin.as_fd(), &mut request, RecvFlags::empty()), Ok((1, _))) {
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let answered = match start_worker(&settings, request[0] == Asked::Plain as u8) {
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

fn start_worker(settings: &OsStr, plain: bool) -> io::Result<(Child, OwnedFd, OwnedFd)> {
    let (ours, theirs) = pair(SocketType::STREAM)?;
    let mut command = role(WORKER_ROLE);
    command.arg(settings).args(plain.then_some(PLAIN));
    // Both directions are on standard input: a library that prints must not print into the talk.
    let child = command.stdin(theirs).stdout(Stdio::null()).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(pid.ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
    Ok((child, ours, pidfd))
}

fn role(role: &str) -> Command {
    // `/proc/self/exe` names this very program, also after an upgrade has replaced the file.
    let mut command = Command::new("/proc/self/exe");
    // A Ctrl-C at the terminal is for the supervisor; when that ends, the sockets close and so do these.
    command.process_group(0);
    // There may be a password in it, which is nothing to them nor to the driver's library.
    command.env_remove("LEASE_REDIS_URL");
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

/// What the launcher sent; `None` when it has ended.
fn receive_descriptors(socket: BorrowedFd<'_>) -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let messages = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors: Vec<OwnedFd> = messages.collect();
    Ok((received.bytes > 0).then_some(descriptors))
}

/// The settings of this worker process, as the launcher gave them.
pub(crate) fn worker_settings() -> Option<SamplerSettings> {
    let mut arguments = std::env::args().skip(2);
    let mut settings: SamplerSettings = serde_json::from_str(&arguments.next()?).ok()?;
    if arguments.next().as_deref() == Some(PLAIN) {
        settings.commands = Commands::Shunned;
        settings.claims = Claims::Left;
    }
    Some(settings)
}
