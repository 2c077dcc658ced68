#![expect(clippy::disallowed_methods, reason = "the one file that starts processes")]
//! The launcher: a process that keeps the capabilities and only starts and kills sampling workers. It uses neither the
//! driver nor the network, so it is available when a worker hangs.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::{Pidfd, readable};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::settings::{Claims, Commands, SamplerSettings};

/// First argument of a launcher process.
pub const LAUNCHER_ROLE: &str = "sampling-launcher";
/// First argument of a worker process.
pub const WORKER_ROLE: &str = "sampling-worker";

/// Time limit for starting a worker, which normally takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Argument of a worker that must not read command lines.
const PLAIN: &str = "plain";

/// Handle of the launcher process.
pub struct Launcher {
    socket: OwnedFd,
    /// Number of answers that were not received yet. They come in the order of the requests.
    expected: AtomicU32,
    /// Kept to reap the launcher, which exits when the socket closes.
    _process: Child,
}

/// Handle of a worker process.
pub(crate) struct Started {
    pub(crate) stream: UnixStream,
    pidfd: Pidfd,
}

/// A request to the launcher.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Request {
    Start(Asked),
    /// Sends SIGKILL to the worker with this pid, which no other process can have before the launcher has reaped it.
    Kill(u32),
}

/// Kind of worker to start.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    /// A worker as configured.
    Whole,
    /// A worker that does not read command lines and environments, because reading one hung.
    Plain,
}

/// Why a worker was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// No more workers can be started, because only the launcher has the required privileges.
    #[error("the launcher of sampling workers has exited")]
    LauncherGone,
    /// This attempt failed.
    #[error("cannot start a sampling worker: {0}")]
    ThisTime(#[from] io::Error),
}

impl Started {
    /// Returns whether the process has exited completely, including the driver's `close`.
    pub(crate) fn ended(&self) -> bool {
        self.pidfd.ended()
    }
}

impl Launcher {
    /// Starts the launcher with the current privileges of this process. The settings apply to all its workers
    /// and cannot be changed later. The program must call [`serve`] when its first argument is
    /// [`LAUNCHER_ROLE`], and [`crate::worker::serve`] for [`WORKER_ROLE`].
    ///
    /// # Errors
    /// If no process can be started, or a path is not UTF-8.
    pub fn start(settings: &SamplerSettings) -> io::Result<Self> {
        Self::start_with(settings, Stdio::inherit())
    }

    /// Like [`Launcher::start`], with another standard error for the launcher and its workers.
    ///
    /// # Errors
    /// As for [`Launcher::start`].
    pub fn start_with(settings: &SamplerSettings, stderr: Stdio) -> io::Result<Self> {
        let (ours, theirs) = pair(SocketType::SEQPACKET)?;
        let settings = serde_json::to_string(settings)?;
        let process =
            role(LAUNCHER_ROLE).arg(settings).stdin(theirs).stdout(Stdio::null()).stderr(stderr).spawn()?;
        Ok(Self { socket: ours, expected: AtomicU32::new(0), _process: process })
    }

