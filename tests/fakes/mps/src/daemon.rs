//! The control daemon: a single thread that waits for control clients, CUDA clients and the exit of
//! its servers.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::Signal;

use crate::answers::answer;
use crate::places::Places;
use crate::sockets::{bound, receive, send};
use crate::state::{Is, Peer, State};

/// Line that a daemon prints once it is listening.
pub(crate) const READY: &str = "ready";

/// Serves until it receives `quit`.
pub(crate) fn serve(places: &Places) -> io::Result<ExitCode> {
    let foreground = env::args().any(|word| word == "-f");
    places.make()?;
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(places.lock())?;
    if env::var_os("FAKE_MPS_NO_START").is_some() {
        say("Failed to start the daemon", foreground)?;
        return Ok(ExitCode::FAILURE);
    }
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        say("An instance of this daemon is already running", foreground)?;
        return Ok(ExitCode::FAILURE);
    }
    if !foreground {
        rustix::process::setsid()?;
    }
    let mut state = State::new(places);
    let listener = open(&state)?;
    state.log(&format!("Starting control daemon using socket {}", places.socket().display()))?;
    if !foreground {
        say(READY, false)?;
        rustix::stdio::dup2_stdout(&fs::File::open("/dev/null")?)?;
    }
    while !(state.quitting && state.servers.is_empty()) {
        step(&mut state, &listener)?;
    }
    state.log(&format!("Exit with status {}", u8::from(state.server_failed)))?;
    for file in ["control", "control_privileged", "log", "nvidia-cuda-mps-control.pid"] {
        let _ = fs::remove_file(places.pipes.join(file));
    }
    Ok(u8::from(state.server_failed).into())
}

fn say(text: &str, foreground: bool) -> io::Result<()> {
    if foreground {
        return writeln!(io::stderr(), "{text}");
    }
    writeln!(io::stdout(), "{text}")?;
    io::stdout().flush()
}

