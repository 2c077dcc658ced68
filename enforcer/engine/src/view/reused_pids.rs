//! Which processes may be others than those that the driver lists with their pids. The exporter knows that as well, but forgets it
//! when it is restarted.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::listed::{Candidate, ListedPids};
use bailiff_snapshot::{PidNamespace, ProcessKey, Word, wire};
use hashbrown::{HashMap, HashSet};

/// Pids that each GPU lists, by UUID, or by index without one. They are kept while a GPU is missing or has no list.
pub(super) type Listed = BTreeMap<String, ListedPids>;

/// Marks the processes that may be others than those that the driver lists, and returns the listed pids.
pub(super) fn mark(before: Option<&Listed>, now: &mut wire::Snapshot) -> Listed {
    let mut listed = before.cloned().unwrap_or_default();
    if now.pid_namespace != Word::Known(PidNamespace::Host) {
        // The exporter attributes no pid.
        return listed;
    }
    let identified: HashMap<u32, (Candidate, bool)> = now.processes.iter().filter_map(identify).collect();
    let process = |pid: u32| identified.get(&pid).map(|(process, _)| process.clone());
    // A process may start during the sample.
    let at = Duration::from_millis(now.boot_ms.saturating_add(now.interval_ms));
    let mut reused: HashSet<u32> = HashSet::new();
    for gpu in now.gpus.iter().filter(|gpu| gpu.fault.is_none() && gpu.listed.is_some()) {
        let before = listed.remove(name(gpu)).unwrap_or_default();
        let pids = gpu.holders.iter().map(|holder| holder.pid);
        let mut next = before.next((gpu.parent_uuid.as_deref(), pids), at, process);
        for holder in &gpu.holders {
            let Some((process, is_marked)) = identified.get(&holder.pid) else { continue };
            if next.may_be_another(process) {
                reused.insert(holder.pid);
            } else if *is_marked && holder.memory.is_none() && before.is_unseen(holder.pid) {
                // On other GPUs, the exporter may know the memory of the process.
                next.set_exited(holder.pid);
            }
        }
        if !next.is_empty() {
            listed.insert(name(gpu).to_owned(), next);
        }
    }
    ListedPids::forget_removed(&mut listed, |parent, instance| {
        now.gpus.iter().any(|gpu| name(gpu) == parent && gpu.instances.is_some())
            && !now.gpus.iter().any(|gpu| name(gpu) == instance)
    });
    for process in now.processes.iter_mut().filter(|process| reused.contains(&process.pid)) {
        process.facts.iter_mut().for_each(|facts| facts.reused_pid = true);
    }
    listed
}

/// Returns a process that was identified, by its pid, and whether the exporter has marked it.
fn identify(process: &wire::Process) -> Option<(u32, (Candidate, bool))> {
    let (facts, start_ticks) = (process.facts.as_ref()?, process.start_ticks?);
    let key = ProcessKey { pid: process.pid, start_ticks };
    Some((process.pid, (Candidate::new(key, facts.uid, &facts.place), facts.reused_pid)))
}

