//! Finds MPS control daemons and servers by `comm`, program and arguments. From their environment, only the
//! directories are kept. The daemons are not queried here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bailiff_mps::place::{Directories, Part, ProcessView};
use bailiff_proc::clock::Deadline;
use bailiff_proc::{LATE, Process};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{Gap, Gaps, Mps, MpsDaemon, MpsServer, ProcessKey, Role, Seen, State, Truth};

use crate::proc::{MOST_OF_ENVIRON, Processes};

/// Maximum number of examined processes, in total and per user. Root's processes come first, because any user
/// can use the name.
const MOST: usize = 64;
const MOST_OF_ONE: usize = 16;
/// Maximum length of a reported directory. The kernel limits the path of a socket in it to 108 bytes.
const LONGEST_PATH: usize = 256;

/// A process with the `comm` of an MPS program.
#[derive(Clone, Copy)]
struct Named {
    key: ProcessKey,
    ppid: u32,
    state: State,
    /// Owner, possibly an earlier one: it decides only which processes are examined first.
    uid: Option<u32>,
}

/// An MPS process.
struct Found {
    named: Named,
    uid: Option<u32>,
    part: Part,
    /// Pids of the process, from the namespace of this `/proc` to its own; empty if unreadable.
    pids: Vec<u32>,
}

/// Returns the MPS daemons and servers among these processes; `None` if there are none.
pub(crate) fn find(
    processes: &Processes,
    (seen, until): (&BTreeMap<u32, Seen>, Deadline),
    gaps: &mut Gaps,
) -> Option<Mps> {
    let named = |(stat, uid): &(Stat, Option<u32>)| Named {
        key: stat.key,
        ppid: stat.ppid,
        state: stat.state,
        uid: *uid,
    };
    let others = processes.named_mps().iter().map(named);
    let holders = seen.values().filter_map(Seen::found).filter(|facts| facts.comm == Role::COMM);
    let holders =
        holders.map(|facts| Named { key: facts.key, ppid: facts.ppid, state: facts.state, uid: facts.uid });
    let proc = processes.proc();
    let all: Vec<Named> = others.chain(holders).collect();
    let mut unread: BTreeSet<u32> = all.iter().map(|named| named.key.pid).collect();
    let ranked = all.into_iter().map(|named| (named.uid, named.key, named)).collect();
    let (ranked, all) = chosen(ranked);
    if !all {
        gaps.count(Gap::Mps);
    }
    let named: BTreeMap<u32, Named> = ranked.into_iter().map(|(_, key, named)| (key.pid, named)).collect();
    let pids: Vec<u32> = named.keys().copied().collect();
    let count = pids.len();
    let read = proc.each(pids, Some(until), move |proc, pid| {
        let process = proc.process(pid)?;
        Ok(named.get(&pid).and_then(|named| examine(&process, *named)))
    });
    let read = read.unwrap_or_default();
    if read.len() < count || read.iter().any(|(_, found)| matches!(found, Err(LATE))) {
        gaps.count(Gap::Mps);
    }
    for (pid, _) in read.iter().filter(|(_, found)| !matches!(found, Err(LATE))) {
        unread.remove(pid);
    }
    let found: Vec<Found> = read.into_iter().filter_map(|(_, found)| found.ok().flatten()).collect();
    let is_unread = |pid| unread.contains(&pid) || processes.may_be_unread(pid);
    let mps = describe(&found, is_unread, |key| processes.started(key));
    Some(mps).filter(|mps| !mps.is_empty())
}

/// Returns each process once, up to the limits (root's processes first, then by age), and whether these are
/// all.
fn chosen<T>(mut ranked: Vec<(Option<u32>, ProcessKey, T)>) -> (Vec<(Option<u32>, ProcessKey, T)>, bool) {
    ranked.sort_unstable_by_key(|(uid, key, _)| (*uid != Some(0), key.start_ticks, key.pid));
    ranked.dedup_by_key(|(_, key, _)| *key);
    let all = ranked.len();
    let mut of_one: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    ranked.retain(|(uid, ..)| {
        let count = of_one.entry(*uid).or_default();
        *count += 1;
        *uid == Some(0) || *count <= MOST_OF_ONE
    });
    ranked.truncate(MOST);
    let whole = ranked.len() == all;
    (ranked, whole)
}

/// Reads a process through one open directory, so that a reused pid is detected.
fn examine(process: &Process, named: Named) -> Option<Found> {
    let stat = process.stat().ok()?;
    if stat.key != named.key || stat.state == State::Zombie {
        return None;
    }
    let (exe, cmdline) = (process.exe().ok(), process.cmdline().ok()?);
    let mut buffer = Vec::new();
    let environ = process.read_within(MOST_OF_ENVIRON, "environ", &mut buffer).ok();
    let part = ProcessView { exe: exe.as_deref(), cmdline: &cmdline, environ }.part();
    // The environment may contain secrets, so erase it.
    buffer.fill(0);
    let pids = process.inner_pids().unwrap_or_default();
    Some(Found { named, uid: process.owner().ok(), part: part?, pids })
}

