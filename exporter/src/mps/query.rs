//! Queries of a control daemon. The first query without an answer ends the poll, because each further one
//! would wait as long.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use bailiff_mps::Listener;
use bailiff_mps::control::{Control, ControlError, Question};
use bailiff_mps::reply::{self as replies, Client, ReplyError};
use bailiff_proc::clock::running;
use bailiff_snapshot::{MpsAnswer, MpsDaemon, MpsFault, MpsStatus, millis};

/// Maximum number of servers, and of devices, that are queried.
const MOST: usize = 16;
/// Maximum number of clients of a server. No MPS release accepts even 100 clients, so a higher
/// number indicates a foreign daemon.
const MOST_CLIENTS: usize = 1024;

/// A control daemon and how to reach it.
pub(super) struct Address<'a> {
    /// NVIDIA's client program.
    pub(super) program: &'a Path,
    pub(super) directory: &'a Path,
    pub(super) daemon: &'a MpsDaemon,
}

impl Address<'_> {
    /// Returns why a process other than this daemon would answer in the directory; `None` if the daemon
    /// itself listens there. Any user can name any path, and the same path may be another directory in
    /// another mount namespace.
    fn is_not_its_own(&self) -> Option<(MpsFault, String)> {
        let process = self.daemon.process.pid;
        let reason = |error: &dyn std::fmt::Display| format!("{}: {error}", self.directory.display());
        match Listener::of(self.directory) {
            Ok(peer) if peer.is(process, self.daemon.uid) => None,
            Ok(Listener { pid: Some(pid), uid }) => {
                Some((MpsFault::Foreign, reason(&format_args!("process {pid} of user {uid} listens there"))))
            }
            Ok(Listener { uid, .. }) => {
                Some((MpsFault::Foreign, reason(&format_args!("a process of user {uid} listens there"))))
            }
            // If the listener's backlog is full, its process is unknown; then the owner of the socket file
            // decides.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let made = rustix::fs::lstat(self.directory.join("control")).ok();
                let own = made.is_some_and(|made| Some(made.st_uid) == self.daemon.uid);
                (!own).then(|| (MpsFault::Foreign, reason(&"another user's process listens there")))
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Some((MpsFault::NotPermitted, reason(&error)))
            }
            Err(error) => Some((MpsFault::Unreachable, reason(&error))),
        }
    }
}

/// Result of polling a daemon.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub(super) answer: MpsAnswer,
    /// Reports of its servers, by pid in the daemon's PID namespace.
    pub(super) servers: BTreeMap<u32, ServerReport>,
    /// Error message for the log, if there is no answer.
    pub(super) error: String,
    /// Whether there were more clients than are reported.
    pub(super) gap: bool,
}

/// The daemon's answers about one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServerReport {
    pub(super) status: Option<MpsStatus>,
    pub(super) clients: Option<Vec<u32>>,
    pub(super) thread_percentage: Option<f64>,
}

/// Queries a daemon for up to `devices` devices at the time `boot`. Values that rarely change are queried
/// only if there is no earlier answer (`before`).
pub(super) fn query(
    address: &Address<'_>,
    (boot, devices): (Duration, usize),
    before: Option<Asked>,
) -> Asked {
    let boot_ms = millis(boot);
    let none = |(fault, error)| Asked {
        answer: MpsAnswer { boot_ms, fault: Some(fault), ..MpsAnswer::default() },
        error,
        ..Asked::default()
    };
    if let Some(why) = address.is_not_its_own() {
        return none(why);
    }
    let control = Control::new(address.program).at(address.directory);
    let mut asked = Asked::default();
    asked.answer.boot_ms = boot_ms;
    match asked.fill(&control, devices, before) {
        Ok(took) => asked.answer.took_us = Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
        // Answers received before the error are discarded, because they may be outdated.
        Err(error) => return none((fault(&error), error.to_string())),
    }
    asked
}

impl Asked {
    /// Runs all queries and stores their answers. Returns the duration of the first query.
    fn fill(
        &mut self,
        control: &Control,
        devices: usize,
        before: Option<Self>,
    ) -> Result<Duration, ControlError> {
        let began = running();
        let list = control.query(Question::Servers)?;
        let took = running().saturating_sub(began);
        let servers = match replies::servers(&list) {
            Ok(servers) => servers,
            // A daemon of protocol 3 may not know the command.
            Err(odd) => reply(control.query(Question::ServersV3), replies::servers_v3)?
                .ok_or_else(|| strange(&odd))?,
        };
        let clients = if servers.is_empty() { Some(Vec::new()) } else { clients(control)? };
        let settings = before.is_none();
        for server in servers.into_iter().take(MOST) {
            let mut report = ServerReport {
                clients: clients.as_deref().and_then(|all| of(server, all)),
                ..ServerReport::default()
            };
            self.gap |= clients.is_some() && report.clients.is_none();
            report.status =
                replies::status(&control.query(Question::Status(server)).or_else(unless_refused)?);
            let earlier = before.as_ref().and_then(|before| before.servers.get(&server));
            report.thread_percentage = match earlier {
                Some(earlier) => earlier.thread_percentage,
                None => reply(control.query(Question::Percentage(server)), replies::percentage)?,
            };
            self.servers.insert(server, report);
        }
        if let Some(before) = before {
            self.answer.thread_percentage = before.answer.thread_percentage;
            self.answer.pinned_limits = before.answer.pinned_limits;
        }
        if settings {
            self.ask_settings(control, devices)?;
        }
        Ok(took)
    }

