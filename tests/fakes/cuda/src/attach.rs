//! Files that a process keeps open once CUDA is initialized: the device file in `FAKE_CUDA_DEVICE`, and a connection
//! to the stand-in for MPS if its daemon is listening in the directory `CUDA_MPS_PIPE_DIRECTORY`.
#![expect(clippy::disallowed_methods, reason = "the environment names the files, as for the driver")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use fake_mps::{Places, connect, receive, send};

use crate::code::{Answer, Code};

static DEVICE: OnceLock<Option<File>> = OnceLock::new();
static DAEMON: OnceLock<OwnedFd> = OnceLock::new();

/// Opens both files, once per process.
pub(crate) fn attach() -> Answer {
    DEVICE.get_or_init(|| File::open(std::env::var_os("FAKE_CUDA_DEVICE")?).ok());
    if std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").is_none() || DAEMON.get().is_some() {
        return Ok(());
    }
    let Ok(socket) = connect(&Places::of_environment().socket()) else { return Ok(()) };
    let reply = send(&socket, "client").and_then(|()| receive(&socket)).ok().flatten();
    if !reply.is_some_and(|reply| reply.starts_with("connected")) {
        return Err(Code::MPS_CONNECTION_FAILED);
    }
    let _ = DAEMON.set(socket);
    Ok(())
}
