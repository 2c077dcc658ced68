//! Processes that were not read in time. They can be members of any workload or pod to which their parents belong, so the
//! members of these are unknown.

use std::collections::{BTreeMap, HashSet};

use bailiff_proc::{LATE, Proc, ReadError, StatusReads};
use bailiff_snapshot::workload::{Home, Node, starts_of_ancestors};
use bailiff_snapshot::{Gap, Seen};

use super::{Entry, Member, Other, Relations, Time, gap};

impl Relations {
    /// Adds the processes that were not read in time, because they can be members of workloads.
    pub(super) fn enter_unread(&mut self, proc: &Proc, time: Time) -> Result<(), Gap> {
        let mut found = BTreeMap::new();
        self.status_reads = StatusReads::default();
        let unread = std::mem::take(&mut self.unread);
        let cgroups = proc.cgroups(unread.keys().copied().collect(), Some(time.climb_until)).map_err(gap)?;
        let mut cgroups: BTreeMap<u32, _> = cgroups.into_iter().collect();
        for (pid, is_holder) in unread {
            if time.climb_until.passed() {
                return Err(Gap::Processes);
            }
            let cgroup = cgroups.remove(&pid).unwrap_or(Err(LATE));
            let reads = &mut self.status_reads;
            match proc.process(pid).and_then(|it| self.others.read_status(&it, cgroup, reads)) {
                Ok(read) => drop(found.insert(pid, (read, is_holder))),
                Err(ReadError::Gone) => {}
                Err(error) => return Err(gap(error)),
            }
        }
        let parent = |pid: u32| found.get(&pid).map(|((other, _), _)| other.stat.ppid);
        let start = |pid: u32| self.table.get(&pid).map(|entry| entry.node.key.start_ticks);
        let starts = starts_of_ancestors(found.keys().copied(), parent, start);
        for (pid, ((other, has_parent), is_holder)) in found {
            let Other { mut stat, uid, cgroup } = other;
            self.enter_pod(&cgroup.place);
            self.unread_pods.extend(cgroup.place.pod_uid.clone());
            self.unread_cgroups.extend(uid.filter(|_| cgroup.home == Home::Unknown));
            stat.key.start_ticks = starts.get(&pid).copied().unwrap_or_default();
            let node = Node::new(&stat, uid, cgroup.home.clone());
            let member = Member::new(&stat, cgroup.inside.clone());
            self.table.insert(pid, Entry { has_parent, ..Entry::new(node, member, is_holder) });
            self.unread.insert(pid, is_holder);
        }
        Ok(())
    }

    /// Returns the processes that were not read in time, or whose cgroup is unknown.
    pub(super) fn unclear(&self) -> HashSet<u32> {
        let has_no_home = |entry: &&Entry| entry.node.home == Home::Unknown;
        let homeless = self.table.values().filter(has_no_home).map(|entry| entry.node.key.pid);
        self.unread.keys().copied().chain(homeless).collect()
    }

    /// Returns these processes and those that descend from them.
    pub(super) fn and_below(&self, unclear: HashSet<u32>) -> HashSet<u32> {
        let mut below = unclear;
        // Parents come first.
        for pid in &self.order {
            let parent = self.table.get(pid).map_or(0, |entry| entry.node.ppid);
            if below.contains(&parent) {
                below.insert(*pid);
            }
        }
        below
    }

    /// Returns the pods that contain, or may contain, such a process.
    fn pods_of(&self, unclear: &HashSet<u32>, seen: &BTreeMap<u32, Seen>) -> HashSet<String> {
        // A process without a known pod may belong to that of its parent.
        let entries = unclear.iter().filter_map(|pid| self.table.get(pid));
        let pids: HashSet<u32> = entries.flat_map(|entry| [entry.node.key.pid, entry.node.ppid]).collect();
        let others = self.found.iter().filter(|other| pids.contains(&other.stat.key.pid));
        let holders = seen.iter().filter(|(pid, _)| pids.contains(pid)).filter_map(|(_, seen)| seen.found());
        let places = others.map(|other| &*other.cgroup.place).chain(holders.map(|facts| &facts.place));
        places.filter_map(|place| place.pod_uid.clone()).chain(self.unread_pods.iter().cloned()).collect()
    }

    /// Marks holders whose workload or pod contains, or may contain, such a process, or from which such a process descends.
    pub(super) fn mark_unread_relatives(&self, unclear: &HashSet<u32>, seen: &mut BTreeMap<u32, Seen>) {
        let pods = self.pods_of(unclear, seen);
        let entries = unclear.iter().filter_map(|pid| self.table.get(pid));
        // A process without a known workload may belong to that of its parent.
        let parent = |entry: &Entry| self.table.get(&entry.node.ppid)?.workload.as_ref();
        let workloads: HashSet<String> = entries
            .filter_map(|entry| Some(entry.workload.as_ref().or_else(|| parent(entry))?.to_string()))
            .collect();
        let mut line: HashSet<u32> = HashSet::new();
        for pid in unclear {
            let mut next = *pid;
            while let Some(entry) = self.table.get(&next).filter(|entry| line.insert(entry.node.key.pid)) {
                next = entry.node.ppid;
            }
        }
        for facts in seen.values_mut().filter_map(Seen::found_mut) {
            let in_workload = facts.workload.as_ref().is_some_and(|workload| workloads.contains(workload));
            // If parent or cgroup of a process of the same user were not read, it can be a relative.
            let is_unknown = facts
                .uid
                .is_some_and(|uid| self.status_reads.used_up(uid) || self.unread_cgroups.contains(&uid));
            let in_pod = facts.place.pod_uid.as_ref().is_some_and(|uid| pods.contains(uid));
            facts.unread_relatives = in_workload || in_pod || line.contains(&facts.key.pid) || is_unknown;
        }
    }
}
