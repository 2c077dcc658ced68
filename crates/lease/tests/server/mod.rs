//! A test's own Redis server, on its own socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A running server, stopped with its test.
pub(crate) struct Server {
    directory: TempDir,
    settings: Vec<String>,
    child: Child,
}

impl Server {
    pub(crate) fn start(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect::<Vec<String>>();
        let child = start(directory.path(), &settings);
        // The tests expect tokens that start at 1. If a password is required, this command fails, and tokens start at
        // the current time, as in every new pool.
        let mut stream = UnixStream::connect(socket(directory.path())).unwrap();
        stream.write_all(b"HSET GPU_V2:META tok 0\r\n").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        Self { directory, settings, child }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(self.directory.path())
    }

    /// Returns the server's address for a client.
    #[allow(dead_code, reason = "the random walks write to the socket themselves")]
    pub(crate) fn address(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Returns the server's pid.
    #[allow(dead_code, reason = "only some tests stop it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server with SIGKILL.
    #[allow(dead_code, reason = "only some tests kill it")]
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again with the same data.
    #[allow(dead_code, reason = "only some tests kill it")]
    pub(crate) fn start_again(&mut self) {
        self.child = start(self.directory.path(), &self.settings);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

fn start(directory: &Path, settings: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
    command.arg("--unixsocket").arg(socket(directory)).arg("--dir").arg(directory).args(settings);
    let child = command.stdout(Stdio::null()).spawn();
    let child = child.expect("redis-server must be installed: tests/setup redis");
    let started = Instant::now();
    while !serves(&socket(directory)) {
        assert!(started.elapsed() < Duration::from_mins(1), "the server does not start");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    child
}

/// Returns whether the server listens and has loaded its data.
fn serves(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut answer = [0; 5];
    stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && (&answer == b"+PONG" || &answer == b"-NOAU")
}
