//! Termination of MPS clients through their server, before they are signalled: a client that dies with work
//! in flight may wedge the server for all its clients. If the server does not respond, no signal is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bailiff_mps::control::Question;
use bailiff_mps::{Control, reply};
use bailiff_proc::ReadError;
use bailiff_snapshot::{MpsStatus, Role};
use rustix::process::geteuid;

use super::context::ActionContext;
use super::group::Group;
use super::mps;
use crate::clock::Deadline;
use bailiff_engine::guard::Refusal;
use bailiff_engine::process::{ProcessInfo, is_over};
use bailiff_engine::verdict::Outcome;

/// Time limit for finding MPS processes and for all requests to MPS; a server takes about a second to terminate a client.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the user's own daemons together, whose failure does not prevent a signal.
const PATIENCE_WITH_OWN: Duration = bailiff_mps::PATIENCE;
/// Maximum number of control daemons that are queried, root's first.
const MOST: usize = 16;
/// Maximum number of MPS processes that are examined, of root and of the client's own user.
const MOST_PROCESSES: usize = 64;

/// Results of the MPS checks so far, by pid.
#[derive(Debug, Default)]
pub(super) struct LetGo(BTreeMap<u32, Done>);

/// Result of the MPS check of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    LetGo,
    Nothing,
}

/// The owner of an MPS daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DaemonOwner {
    /// Root. While its daemon does not respond, the daemon's clients are not signalled.
    Root,
    /// The client's own user. The daemon serves no other user, so its failure does not prevent a signal. It is queried with
    /// the rights of this user: the user can make the path lead to a daemon of root in another PID namespace, where the pid is
    /// that of another process.
    Own(u32),
}

/// MPS processes that may serve a group.
#[derive(Debug, Default)]
struct Parts {
    pids: BTreeMap<u32, DaemonOwner>,
    /// Why an MPS process of root is not queried: it is or may be in another PID namespace, and so reports other pids, or
    /// it was not read in time.
    unqueried: Option<String>,
}

/// Servers of a control daemon with their clients, or why they are unknown.
type Replies = Result<Vec<(u32, BTreeSet<u32>)>, String>;

/// Relation of a process to MPS.
#[derive(Debug, PartialEq, Eq)]
enum MpsMembership {
    /// None of the queried MPS servers has the process as a client.
    Alone,
    /// The process is a client of this server; `daemon` is the index of the control daemon.
    With { daemon: usize, server: u32 },
    /// The relation cannot be determined, for this reason.
    Unknown(String),
}