fn describe(
    found: &[Found],
    is_unread: impl Fn(u32) -> bool,
    started: impl Fn(ProcessKey) -> Option<f64>,
) -> Mps {
    let is_daemon = |one: &Found| matches!(one.part, Part::Daemon(_));
    let daemons: BTreeSet<u32> =
        found.iter().filter(|one| is_daemon(one)).map(|one| one.named.key.pid).collect();
    let mut mps = Mps::default();
    for one in found {
        match &one.part {
            // A child of a daemon is a copy of the daemon until it executes the server.
            Part::Daemon(_) if daemons.contains(&one.named.ppid) => {}
            Part::Daemon(daemon) => mps.daemons.push(MpsDaemon {
                process: one.named.key,
                uid: one.uid,
                state: one.named.state,
                started: started(one.named.key),
                pipe_directory: daemon.directories.as_ref().and_then(|directories| text(&directories.pipes)),
                owns_directory: false,
                log_directory: daemon.directories.as_ref().and_then(|directories| text(&directories.logs)),
                own_pids: one.own_pids(),
                answer: None,
                log: None,
                files: BTreeMap::new(),
            }),
            Part::Server(directories) => mps.servers.push(one.server(directories.as_ref())),
            Part::Asker => {}
        }
    }
    for server in &mut mps.servers {
        let parent = found.iter().find(|one| one.named.key == server.process).map(|one| one.named.ppid);
        let daemon = mps.daemons.iter().find(|daemon| Some(daemon.process.pid) == parent);
        server.daemon = daemon.map(|daemon| daemon.process);
        let is_known = daemon.is_some() || parent.is_some_and(|parent| !is_unread(parent));
        server.orphaned = is_known.then_some(daemon.is_none());
    }
    mps
}

impl Found {
    fn own_pids(&self) -> Truth {
        if self.pids.is_empty() { Truth::Unknown } else { (self.pids.len() == 1).into() }
    }

    fn server(&self, directories: Option<&Directories>) -> MpsServer {
        MpsServer {
            process: self.named.key,
            inside: self.pids.last().copied(),
            uid: self.uid,
            pipe_directory: directories.and_then(|directories| text(&directories.pipes)),
            daemon: None,
            orphaned: None,
            status: None,
            clients: None,
            thread_percentage: None,
        }
    }
}

fn text(path: &Path) -> Option<String> {
    path.to_str().filter(|path| path.len() <= LONGEST_PATH).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use bailiff_mps::place::ProcessView;

    use super::*;

    const CONTROL: &str = "/usr/bin/nvidia-cuda-mps-control";
    const SERVER: &str = "/usr/bin/nvidia-cuda-mps-server";

    fn one(pid: u32, ppid: u32, examine: ProcessView<'_>) -> Found {
        let key = ProcessKey { pid, start_ticks: 7 };
        let named = Named { key, ppid, state: State::Sleeping, uid: None };
        Found { named, uid: Some(0), part: examine.part().expect("a part of MPS"), pids: vec![pid, 1] }
    }

    fn daemon(pid: u32, ppid: u32) -> Found {
        let environ = Some(b"A=b\0CUDA_MPS_PIPE_DIRECTORY=/run/mps/\0".as_slice());
        one(pid, ppid, ProcessView { exe: Some(CONTROL), cmdline: b"nvidia-cuda-mps-control\0-d\0", environ })
    }

    fn server(pid: u32, ppid: u32) -> Found {
        one(pid, ppid, ProcessView { exe: Some(SERVER), ..ProcessView::default() })
    }

    #[test]
    fn a_server_is_an_orphan_if_its_parent_is_known_to_be_no_daemon() {
        let cases = [
            (vec![daemon(10, 1), server(20, 10)], 0, Some(false)),
            (vec![daemon(10, 1), server(20, 10)], 10, Some(false)),
            (vec![daemon(10, 1), server(20, 1)], 0, Some(true)),
            (vec![server(20, 1)], 0, Some(true)),
            (vec![server(20, 11)], 11, None),
            (vec![server(20, 1)], 11, Some(true)),
        ];
        for (found, unread, orphaned) in cases {
            let mps = describe(&found, |pid| pid == unread, |_| None);
            assert_eq!(mps.servers.iter().map(|server| server.orphaned).collect::<Vec<_>>(), [orphaned]);
        }
    }

    #[test]
    fn no_user_hides_those_of_others() {
        let key = |pid| ProcessKey { pid, start_ticks: pid.into() };
        let of = |uid, pids: std::ops::Range<u32>| pids.map(move |pid| (Some(uid), key(pid), ()));
        let all: Vec<_> = of(7, 100..200).chain(of(8, 200..202)).chain(of(0, 300..302)).collect();
        let (ranked, whole) = chosen(all);
        let uids: Vec<u32> = ranked.iter().filter_map(|(uid, ..)| *uid).collect();
        assert_eq!((&uids[..2], ranked.len(), whole), (&[0, 0][..], 2 + MOST_OF_ONE + 2, false));
        assert_eq!(uids.iter().filter(|uid| **uid == 8).count(), 2);
        let (ranked, whole) = chosen(of(8, 1..3).chain(of(8, 1..3)).collect());
        assert_eq!((ranked.len(), whole), (2, true));
    }

    #[test]
    fn starting_server_and_client_are_no_daemons() {
        let asker = one(12, 1, ProcessView { exe: Some(CONTROL), ..ProcessView::default() });
        let mps = describe(&[daemon(10, 1), daemon(11, 10), asker], |_| false, |_| Some(1.5));
        let [daemon] = mps.daemons.as_slice() else { panic!("{mps:?}") };
        assert_eq!((daemon.process.pid, daemon.started), (10, Some(1.5)));
        assert_eq!(daemon.pipe_directory.as_deref(), Some("/run/mps"));
        assert_eq!(daemon.log_directory.as_deref(), Some("/var/log/nvidia-mps"));
        assert_eq!(daemon.own_pids, Truth::False, "the daemon is in its own namespace");
        assert!(mps.servers.is_empty());
    }
}
