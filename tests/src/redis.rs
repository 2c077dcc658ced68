//! A Redis of a test's own, on a socket of its own.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::until;

/// A running server; it ends with its test.
pub struct Redis {
    folder: TempDir,
    child: Child,
}

impl Redis {
    /// Starts one.
    ///
    /// # Panics
    /// Where it is not installed, or does not listen.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--loglevel", "warning", "--unixsocket"]).arg(&socket);
        let child = command.arg("--dir").arg(folder.path()).stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server is installed: tests/setup redis");
        until("Redis to listen", || UnixStream::connect(&socket).ok());
        Self { folder, child }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// It answers nobody until [`Self::go_on`].
    ///
    /// # Panics
    /// Where it cannot be stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// It answers again.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// As a client writes it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
