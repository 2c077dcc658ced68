//! A test's own Redis server, on its own socket.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::until;

/// A running server, terminated with its test.
pub struct Redis {
    directory: TempDir,
    options: Vec<String>,
    child: Child,
}

impl Redis {
    /// Starts a server.
    ///
    /// # Panics
    /// If Redis is not installed, or does not listen.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with additional options.
    ///
    /// # Panics
    /// If Redis is not installed, or does not listen.
    pub fn with(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Other users connect as well.
        let _ = fs::set_permissions(directory.path(), Permissions::from_mode(0o755));
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = server(&directory, &options);
        Self { directory, options, child }
    }

    /// Kills the server and waits until it has exited.
    ///
    /// # Panics
    /// If the server cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child can be ended");
        self.child.wait().expect("our own child can be waited for");
    }

    /// Restarts the server at the same address, with its persisted data.
    ///
    /// # Panics
    /// If the server does not listen.
    pub fn start_again(&mut self) {
        let _ = fs::remove_file(self.socket());
        self.child = server(&self.directory, &self.options);
    }

    /// Runs `act` while the server is stopped by SIGSTOP.
    ///
    /// # Panics
    /// If the server cannot be stopped.
    pub fn while_stopped<T>(&self, act: impl FnOnce() -> T) -> T {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("our own child can be signalled");
        let done = act();
        kill_process(pid, Signal::CONT).expect("our own child can be signalled");
        done
    }

    /// Returns the server's pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the server's reply to a command that has a text reply.
    ///
    /// # Panics
    /// If the server does not respond, or if the reply is not a text.
    pub fn query(&self, command: &str) -> String {
        let mut stream = BufReader::new(UnixStream::connect(self.socket()).expect("Redis listens"));
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("Redis reads");
        let mut length = String::new();
        stream.read_line(&mut length).expect("Redis responds");
        let length = length.trim().strip_prefix('$').and_then(|length| length.parse().ok());
        let mut text = vec![0; length.unwrap_or_else(|| panic!("{command}: no text"))];
        stream.read_exact(&mut text).expect("Redis responds");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// Stops the server by SIGSTOP until [`Self::go_on`] is called.
    ///
    /// # Panics
    /// If the server cannot be stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the server.
    ///
    /// # Panics
    /// If the server has exited.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("Redis is running");
    }

    /// Returns the server's URL, as clients write it.
    pub fn address(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }
}

fn server(directory: &TempDir, options: &[String]) -> Child {
    let socket = directory.path().join("redis.sock");
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--loglevel", "warning", "--unixsocketperm", "777"]);
    command.arg("--unixsocket").arg(&socket);
    command.args(options);
    let child = command.arg("--dir").arg(directory.path()).stdout(Stdio::null()).spawn();
    let child = child.expect("redis-server must be installed: tests/setup redis");
    until("Redis to listen", || UnixStream::connect(&socket).ok());
    child
}

/// Returns a free port, for a server that cannot choose a port itself.
///
/// # Panics
/// If the system has no free port.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("the server listens").port()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
