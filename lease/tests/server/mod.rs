//! A Redis of the test's own, on a socket of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A running server; it ends with its test.
pub(crate) struct Server {
    folder: TempDir,
    child: Child,
}

impl Server {
    pub(crate) fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--loglevel",
                "warning",
                "--unixsocket",
            ])
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .args(settings)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed: tests/setup redis");
        let server = Self { folder, child };
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(began.elapsed() < Duration::from_mins(1), "the server does not listen");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// As a client writes it.
    #[allow(dead_code, reason = "walks write their own bytes")]
    pub(crate) fn address(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
