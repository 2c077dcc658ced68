//! What an exporter reported of pids before it was restarted. The driver goes on listing a process that has exited while another
//! process has its device files open, and only an exporter that has seen the earlier process knows that another one has the pid.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::{LostGpu, wire};

use super::{View, leases};

/// Pid and start tick.
type Key = (u32, u64);

/// What earlier exporters reported.
#[derive(Debug, Clone, Default)]
pub(super) struct ReusedPids {
    /// Processes with a pid that the driver may have listed for another process.
    marked: BTreeSet<Key>,
    /// The processes that the last exporter reported, by pid, until the next one has read all lists once.
    earlier: BTreeMap<u32, Earlier>,
}

#[derive(Debug, Clone)]
struct Earlier {
    start_ticks: Option<u64>,
    author: Option<Author>,
    reused_pid: bool,
}

/// Owner of a process, and the cgroup that it cannot leave.
type Author = (u32, String);

impl Earlier {
    fn of(process: &wire::Process) -> Self {
        let reused_pid = process.facts.as_ref().is_some_and(|facts| facts.reused_pid);
        Self { start_ticks: process.start_ticks, author: author(process), reused_pid }
    }

    /// Returns whether the driver may have listed the pid for another process than this one.
    fn may_be_another(&self, process: &wire::Process) -> bool {
        if self.start_ticks == process.start_ticks {
            return self.reused_pid;
        }
        self.author.is_none() || self.author != author(process)
    }
}

impl ReusedPids {
    /// Marks the processes that may be others than those that the driver lists.
    pub(super) fn next(before: &View, now: &mut wire::Snapshot) -> Self {
        let Self { mut marked, mut earlier } = before.reused_pids.clone();
        let is_restarted = before.snapshot.began_ms != now.began_ms || now.seq <= before.snapshot.seq;
        if is_restarted {
            earlier
                .extend(before.snapshot.processes.iter().map(|process| (process.pid, Earlier::of(process))));
        }
        if marked.is_empty() && earlier.is_empty() {
            return Self::default();
        }
        let mut unidentified = BTreeSet::new();
        let mut listed = BTreeSet::new();
        for process in &mut now.processes {
            let Some(start_ticks) = process.start_ticks else {
                unidentified.insert(process.pid);
                continue;
            };
            let key = (process.pid, start_ticks);
            listed.insert(key);
            if earlier.get(&process.pid).is_some_and(|earlier| earlier.may_be_another(process)) {
                marked.insert(key);
            }
            if marked.contains(&key) {
                process.facts.iter_mut().for_each(|facts| facts.reused_pid = true);
            }
        }
        let answered = now.sources.get("nvml").is_some_and(|nvml| nvml.up);
        let is_whole = answered && now.gpus.iter().all(leases::lists_holders);
        let is_lost = |(pid, ticks): &Key| now.lost.iter().any(|gpu| gpu.may_be_held_by(*pid, Some(*ticks)));
        marked
            .retain(|key| !is_whole || listed.contains(key) || unidentified.contains(&key.0) || is_lost(key));
        let lists = |gpu: &LostGpu, pid| {
            gpu.last.as_ref().is_none_or(|last| last.holders.iter().any(|(other, _)| *other == pid))
        };
        earlier.retain(|pid, _| {
            !is_whole || unidentified.contains(pid) || now.lost.iter().any(|gpu| lists(gpu, *pid))
        });
        Self { marked, earlier }
    }
}

fn author(process: &wire::Process) -> Option<Author> {
    let facts = process.facts.as_ref()?;
    let confinement = Some(facts.place.confinement()).filter(|path| !path.is_empty())?;
    Some((facts.uid?, confinement.to_owned()))
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::{Place, State};
    use snapshot_fixtures::stream as fixtures;

    use super::*;

    /// What the driver says of the pid.
    #[derive(Clone, Copy)]
    enum Listed {
        No,
        /// There is no list.
        Silent,
        /// The GPU is lost.
        Lost,
        Unidentified,
        /// A process with this uid and start tick, and whether its pid was reused.
        Process(u32, u64, bool),
    }
    use Listed::{Lost, No, Process, Silent, Unidentified};

    fn snapshot((at, began_ms): (u64, u64), listed: Listed) -> wire::Snapshot {
        let process = |uid, start_ticks, reused_pid| {
            let place = Place { cgroup: "/user.slice/user-1000.slice".into(), ..Place::default() };
            let facts =
                wire::Facts { reused_pid, uid: Some(uid), place: place.into(), ..fixtures::facts("python3") };
            fixtures::process(41, start_ticks, facts)
        };
        let processes = match listed {
            No | Silent | Lost => Vec::new(),
            Unidentified => vec![fixtures::unconfirmed(41, at, State::Unknown)],
            Process(uid, start_ticks, reused_pid) => vec![process(uid, start_ticks, reused_pid)],
        };
        let holders: Vec<_> =
            processes.iter().map(|process| fixtures::holder(process.pid, None, None)).collect();
        let gpus = match listed {
            Lost => Vec::new(),
            Silent => vec![wire::Gpu { listed: None, ..fixtures::gpu("0", holders) }],
            _ => vec![fixtures::gpu("0", holders)],
        };
        let lost = LostGpu {
            index: "0".into(),
            uuid: Some("GPU-0".into()),
            parent_uuid: None,
            since_ms: None,
            last: None,
        };
        let lost = if matches!(listed, Lost) { vec![lost] } else { Vec::new() };
        wire::Snapshot { began_ms, lost, ..fixtures::snapshot(at, gpus, processes) }
    }

    /// Returns whether the process is marked in the last of these snapshots; in the first, another exporter reported.
    fn is_marked(first: Listed, later: &[Listed]) -> bool {
        let later = later.iter().zip(10..).map(|(listed, at)| snapshot((at, 2), *listed));
        let all = std::iter::once(snapshot((9, 1), first)).chain(later);
        let view = all.fold(None, |view, next| Some(View::between(view.as_ref(), next)));
        let facts = view.expect("a view").snapshot.processes.into_iter().find_map(|process| process.facts);
        facts.is_some_and(|facts| facts.reused_pid)
    }

    #[test]
    fn reused_pid_is_remembered_when_the_exporter_is_restarted() {
        let (marked, now) = (Process(4001, 7, true), Process(4001, 7, false));
        for (first, later, expected) in [
            (marked, vec![now], true),
            (marked, vec![Silent, now], true),
            (marked, vec![now, Silent, now], true),
            (marked, vec![now, Unidentified, now], true),
            (marked, vec![now, Lost, now], true),
            (marked, vec![now, No, now], false),
            // Its pid was reused while no exporter was running.
            (Process(4002, 5, false), vec![now], true),
            (Process(4002, 5, false), vec![Silent, now], true),
            (Process(4002, 5, false), vec![Lost, now], true),
            (Unidentified, vec![now], true),
            (Process(4001, 5, false), vec![now], false),
            (Process(4002, 5, false), vec![No, now], false),
            (No, vec![now], false),
        ] {
            assert_eq!(is_marked(first, &later), expected, "{}", later.len());
        }
    }

    #[test]
    fn the_same_exporter_knows_which_process_is_listed() {
        let first = View::between(None, snapshot((9, 1), Process(4002, 5, true)));
        for process in [Process(4002, 5, false), Process(4001, 7, false)] {
            let next = View::between(Some(&first), snapshot((10, 1), process));
            let facts = next.snapshot.processes[0].facts.as_ref();
            assert!(facts.is_some_and(|facts| !facts.reused_pid));
        }
    }
}
