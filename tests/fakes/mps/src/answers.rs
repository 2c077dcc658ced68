//! The daemon's reply to each command.

use std::fmt::Write;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::state::{Is, State};

/// UUID of the device that all clients use.
const DEVICE: &str = "GPU-cb1213a3-d6a4-be7f";

/// Replies to a user's command.
pub(crate) fn answer(state: &mut State, command: &str, uid: u32) -> io::Result<String> {
    state.log(&format!("Cmd:{command}"))?;
    let words: Vec<&str> = command.split_whitespace().collect();
    let number =
        |place: usize| words.get(place).and_then(|word| word.parse::<u32>().ok()).unwrap_or_default();
    let ours = uid == 0 || uid == rustix::process::geteuid().as_raw();
    match words.first().copied().unwrap_or_default() {
        "quit" | "shutdown_server" | "start_server" | "terminate_client" | "fake_fault" if !ours => {
            Ok(format!("Not enough privilege to execute {} command\n", words.first().unwrap_or(&"")))
        }
        // In releases up to 535, every user can do this.
        word if word.starts_with("set_") && !ours && state.release >= 550 => {
            Ok(format!("Insufficient privileges for UID {uid}\n"))
        }
        "get_server_list" => Ok(lines(state.servers.iter().map(|server| server.pid().to_string()))),
        "get_server_status" if state.release >= 550 => Ok(status(state, number(1))),
        "start_server" => started(state, number(2)),
        "shutdown_server" => Ok(shut_down(state, number(1), words.contains(&"-f"))),
        "get_client_list" => Ok(clients(state, number(1))),
        "ps" => Ok(processes(state)),
        "terminate_client" => terminate(state, number(1), number(2)),
        "get_default_active_thread_percentage" => Ok(format!("{}\n", state.percentage)),
        "set_default_active_thread_percentage" => {
            state.percentage = format!("{}.0", number(1));
            Ok(format!("{}\n", state.percentage))
        }
        "get_active_thread_percentage" => Ok(percentage(state, number(1))),
        "set_default_device_pinned_mem_limit" => {
            let limit =
                (words.get(1).copied().unwrap_or_default(), words.get(2).copied().unwrap_or_default());
            state.limits.insert(limit.0.to_owned(), limit.1.to_owned());
            Ok(String::new())
        }
        "get_default_device_pinned_mem_limit" => {
            let limit = state.limits.get(words.get(1).copied().unwrap_or_default());
            Ok(limit.map(|limit| format!("{limit}\n")).unwrap_or_default())
        }
        "quit" => {
            quit(state, words.get(1) == Some(&"-t"), number(2));
            Ok(String::new())
        }
        "fake_fault" => fault(state, number(1)),
        _ => Ok("Unrecognized command\n".to_owned()),
    }
}

fn lines(words: impl Iterator<Item = String>) -> String {
    words.fold(String::new(), |text, word| text + &word + "\n")
}

fn not_found(server: u32) -> String {
    format!("Server {server} not found\n")
}

fn status(state: &mut State, server: u32) -> String {
    state.server(server).map_or_else(
        || not_found(server),
        |server| if server.fault { "FAULT\n".to_owned() } else { "ACTIVE\n".to_owned() },
    )
}

fn started(state: &mut State, uid: u32) -> io::Result<String> {
    Ok(state.start(uid)?.map(|_| String::new()).unwrap_or_default())
}

fn shut_down(state: &mut State, pid: u32, force: bool) -> String {
    let clients = state.clients(pid).count();
    match state.server(pid) {
        None => not_found(pid),
        Some(server) => {
            // Without force, the server exits when its last client has disconnected.
            if force || clients == 0 {
                server.end(Signal::TERM);
            }
            String::new()
        }
    }
}

fn clients(state: &mut State, server: u32) -> String {
    if state.server(server).is_none() {
        return not_found(server);
    }
    lines(state.clients(server).map(|client| client.pid.to_string()))
}

fn processes(state: &State) -> String {
    if state.servers.is_empty() {
        return "Server not found\n".to_owned();
    }
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default().display().to_string();
    let namespace: String = namespace.chars().filter(char::is_ascii_digit).collect();
    let mut text = "PID       ID    SERVER    DEVICE                   NAMESPACE    COMMAND\n".to_owned();
    for peer in &state.peers {
        let Is::Client(server) = peer.is else { continue };
        let _ =
            writeln!(text, "{:<9} 0     {server:<9} {DEVICE:<24} {namespace}   ./nbody -n 4096", peer.pid);
    }
    text
}

fn percentage(state: &mut State, pid: u32) -> String {
    let usual = state.percentage.clone();
    state
        .server(pid)
        .map_or_else(|| not_found(pid), |server| format!("{}\n", server.percentage.clone().unwrap_or(usual)))
}

fn terminate(state: &mut State, server: u32, client: u32) -> io::Result<String> {
    if state.server(server).is_none() {
        return Ok(not_found(server));
    }
    let Some(peer) = state.peers.iter_mut().find(|peer| peer.is == Is::Client(server) && peer.pid == client)
    else {
        return Ok(format!("Client {client} not found\n"));
    };
    peer.is = Is::Gone;
    state.log_server(server, &format!("Forcefully terminating client {client}"))?;
    state.log_server(server, "Client termination succeeded.")?;
    Ok("0\n".to_owned())
}

fn quit(state: &mut State, timed: bool, seconds: u32) {
    state.quitting = true;
    if timed {
        state.force_at = Some(Instant::now() + Duration::from_secs(seconds.into()));
    }
}

fn fault(state: &mut State, pid: u32) -> io::Result<String> {
    let client = state.clients(pid).next().map(|client| client.pid);
    let Some(server) = state.server(pid) else { return Ok(not_found(pid)) };
    server.fault = true;
    if let Some(client) = client {
        state.log_server(pid, &format!("Client process {client} encountered a fatal GPU error."))?;
    }
    state.log_server(pid, "Server is handling a fatal GPU error.")?;
    state.log_server(pid, "The following clients have a sticky error set:")?;
    Ok(String::new())
}