impl LetGo {
    /// Terminates the MPS clients among `pids` through their servers, each once. Returns notes for the log.
    pub(super) fn those_of(
        &mut self,
        context: &ActionContext<'_>,
        (group, mut pids): (&Group<'_>, Vec<u32>),
    ) -> Result<Vec<String>, Refusal> {
        let listed = listed(context);
        pids.retain(|pid| match self.0.get(pid) {
            None => true,
            Some(Done::Nothing) => listed.contains(pid),
            Some(Done::LetGo) => false,
        });
        let until = Deadline::after(PATIENCE);
        let parts = if pids.is_empty() { Parts::default() } else { Parts::of(context, group, until) };
        let asked = Asked::all(context, parts, until);
        let mut notes = Vec::new();
        for pid in pids {
            let (done, note) = match stands(pid, &asked.replies, asked.unqueried.as_deref()) {
                MpsMembership::Unknown(why) if listed.contains(&pid) => {
                    let why = format!("process {pid} is an MPS client and was not signalled: {why}");
                    return Err(Refusal::refused(why));
                }
                MpsMembership::With { daemon, server } => {
                    (Done::LetGo, Some(asked.let_go(daemon, server, (pid, group))?))
                }
                _ if listed.contains(&pid) => {
                    let note = format!(
                        "the driver lists process {pid} as an MPS client, but its MPS server was not found"
                    );
                    (Done::LetGo, Some(note))
                }
                _ => (Done::Nothing, None),
            };
            self.0.insert(pid, done);
            notes.extend(note);
        }
        match context.inbox.given_up(context.request.id) {
            Some(why) => Err(Refusal { outcome: Outcome::Cancelled, why: why.to_owned() }),
            None => Ok(notes),
        }
    }
}

/// Returns the pids that the newest snapshot lists as MPS clients.
fn listed(context: &ActionContext<'_>) -> BTreeSet<u32> {
    let view = context.inbox.view();
    let gpus = view.iter().flat_map(|view| &view.snapshot.gpus);
    let holders = gpus.flat_map(|gpu| &gpu.holders).filter(|holder| holder.kinds.contains('M'));
    holders.map(|holder| holder.pid).collect()
}

impl Parts {
    /// Finds MPS daemons and servers of root and of the group's owner; others do not serve this owner.
    fn of(context: &ActionContext<'_>, group: &Group<'_>, until: Deadline) -> Self {
        let mut parts = Self::default();
        let people = group.people().filter(|person| person.stat.comm == mps::COMM);
        // A zombie answers no query, and its program is unreadable. Users can leave one of a setuid program such as `su`.
        let running = people.filter(|person| !is_over(person.stat.state) || person.stat.threads > 1);
        let mut examined: BTreeMap<(DaemonOwner, bool), usize> = BTreeMap::new();
        let facts = |person: &ProcessInfo| (person.stat.key.pid, person.uid, person.place.is_contained());
        for (pid, uid, is_contained) in running.map(facts) {
            let owner = match uid {
                0 => DaemonOwner::Root,
                uid if uid == group.owner => DaemonOwner::Own(uid),
                _ => continue,
            };
            // Any user can give very many processes this name, and root in a container, too.
            let count = examined.entry((owner, is_contained)).or_default();
            *count += 1;
            if until.passed() || *count > MOST_PROCESSES {
                if owner == DaemonOwner::Root {
                    parts.unqueried = Some("not all MPS processes of root were read".to_owned());
                }
                continue;
            }
            // Users can rename a setuid-root process such as `su`, but not its file, so the file is checked.
            let is_other = match context.proc_table.program(pid) {
                Ok(exe) => owner == DaemonOwner::Root && Role::of_program(&exe).is_none(),
                // It is exiting and has no memory any more. Its user can make that last.
                Err(ReadError::Gone) => true,
                Err(ReadError::Unreadable(_) | ReadError::Malformed) => false,
            };
            if is_other {
                continue;
            }
            if context.proc_table.nested(pid) == Some(false) {
                parts.pids.insert(pid, owner);
            } else if owner == DaemonOwner::Root {
                let why = "is in another PID namespace and is not queried";
                parts.unqueried = Some(format!("MPS process {pid} {why}"));
            }
        }
        parts
    }

    /// Returns the control daemons, root's first. A directory that a process of root names counts as root's.
    fn daemons(&mut self, context: &ActionContext<'_>, until: Deadline) -> Vec<(DaemonOwner, Control)> {
        let mut directories: BTreeMap<Option<String>, DaemonOwner> = BTreeMap::new();
        for (pid, owner) in &self.pids {
            // Its owner can make each read of a process take its whole time limit.
            let pipes = if until.passed() { None } else { mps::pipes(context, *pid).ok() };
            match pipes {
                Some(pipes) => {
                    let known = directories.entry(pipes).or_insert(*owner);
                    *known = (*known).min(*owner);
                }
                None if *owner == DaemonOwner::Root => {
                    self.unqueried = Some(format!("MPS process {pid} was not read in time"));
                }
                None => {}
            }
        }
        let mut daemons: Vec<_> = directories.into_iter().map(|(pipes, owner)| (owner, pipes)).collect();
        daemons.sort();
        let control = |owner: DaemonOwner, pipes| match owner {
            DaemonOwner::Own(uid) if geteuid().is_root() => mps::control(context, pipes).as_user(uid),
            _ => mps::control(context, pipes),
        };
        daemons.into_iter().take(MOST).map(|(owner, pipes)| (owner, control(owner, pipes))).collect()
    }
}

/// Control daemons and their replies.
struct Asked<'a> {
    context: &'a ActionContext<'a>,
    daemons: Vec<(DaemonOwner, Control)>,
    replies: Vec<(DaemonOwner, Replies)>,
    unqueried: Option<String>,
    until: Deadline,
}