fn name(gpu: &wire::Gpu) -> &str {
    gpu.uuid.as_deref().unwrap_or(&gpu.index)
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::{Place, State};
    use snapshot_fixtures::stream as fixtures;

    use super::super::View;
    use super::*;

    /// What the driver says of the pid.
    #[derive(Debug, Clone, Copy)]
    enum Says {
        Unlisted,
        /// There is no list.
        Nothing,
        /// There is a list, in another PID namespace.
        Unattributed,
        /// The GPU is missing.
        Missing,
        /// It could not be read.
        Unread,
        /// A process with this uid and start tick, and whether the exporter has marked it.
        Process(u32, u64, bool),
    }
    use Says::{Missing, Nothing, Process, Unattributed, Unlisted, Unread};

    fn snapshot(at: u64, says: Says) -> wire::Snapshot {
        let processes = match says {
            Unlisted | Nothing | Unattributed | Missing => Vec::new(),
            Unread => vec![fixtures::unconfirmed(41, at, State::Unknown)],
            Process(uid, start_ticks, reused_pid) => {
                let place = Place { cgroup: "/user.slice/user-1000.slice".into(), ..Place::default() };
                let facts = wire::Facts {
                    reused_pid,
                    uid: Some(uid),
                    place: place.into(),
                    ..fixtures::facts("python3")
                };
                vec![fixtures::process(41, start_ticks, facts)]
            }
        };
        let holders: Vec<_> =
            processes.iter().map(|process| fixtures::holder(process.pid, None, None)).collect();
        let mut gpus = vec![fixtures::gpu("0", holders)];
        match says {
            Missing => gpus.clear(),
            Nothing => gpus[0].listed = None,
            _ => {}
        }
        let mut snapshot = fixtures::snapshot(at, gpus, processes);
        if matches!(says, Unattributed) {
            snapshot.pid_namespace = PidNamespace::Other.into();
        }
        snapshot
    }

    /// Returns whether the process is marked in the last of these snapshots.
    fn is_marked(says: &[Says]) -> bool {
        let all = says.iter().zip(1..).map(|(says, at)| snapshot(at, *says));
        let view = all.fold(None, |view, next| Some(View::between(view.as_ref(), next)));
        let facts = view.expect("a view").snapshot.processes.into_iter().find_map(|process| process.facts);
        facts.is_some_and(|facts| facts.reused_pid)
    }

    /// An exporter that is restarted marks none of these.
    #[test]
    fn reused_pid_is_remembered_when_the_exporter_is_restarted() {
        let (a, b, c) = (Process(4002, 5, false), Process(4001, 7, false), Process(4001, 9, false));
        let marked = Process(4001, 7, true);
        let cases: [(&[Says], bool); 16] = [
            (&[a, b], true),
            (&[a, b, b], true),
            (&[a, b, c], true),
            (&[a, Nothing, b], true),
            (&[a, Unattributed, b], true),
            (&[a, Missing, Missing, b], true),
            (&[a, Unread, b], true),
            (&[a, b, Unread, b], true),
            (&[marked, b], true),
            (&[marked, Nothing, b], true),
            (&[marked, b, c], true),
            (&[marked, c], true),
            (&[a, Unlisted, b], false),
            (&[marked, Unlisted, b], false),
            (&[b, c], false),
            // Since when the pid was listed is known.
            (&[Unread, b], false),
        ];
        for (says, expected) in cases {
            assert_eq!(is_marked(says), expected, "{says:?}");
        }
    }

    #[test]
    fn pid_is_remembered_for_its_gpu() {
        let two = |at, first, second: Option<Says>| {
            let mut all = snapshot(at, first);
            let of_second = second.map(|says| snapshot(at, says));
            let holders = of_second.iter().flat_map(|it| it.gpus[0].holders.clone()).collect();
            if let Some(second) = of_second {
                all.processes = second.processes;
            }
            all.gpus.push(fixtures::gpu("1", holders));
            all
        };
        let (a, b) = (Process(4002, 5, false), Process(4001, 7, false));
        let is_marked = |snapshots: Vec<wire::Snapshot>| {
            let view =
                snapshots.into_iter().fold(None, |view, next| Some(View::between(view.as_ref(), next)));
            let processes = view.expect("a view").snapshot.processes;
            processes.iter().filter_map(|process| process.facts.as_ref()).any(|facts| facts.reused_pid)
        };
        // The first GPU has no list, while the second lists the later process.
        assert!(is_marked(vec![snapshot(1, a), two(2, Nothing, Some(b)), two(3, b, Some(b))]));
        // Only the first GPU listed the earlier process.
        assert!(!is_marked(vec![snapshot(1, a), two(2, Unlisted, Some(b)), two(3, Unlisted, Some(b))]));
        // The exporter knows what the later process holds on the second GPU.
        let mut both = two(1, Process(4001, 7, true), Some(Process(4001, 7, true)));
        both.gpus[1].holders[0].memory = Some(1 << 30);
        assert!(!is_marked(vec![both, two(2, Unlisted, Some(b))]));
    }
}