    /// Requests a worker.
    pub(crate) fn worker(&self, asked: Asked) -> Result<Started, WorkerError> {
        let gone = |error: Errno| match error {
            Errno::PIPE | Errno::CONNRESET => WorkerError::LauncherGone,
            error => WorkerError::ThisTime(error.into()),
        };
        self.send(Request::Start(asked)).map_err(gone)?;
        self.expected.fetch_add(1, Ordering::Relaxed);
        let deadline = Deadline::after(PATIENCE);
        loop {
            if readable(&[self.socket.as_fd()], Some(deadline)).map_err(gone)? == [false] {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            let Some(received) = receive_descriptors(self.socket.as_fd()).map_err(gone)? else {
                return Err(WorkerError::LauncherGone);
            };
            let is_late = self.expected.fetch_sub(1, Ordering::Relaxed) > 1;
            let mut received = received.into_iter();
            match (received.next(), received.next()) {
                // It answers a request that was given up, which may have been for the other kind of worker.
                (Some(stream), Some(pidfd)) if is_late => {
                    self.kill(&Started { stream: stream.into(), pidfd: pidfd.into() });
                }
                (Some(stream), Some(pidfd)) => {
                    return Ok(Started { stream: stream.into(), pidfd: pidfd.into() });
                }
                _ if is_late => {}
                _ => return Err(io::Error::other("the launcher cannot start a process").into()),
            }
        }
    }

    /// Sends SIGKILL to a worker. The launcher does that, because this process may have another user than the worker.
    /// A process in an uninterruptible wait exits only after that wait.
    pub(crate) fn kill(&self, worker: &Started) {
        let Some(pid) = worker.pidfd.pid() else { return };
        if let Err(error) = self.send(Request::Kill(pid)) {
            tracing::debug!(%error, "the launcher, and with it the sampling worker, has exited");
        }
    }

    fn send(&self, request: Request) -> Result<(), Errno> {
        let message = postcard::to_stdvec(&request).map_err(|_| Errno::INVAL)?;
        rustix::net::send(&self.socket, &message, SendFlags::NOSIGNAL).map(drop)
    }
}

/// Main function of the launcher: starts a worker for each request on standard input, until that closes.
pub fn serve() -> ExitCode {
    let Some(settings) = std::env::args_os().nth(2) else { return ExitCode::FAILURE };
    let stdin = io::stdin();
    let mut children: Vec<Child> = Vec::new();
    while let Some(request) = next_request(stdin.as_fd()) {
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let asked = match request {
            Request::Start(asked) => asked,
            Request::Kill(pid) => {
                // Fails only if the worker has exited.
                let _ = children.iter_mut().find(|child| child.id() == pid).map(Child::kill);
                continue;
            }
        };
        let answered = match start_worker(&settings, asked) {
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

/// Waits for a request; `None` after an invalid one, or when the other process has exited.
fn next_request(socket: BorrowedFd<'_>) -> Option<Request> {
    let mut message = [0; 16];
    let (length, _) = rustix::net::recv(socket, &mut message, RecvFlags::empty()).ok()?;
    postcard::from_bytes(message.get(..length)?).ok()
}

fn start_worker(settings: &OsStr, asked: Asked) -> io::Result<(Child, OwnedFd, Pidfd)> {
    let (ours, theirs) = pair(SocketType::STREAM)?;
    let mut command = role(WORKER_ROLE);
    command.arg(settings).args((asked == Asked::Plain).then_some(PLAIN));
    // Both directions use standard input, because a library may print to standard output.
    let child = command.stdin(theirs).stdout(Stdio::null()).spawn()?;
    let pidfd = Pidfd::open(child.id())?.ok_or(io::ErrorKind::NotFound)?;
    Ok((child, ours, pidfd))
}

fn role(role: &str) -> Command {
    // `/proc/self/exe` is this program, even after an upgrade has replaced the file.
    let mut command = Command::new("/proc/self/exe");
    // Ctrl-C in a terminal is meant for the supervisor. When the supervisor exits, the sockets are closed and
    // the workers exit.
    command.process_group(0);
    // The URL may contain a password, which neither the worker nor the driver's library needs.
    command.env_remove("LEASE_REDIS_URL");
    // `NVML_MPS_DEVICE_ENUMERATION` makes NVML show an MPS client's view without process lists.
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

/// Receives descriptors from the launcher; `None` when it has exited.
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

/// Parses the settings of this worker process from its arguments.
pub(crate) fn worker_settings() -> Option<SamplerSettings> {
    let mut arguments = std::env::args().skip(2);
    let mut settings: SamplerSettings = serde_json::from_str(&arguments.next()?).ok()?;
    if arguments.next().as_deref() == Some(PLAIN) {
        settings.commands = Commands::Shunned;
        settings.claims = Claims::Left;
        settings.notebooks = false;
    }
    Some(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_is_not_taken_for_that_to_the_next_request() {
        let (ours, theirs) = pair(SocketType::SEQPACKET).unwrap();
        let started = || Command::new("sleep").arg("600").spawn().unwrap();
        let launcher = Launcher { socket: ours, expected: AtomicU32::new(0), _process: started() };
        let late = launcher.worker(Asked::Plain).err().map(|error| error.to_string());
        assert_eq!(late.as_deref(), Some("cannot start a sampling worker: timed out"));
        let mut workers = [started(), started()];
        for worker in &workers {
            let (stream, pidfd) = (pair(SocketType::STREAM).unwrap().0, Pidfd::open(worker.id()).unwrap());
            send_descriptors(theirs.as_fd(), &[stream.as_fd(), pidfd.unwrap().as_fd()]).unwrap();
        }
        let second = launcher.worker(Asked::Whole).unwrap();
        assert_eq!(second.pidfd.pid(), Some(workers[1].id()));
        let requests = [(); 3].map(|()| next_request(theirs.as_fd()).unwrap());
        assert!(matches!(requests[2], Request::Kill(pid) if pid == workers[0].id()));
        let Launcher { _process: mut process, .. } = launcher;
        for child in workers.iter_mut().chain([&mut process]) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