impl<'a> Asked<'a> {
    fn all(context: &'a ActionContext<'a>, mut parts: Parts, until: Deadline) -> Self {
        let daemons = parts.daemons(context, until);
        let ours: BTreeSet<u32> = parts.pids.into_keys().collect();
        let mut replies = Vec::new();
        let mut own = None;
        // Root's daemons come first.
        for (owner, control) in &daemons {
            let until = match owner {
                DaemonOwner::Root => until,
                DaemonOwner::Own(_) => {
                    until.or(*own.get_or_insert_with(|| Deadline::after(PATIENCE_WITH_OWN)))
                }
            };
            replies.push((*owner, servers((control, until), &ours)));
        }
        Self { context, daemons, replies, unqueried: parts.unqueried, until }
    }

    /// Asks a server to terminate a client, if it is still a client: its pid may have been reused.
    fn let_go(&self, daemon: usize, server: u32, client: (u32, &Group<'_>)) -> Result<String, Refusal> {
        let (pid, group) = client;
        let gone = || format!("process {pid} exited before MPS server {server} was asked to terminate it");
        let Some((owner, control)) = self.daemons.get(daemon) else { return Ok(gone()) };
        if !group.lives(pid) {
            return Ok(gone());
        }
        if let Some(why) = self.context.inbox.given_up(self.context.request.id) {
            return Err(Refusal { outcome: Outcome::Cancelled, why: why.to_owned() });
        }
        let control = within(control, self.until, PATIENCE);
        let done = match mps::clients(&control, server) {
            _ if !group.lives(pid) => return Ok(gone()),
            Ok(clients) if clients.contains(&pid) => terminate(&control, server, pid),
            Ok(_) => Err(format!("MPS server {server} no longer lists process {pid}")),
            Err(why) => Err(why),
        };
        match (done, owner) {
            (Ok(note), _) => Ok(note),
            (Err(why), DaemonOwner::Own(_)) => Ok(format!(
                "{why}; this does not prevent the signal, because the daemon belongs to the client's user"
            )),
            (Err(why), DaemonOwner::Root) => Err(Refusal::refused(format!("{why}; no signal was sent"))),
        }
    }
}

/// Limits the timeout of requests to `most` and to the remaining time.
fn within(control: &Control, until: Deadline, most: Duration) -> Control {
    control.clone().within(until.left().clamp(Duration::from_millis(1), most))
}

/// Queries a daemon until a deadline for its servers that are in `parts`, with their clients.
fn servers((control, until): (&Control, Deadline), parts: &BTreeSet<u32>) -> Replies {
    let control = || {
        let late = "other queries of MPS daemons took too long".to_owned();
        if until.passed() { Err(late) } else { Ok(within(control, until, bailiff_mps::PATIENCE)) }
    };
    let reply_text = control()?.query(Question::Servers).map_err(|error| error.to_string())?;
    let servers = reply::servers(&reply_text).map_err(|odd| odd.to_string())?;
    let ours = servers.intersection(parts);
    ours.map(|server| Ok((*server, mps::clients(&control()?, *server)?))).collect()
}

fn stands(client: u32, replies: &[(DaemonOwner, Replies)], unqueried: Option<&str>) -> MpsMembership {
    let mut silent = None;
    for (daemon, (owner, replies)) in replies.iter().enumerate() {
        match replies {
            Ok(servers) => {
                let found = servers.iter().find(|(_, clients)| clients.contains(&client));
                if let Some((server, _)) = found {
                    return MpsMembership::With { daemon, server: *server };
                }
            }
            Err(error) if *owner == DaemonOwner::Root => {
                silent = Some(format!("its control daemon: {error}"));
            }
            Err(_) => {}
        }
    }
    if let (None, Some(why)) = (&silent, unqueried) {
        return MpsMembership::Unknown(why.to_owned());
    }
    let is_own = |(owner, _): &(DaemonOwner, Replies)| matches!(owner, DaemonOwner::Own(_));
    match silent {
        Some(why) => MpsMembership::Unknown(why),
        // Root's daemons do not list the process, so only its own user's daemon can serve it.
        None if replies.is_empty() || replies.iter().any(is_own) => MpsMembership::Alone,
        None => MpsMembership::Unknown("no MPS server lists it as a client".to_owned()),
    }
}

/// Asks a server to terminate a client. A server in FAULT needs no request: the client runs no work, and
/// the server waits for its exit.
fn terminate(control: &Control, server: u32, client: u32) -> Result<String, String> {
    let status = control.query(Question::Status(server)).map(|reply_text| reply::status(&reply_text));
    if matches!(status, Ok(Some(MpsStatus::Fault))) {
        return Ok(format!("MPS server {server} is in state FAULT and waits for client {client} to exit"));
    }
    let reply_text = control.query(Question::TerminateClient(server, client));
    let done = reply_text
        .map_err(|error| error.to_string())
        .and_then(|reply_text| reply::terminated(&reply_text).map_err(|odd| odd.to_string()));
    match done {
        Ok(()) => Ok(format!("MPS server {server} terminated its client {client}")),
        Err(why) => Err(format!("MPS server {server} did not terminate its client {client}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies_of(owner: DaemonOwner, servers: &[(u32, &[u32])]) -> (DaemonOwner, Replies) {
        let servers = servers.iter().map(|(server, clients)| (*server, clients.iter().copied().collect()));
        (owner, Ok(servers.collect()))
    }

    #[test]
    fn a_client_is_let_go_by_its_very_server_alone() {
        use DaemonOwner::Root;
        const OWN: DaemonOwner = DaemonOwner::Own(1000);
        let hung = |owner| (owner, Err("hung".to_owned()));
        let cases = [
            (vec![], MpsMembership::Alone),
            (
                vec![replies_of(Root, &[(900, &[7]), (901, &[4100])])],
                MpsMembership::With { daemon: 0, server: 901 },
            ),
            (
                vec![hung(Root), replies_of(OWN, &[(900, &[4100])])],
                MpsMembership::With { daemon: 1, server: 900 },
            ),
            (
                vec![replies_of(Root, &[(900, &[7])])],
                MpsMembership::Unknown("no MPS server lists it as a client".into()),
            ),
            (
                vec![replies_of(Root, &[]), hung(Root)],
                MpsMembership::Unknown("its control daemon: hung".into()),
            ),
            (vec![replies_of(Root, &[]), hung(OWN)], MpsMembership::Alone),
            (
                vec![hung(Root), replies_of(OWN, &[])],
                MpsMembership::Unknown("its control daemon: hung".into()),
            ),
            (vec![hung(OWN)], MpsMembership::Alone),
            (vec![replies_of(OWN, &[(900, &[7])])], MpsMembership::Alone),
        ];
        for (replies, expected) in cases {
            assert_eq!(stands(4100, &replies, None), expected, "{replies:?}");
        }
        let why = Some("MPS process 900 was not read in time");
        let other = MpsMembership::Unknown("MPS process 900 was not read in time".into());
        assert_eq!(stands(4100, &[], why), other);
        assert_eq!(stands(4100, &[replies_of(Root, &[(901, &[7])])], why), other);
        let found = MpsMembership::With { daemon: 0, server: 901 };
        assert_eq!(stands(4100, &[replies_of(Root, &[(901, &[4100])])], why), found);
    }
}
