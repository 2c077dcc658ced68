//! The state of a daemon: servers, connected peers, settings.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::places::Places;

/// A server.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) handle: OwnedFd,
    pub(crate) uid: u32,
    pub(crate) fault: bool,
    pub(crate) percentage: Option<String>,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Signals the server. It is a child of this process, so its pid cannot have been reused.
    pub(crate) fn end(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }
}

/// A connected peer.
pub(crate) struct Peer {
    pub(crate) socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) is: Is,
}

/// Kind of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Is {
    /// The peer has not sent anything yet.
    New,
    /// A control client.
    Asker,
    /// A CUDA client of this server.
    Client(u32),
    /// The peer is about to be removed.
    Gone,
}

/// The whole state of a daemon.
pub(crate) struct State {
    pub(crate) places: Places,
    pub(crate) release: u32,
    pub(crate) servers: Vec<Server>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) percentage: String,
    pub(crate) limits: BTreeMap<String, String>,
    /// Whether a server has failed to start.
    pub(crate) server_failed: bool,
    /// Whether the daemon has received `quit`.
    pub(crate) quitting: bool,
    /// Time at which servers are terminated even if they have clients.
    pub(crate) force_at: Option<Instant>,
}

impl State {
    pub(crate) fn new(places: &Places) -> Self {
        let release = env::var("FAKE_MPS_RELEASE").ok().and_then(|text| text.parse().ok());
        Self {
            places: places.clone(),
            release: release.unwrap_or(550),
            servers: Vec::new(),
            peers: Vec::new(),
            percentage: "100.0".to_owned(),
            limits: BTreeMap::new(),
            server_failed: false,
            quitting: false,
            force_at: None,
        }
    }

    pub(crate) fn log(&self, text: &str) -> io::Result<()> {
        self.places.log("control.log", &format!("Control {}", std::process::id()), text)
    }

    pub(crate) fn log_server(&self, server: u32, text: &str) -> io::Result<()> {
        self.places.log("server.log", &format!("Server {server}"), text)
    }

    pub(crate) fn server(&mut self, pid: u32) -> Option<&mut Server> {
        self.servers.iter_mut().find(|server| server.pid() == pid)
    }

    pub(crate) fn clients(&self, server: u32) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(move |peer| peer.is == Is::Client(server))
    }

    /// Starts a server for a user. Returns `None` if the server fails to start.
    pub(crate) fn start(&mut self, uid: u32) -> io::Result<Option<u32>> {
        let program = env::current_exe()?.with_file_name("nvidia-cuda-mps-server");
        let mut command = Command::new(program);
        command.arg0("nvidia-cuda-mps-server").env_remove(crate::FORKED).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if uid != rustix::process::geteuid().as_raw() {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn()?;
        let pid = child.id();
        self.places.log(
            "control.log",
            &format!("Control {pid}"),
            &format!("Starting new server {pid} for user {uid}"),
        )?;
        if env::var_os("FAKE_MPS_NO_GPU").is_some() {
            let words = "Driver initialization failed with: no CUDA-capable device is detected";
            self.places.log("server.log", &format!("Other {pid}"), words)?;
            let status = child.wait()?;
            self.log("Server encountered a fatal exception. Shutting down")?;
            self.log(&format!("Server {pid} exited with status {}", status.code().unwrap_or(-1)))?;
            self.server_failed = true;
            return Ok(None);
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let handle = pidfd_open(raw, PidfdFlags::empty())?;
        self.servers.push(Server { child, handle, uid, fault: false, percentage: None });
        self.log(&format!("NEW SERVER {pid}: Ready"))?;
        self.log_server(pid, "Creating server context on device 0 (Tesla T4)")?;
        Ok(Some(pid))
    }
}