    fn ask_settings(&mut self, control: &Control, devices: usize) -> Result<(), ControlError> {
        self.answer.thread_percentage =
            reply(control.query(Question::DefaultPercentage), replies::percentage)?;
        for device in (0..devices.min(MOST)).filter_map(|device| u32::try_from(device).ok()) {
            let number = device.to_string();
            let limit = reply(control.query(Question::DefaultMemoryLimit(&number)), replies::memory_limit)?;
            self.answer.pinned_limits.extend(limit.flatten().map(|bytes| (device, bytes)));
        }
        Ok(())
    }
}

/// Returns the clients of all servers; `None` if the reply has an unknown form.
fn clients(control: &Control) -> Result<Option<Vec<Client>>, ControlError> {
    if let Some(clients) = reply(control.query(Question::Processes), replies::processes)? {
        return Ok(Some(clients));
    }
    reply(control.query(Question::ClientsV3), replies::processes)
}

/// Returns the pids of a server's clients; `None` if there are too many. A client of several devices occurs
/// once. Clients of other PID namespaces all have pid 0; the result has as many as the device with the most
/// of them.
fn of(server: u32, all: &[Client]) -> Option<Vec<u32>> {
    let own = || all.iter().filter(|client| client.server == server);
    let mut pids: Vec<u32> = own().map(|client| client.pid).filter(|pid| *pid != 0).collect();
    pids.sort_unstable();
    pids.dedup();
    let mut nameless: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for client in own().filter(|client| client.pid == 0) {
        *nameless.entry(client.device.as_deref()).or_default() += 1;
    }
    pids.extend(std::iter::repeat_n(0, nameless.into_values().max().unwrap_or_default()));
    (pids.len() <= MOST_CLIENTS).then_some(pids)
}

/// Returns the parsed reply; `None` if the daemon refused the command or the reply has an unknown form.
fn reply<T>(
    answer: Result<String, ControlError>,
    understand: fn(&str) -> Result<T, ReplyError>,
) -> Result<Option<T>, ControlError> {
    Ok(understand(&answer.or_else(unless_refused)?).ok())
}

/// Turns a refused or unknown command into a reply, because another command may still be answered.
fn unless_refused(error: ControlError) -> Result<String, ControlError> {
    match error {
        ControlError::Refused(text) | ControlError::Strange(text) => Ok(text),
        other => Err(other),
    }
}

fn strange(odd: &ReplyError) -> ControlError {
    match odd {
        ReplyError::Refused(text) => ControlError::Refused(text.clone()),
        odd => ControlError::Strange(odd.to_string()),
    }
}

const fn fault(error: &ControlError) -> MpsFault {
    match error {
        ControlError::NoProgram { .. } => MpsFault::NoProgram,
        ControlError::NoDaemon => MpsFault::Unreachable,
        ControlError::NoAnswer(_) => MpsFault::Timeout,
        ControlError::Refused(_) => MpsFault::NotPermitted,
        ControlError::Strange(_) | ControlError::Wait(_) => MpsFault::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_listed_once_and_those_without_pid_are_counted() {
        let table = "PID ID SERVER DEVICE NAMESPACE COMMAND\n\
            40 1 7 GPU-a 4026531836 train\n40 2 7 GPU-b 4026531836 train\n39 3 7 GPU-a 4026531836 x\n\
            0 4 7 GPU-a 4026532000 x\n0 5 7 GPU-a 4026532000 x\n0 6 7 GPU-b 4026532000 x\n41 7 8 GPU-a 4026531836 y\n";
        let clients = replies::processes(table).expect("a table");
        assert_eq!(of(7, &clients), Some(vec![39, 40, 0, 0]));
        assert_eq!(of(8, &clients), Some(vec![41]));
        assert_eq!(of(9, &clients), Some(Vec::new()));
    }

    #[test]
    fn too_many_clients_are_not_reported() {
        let listed = |pids: &mut dyn Iterator<Item = u32>| {
            let rows: Vec<String> = pids.map(|pid| format!("{pid} 7\n")).collect();
            of(7, &replies::processes(&format!("PID SERVER\n{}", rows.concat())).expect("a table"))
        };
        assert_eq!(listed(&mut (1..=1024)).map(|clients| clients.len()), Some(1024));
        assert_eq!(listed(&mut (1..=1025)), None);
        assert_eq!(listed(&mut std::iter::repeat_n(0, 1025)), None, "those without a pid count, too");
    }

    #[test]
    fn what_is_refused_or_unknown_is_no_silence() {
        let refused = || Err(ControlError::Refused("Insufficient privileges".to_owned()));
        assert_eq!(reply(refused(), replies::percentage).expect("it goes on"), None);
        let strange = Err(ControlError::Strange("unknown command".to_owned()));
        assert_eq!(reply(strange, replies::memory_limit).expect("it goes on"), None);
        assert!(reply(Err(ControlError::NoAnswer(Duration::ZERO)), replies::percentage).is_err());
        assert_eq!(reply(Ok("50.0\n".to_owned()), replies::percentage).expect("it says so"), Some(50.0));
    }
}