/// Creates the files in the pipe directory, and replaces files that a dead daemon has left.
fn open(state: &State) -> io::Result<OwnedFd> {
    let places = &state.places;
    for file in ["control", "control_privileged", "log"] {
        let _ = fs::remove_file(places.pipes.join(file));
    }
    let listener = bound(&places.socket())?;
    fs::set_permissions(places.socket(), fs::Permissions::from_mode(0o666))?;
    drop(bound(&places.pipes.join("control_privileged"))?);
    mknodat(CWD, places.pipes.join("log"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    if state.release >= 550 {
        fs::write(places.pid_file(), format!("{}\n", std::process::id()))?;
    }
    Ok(listener)
}

/// Waits for events and handles all that have occurred.
fn step(state: &mut State, listener: &OwnedFd) -> io::Result<()> {
    let (new, ended, received) = wait(state, listener)?;
    // The indexes are valid until a peer is removed.
    for place in received {
        hear(state, place)?;
    }
    for pid in ended {
        end_server(state, pid)?;
    }
    leave(state)?;
    if new && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) {
        let credentials = rustix::net::sockopt::socket_peercred(&socket)?;
        let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or_default();
        state.log("Accepting connection...")?;
        state.peers.push(Peer { socket, pid, uid: credentials.uid.as_raw(), is: Is::New });
    }
    if state.quitting {
        end_servers(state);
    }
    Ok(())
}

/// Returns whether a new peer is connecting, which servers have exited, and the indexes of peers
/// with a message.
fn wait(state: &State, listener: &OwnedFd) -> io::Result<(bool, Vec<u32>, Vec<usize>)> {
    let handles = state.servers.iter().map(|server| server.handle.as_fd());
    let peers = state.peers.iter().map(|peer| peer.socket.as_fd());
    let all: Vec<BorrowedFd<'_>> = std::iter::once(listener.as_fd()).chain(handles).chain(peers).collect();
    let mut files: Vec<PollFd<'_>> = all.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
    let left =
        state.force_at.map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    poll(&mut files, left.as_ref())?;
    let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
    let is_ready = |place: usize| ready.get(place).copied().unwrap_or_default();
    let ended = state.servers.iter().enumerate().filter(|(place, _)| is_ready(place + 1));
    let ended = ended.map(|(_, server)| server.pid()).collect();
    let first = state.servers.len() + 1;
    Ok((is_ready(0), ended, (0..state.peers.len()).filter(|place| is_ready(first + place)).collect()))
}

fn end_server(state: &mut State, pid: u32) -> io::Result<()> {
    let Some(server) = state.server(pid) else { return Ok(()) };
    let status = server.child.wait()?;
    state.servers.retain(|server| server.pid() != pid);
    state.peers.retain(|peer| peer.is != Is::Client(pid));
    state.log(&format!("Server {pid} exited with status {}", status.code().unwrap_or(-1)))
}

/// Terminates servers without clients at once, and the others when the time limit is reached.
fn end_servers(state: &State) {
    let force = state.force_at.is_some_and(|at| Instant::now() >= at);
    for server in &state.servers {
        if force || state.clients(server.pid()).next().is_none() {
            server.end(Signal::TERM);
        }
    }
}

fn hear(state: &mut State, place: usize) -> io::Result<()> {
    let Some(peer) = state.peers.get_mut(place) else { return Ok(()) };
    let Ok(Some(text)) = receive(&peer.socket) else {
        return gone(state, place);
    };
    let (uid, pid) = (peer.uid, peer.pid);
    if text == "client" {
        return client(state, place, (pid, uid));
    }
    if peer.is == Is::New {
        peer.is = Is::Asker;
        state.log("NEW UI")?;
    }
    let received = answer(state, &text, uid)?;
    if state.quitting && state.server_failed {
        return gone(state, place);
    }
    match state.peers.get(place).map(|peer| send(&peer.socket, &received)) {
        Some(Err(_)) => gone(state, place),
        _ => Ok(()),
    }
}

/// Handles a disconnected peer.
fn gone(state: &mut State, place: usize) -> io::Result<()> {
    let Some(peer) = state.peers.get_mut(place) else { return Ok(()) };
    let (was, pid) = (peer.is, peer.pid);
    peer.is = Is::Gone;
    match was {
        Is::Asker => state.log("UI closed"),
        Is::Client(server) => {
            state.log_server(server, "Receive command failed, assuming client exit")?;
            state.log_server(server, &format!("Client {{{pid}, 0}} exit"))?;
            let left = state.clients(server).count();
            if left == 0
                && let Some(server) = state.server(server)
            {
                server.fault = false;
            }
            state.log_server(
                server,
                &format!("Client disconnected. Number of active client contexts is {left}."),
            )
        }
        Is::New => state.log("Unable to accept connection"),
        Is::Gone => Ok(()),
    }
}

/// Removes disconnected clients. A server recovers from a fault when its last client has
/// disconnected.
fn leave(state: &mut State) -> io::Result<()> {
    state.peers.retain(|peer| peer.is != Is::Gone);
    let idle =
        state.servers.iter().filter(|server| server.fault && state.clients(server.pid()).next().is_none());
    let idle: Vec<u32> = idle.map(crate::state::Server::pid).collect();
    for pid in idle {
        if let Some(server) = state.server(pid) {
            server.fault = false;
        }
        state.log_server(pid, "Creating server context on device 0 (Tesla T4)")?;
    }
    Ok(())
}

/// Handles a program that connects as a CUDA client.
fn client(state: &mut State, place: usize, (pid, uid): (u32, u32)) -> io::Result<()> {
    state.log("User did not send valid credentials")?;
    let found =
        state.servers.iter().find(|server| server.uid == uid).map(|server| (server.pid(), server.fault));
    let (server, fault) = if let Some((server, fault)) = found {
        state.log(&format!("NEW CLIENT {pid} from user {uid}: Server already exists"))?;
        (Some(server), fault)
    } else {
        state.log(&format!(
            "NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list"
        ))?;
        (if state.quitting { None } else { state.start(uid)? }, false)
    };
    let (is, received) = match server {
        Some(_) if fault => (Is::Gone, "807".to_owned()),
        Some(server) => (Is::Client(server), format!("connected {server}")),
        None => (Is::Gone, "805".to_owned()),
    };
    if let Is::Client(server) = is {
        state.log_server(server, "Received new client request")?;
        state.log_server(server, &format!("Client {{PID: {pid}, Context ID: 0}} connected"))?;
    }
    if let Some(peer) = state.peers.get_mut(place) {
        let sent = send(&peer.socket, &received);
        peer.is = if sent.is_ok() { is } else { Is::Gone };
    }
    Ok(())
}
