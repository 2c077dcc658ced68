//! Finds the workloads of holders, and the other members of these workloads, by reading every process once
//! per sample. If that is incomplete, the members are unknown, but holders are still reported.

mod unread;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::{Proc, ReadError, StatusReads};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::workload::{Lookup, Node, Workload, descends, oldest_first, workload};
use bailiff_snapshot::{Gap, Gaps, Place, ProcessKey, Relative, Seen, State, Truth, is_criu};

use super::orphan::{Member, OrphanTable};
use super::others::{Limits, Other, Others, Program};
use super::threads;
use crate::settings::{Claims, Commands, Mps, SamplerSettings};

/// Maximum number of processes; a node with more is not scanned.
const MOST: usize = 32 << 10;

/// Maximum number of ancestors; a longer chain is not reported.
const MOST_ANCESTORS: usize = 64;

/// Start and deadlines of a scan of all processes.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// Start, as time since boot.
    pub(crate) now: Duration,
    /// From then on, the scan does not renew cached properties that are only slightly outdated.
    short_from: Deadline,
    /// Deadline of the scan of all processes.
    walk_until: Deadline,
    /// Deadline of the search for holders' ancestors, which replaces an incomplete scan.
    climb_until: Deadline,
}

impl Time {
    /// Starts the time limit.
    pub(crate) fn of(now: Duration, patience: Duration) -> Self {
        let [short_from, walk_until, climb_until] =
            [patience / 4, patience * 3 / 4, patience].map(Deadline::after);
        Self { now, short_from, walk_until, climb_until }
    }
}

/// All processes of a sample, and their relations to holders.
pub(crate) struct Relations {
    others: Others,
    table: HashMap<u32, Entry>,
    /// Processes without GPU memory.
    found: Vec<Other>,
    listed: Vec<(u32, u64)>,
    /// A place in each pod with processes that are not holders, by UID of the pod.
    pods: HashMap<String, Arc<Place>>,
    /// All pids, oldest process first, and parents before their children.
    order: Vec<u32>,
    ticks_per_second: f64,
    claims: Claims,
    commands: Commands,
    mps: Mps,
    /// Whether all processes were read in this interval.
    walked: bool,
    /// Processes that were not read in time, and whether each holds GPU memory. Their start time in `table` is that of an
    /// ancestor.
    unread: BTreeMap<u32, bool>,
    /// Pods of these.
    unread_pods: HashSet<String>,
    /// Owners of those whose cgroup is unknown.
    unread_cgroups: HashSet<u32>,
    /// Reads of the `status` of these.
    status_reads: StatusReads,
}

struct Entry {
    node: Node,
    member: Member,
    is_holder: bool,
    /// Whether its parent is known.
    has_parent: bool,
    workload: Option<Workload>,
    /// Whether the process descends from a holder; `None` if that was not yet determined.
    below: Option<Truth>,
}

impl Entry {
    fn new(node: Node, member: Member, is_holder: bool) -> Self {
        Self { node, member, is_holder, has_parent: true, workload: None, below: None }
    }

    /// Returns whether the process is a holder or descends from one, as far as that was determined.
    fn of_a_holder(&self) -> Option<Truth> {
        if self.is_holder { Some(Truth::True) } else { self.below }
    }
}

impl Relations {
    pub(crate) fn new(ticks_per_second: f64, settings: &SamplerSettings) -> Self {
        Self {
            claims: settings.claims,
            commands: settings.commands,
            mps: settings.mps,
            walked: false,
            unread: BTreeMap::new(),
            unread_pods: HashSet::new(),
            unread_cgroups: HashSet::new(),
            status_reads: StatusReads::default(),
            others: Others::new(ticks_per_second),
            table: HashMap::new(),
            found: Vec::new(),
            pods: HashMap::new(),
            listed: Vec::new(),
            order: Vec::new(),
            ticks_per_second,
        }
    }

    /// Starts a new interval.
    pub(crate) fn begin(&mut self) {
        self.table.clear();
        self.found.clear();
        self.pods.clear();
        self.unread.clear();
        self.unread_pods.clear();
        self.unread_cgroups.clear();
        self.walked = false;
        self.others.begin();
    }

    /// Adds a holder that was read in this interval.
    pub(crate) fn holder(&mut self, node: Node, member: Member) {
        self.table.insert(node.key.pid, Entry::new(node, member, true));
    }

    /// Adds a holder that was not read in time.
    pub(crate) fn unread_holder(&mut self, pid: u32) {
        self.unread.insert(pid, true);
    }

    /// Returns whether a process was not read in time.
    pub(crate) fn is_unread(&self, pid: u32) -> bool {
        self.unread.contains_key(&pid)
    }

    /// Removes a process that is not a holder.
    pub(crate) fn no_holder(&mut self, pid: u32) {
        self.table.remove(&pid);
    }

    /// Sets the workloads of holders, and returns the other members; `None` if there are no holders.
    pub(crate) fn relate(
        &mut self,
        proc: &Proc,
        seen: &mut BTreeMap<u32, Seen>,
        (time, gaps): (Time, &mut Gaps),
    ) -> Result<Option<Vec<Relative>>, Gap> {
        if self.table.is_empty() {
            // Without holders there are no members, but MPS daemons may be running.
            self.walked = self.mps == Mps::Read && self.walk(proc, time).is_ok();
            return Ok(None);
        }
        let walked = self.walk(proc, time);
        self.walked = walked.is_ok();
        let unread = self.unread.values().filter(|is_holder| !**is_holder);
        unread.for_each(|_| gaps.count(Gap::Unread));
        let unread = if walked.is_ok() { HashSet::new() } else { self.climb(proc, time) };
        self.find_workloads(&unread);
        let criu = self.criu(proc, time.now);
        for facts in seen.values_mut().filter_map(Seen::found_mut) {
            let entry = self.table.get(&facts.key.pid);
            facts.workload = entry.and_then(|entry| entry.workload.as_ref()).map(Workload::to_string);
            if self.claims == Claims::Read {
                facts.ancestors = entry.and_then(|entry| self.ancestors(entry));
            }
            facts.restored = entry.is_some_and(|entry| self.descends_from(entry, &criu));
        }
        walked?;
        let unclear = self.unclear();
        self.mark_unread_relatives(&unclear, seen);
        self.mark_orphans(seen);
        let pods = seen.values().filter_map(Seen::found).filter_map(|facts| facts.place.pod_uid.as_deref());
        self.relatives(proc, (unclear, &pods.collect()), time).map(Some)
    }

    /// Returns the non-holders with the `comm` of an MPS program, and their owners, as far as known.
    pub(crate) fn named_mps(&self) -> &[(Stat, Option<u32>)] {
        self.others.named_mps()
    }

    /// Returns a place in each pod with processes that are not holders; `None` if not all processes were read.
    pub(crate) fn pods(&self) -> Option<impl Iterator<Item = &Place>> {
        self.walked.then(|| self.pods.values().map(AsRef::as_ref))
    }

    /// Returns whether a process may run that was not read in this interval.
    pub(crate) fn may_be_unread(&self, pid: u32) -> bool {
        !self.walked || self.is_unread(pid)
    }

    /// Reads every process that is not a holder.
    fn walk(&mut self, proc: &Proc, time: Time) -> Result<(), Gap> {
        self.listed.clear();
        proc.pids_with_inodes(&mut self.listed).map_err(gap)?;
        if self.listed.len() > MOST {
            return Err(Gap::Processes);
        }
        let is_due =
            |listed: &(u32, u64)| !self.table.contains_key(&listed.0) && !self.unread.contains_key(&listed.0);
        self.listed.retain(|listed| is_due(listed) && !self.others.is_kernel_thread(*listed));
        let limits =
            Limits { now: time.now, short_from: Some(time.short_from), until: Some(time.walk_until) };
        let found = self.others.read_all(proc, &self.listed, limits).map_err(gap)?;
        found.others.into_iter().for_each(|other| self.enter(other));
        if !found.is_whole {
            self.others.forget_old(&self.listed);
            return Err(Gap::Processes);
        }
        self.unread.extend(found.unread.into_iter().map(|pid| (pid, false)));
        self.enter_unread(proc, time)?;
        // With `hidepid`, other users' processes appear to be gone, as does pid 1.
        if !self.table.contains_key(&1) {
            return Err(Gap::NotPermitted);
        }
        self.others.forget_the_rest();
        Ok(())
    }

    fn enter(&mut self, other: Other) {
        let node = Node::new(&other.stat, other.uid, other.cgroup.home.clone());
        let member = Member::new(&other.stat, other.cgroup.inside.clone());
        self.table.insert(node.key.pid, Entry::new(node, member, false));
        self.enter_pod(&other.cgroup.place);
        self.found.push(other);
    }

    fn enter_pod(&mut self, place: &Arc<Place>) {
        if let Some(uid) = place.pod_uid.as_ref().filter(|uid| !self.pods.contains_key(*uid)) {
            self.pods.insert(uid.clone(), Arc::clone(place));
        }
    }

    /// Reads holders' ancestors missed by the scan. Returns unreadable pids, whose processes may exist.
    fn climb(&mut self, proc: &Proc, time: Time) -> HashSet<u32> {
        let mut unread = HashSet::new();
        let mut climbed = HashSet::new();
        let shows_others = proc.shows_others();
        let holders = self.table.values().filter(|entry| entry.is_holder);
        let mut due: Vec<u32> = holders.map(|entry| entry.node.ppid).collect();
        while let Some(pid) = due.pop() {
            if pid == 0 || !climbed.insert(pid) {
                continue;
            }
            if !self.table.contains_key(&pid) {
                match if time.climb_until.passed() {
                    Err(ReadError::Malformed)
                } else {
                    self.others.read(proc, pid, time.now)
                } {
                    Ok(Some(other)) => self.enter(other),
                    Ok(None) => {}
                    Err(ReadError::Gone) if shows_others => {}
                    Err(_) => drop(unread.insert(pid)),
                }
            }
            due.extend(self.table.get(&pid).map(|entry| entry.node.ppid));
        }
        unread
    }

    /// Finds all workloads.
    fn find_workloads(&mut self, unread: &HashSet<u32>) {
        let node = |pid| self.table.get(&pid).map(|entry| &entry.node);
        self.order = oldest_first(self.table.values().map(|entry| &entry.node), node);
        for pid in &self.order {
            let Some(entry) = self.table.get(pid) else { continue };
            let lookup = |pid| match self.table.get(&pid) {
                Some(entry) => Lookup::There(entry.node.clone()),
                None if unread.contains(&pid) => Lookup::Unknown,
                None => Lookup::Gone,
            };
            let meant = |key: ProcessKey| self.table.get(&key.pid)?.of_a_holder();
            let found = workload(&entry.node, lookup).filter(|workload| match workload {
                // The start time of a process that was not read in time is not part of a name.
                Workload::Tree(root) => !self.unread.contains_key(&root.pid),
                Workload::Named(_) => true,
            });
            let below = if entry.is_holder {
                None
            } else if entry.has_parent {
                Some(descends(&entry.node, meant, lookup).into())
            } else {
                Some(Truth::Unknown)
            };
            let Some(entry) = self.table.get_mut(pid) else { continue };
            entry.node.set_workload(found.as_ref());
            (entry.workload, entry.below) = (found, below);
        }
    }

    /// Marks orphaned holders. Requires that all processes were read.
    fn mark_orphans(&self, seen: &mut BTreeMap<u32, Seen>) {
        let holders = self.table.values().filter(|entry| entry.is_holder).map(|entry| &entry.member);
        let all = self.table.values().map(|entry| &entry.member);
        let unread = self.unread.keys().filter_map(|pid| self.table.get(pid));
        let unread: HashSet<_> = unread.filter_map(|entry| entry.member.inside.clone()).collect();
        let orphans = OrphanTable::of(all, holders, |pid| self.table.get(&pid).map(|entry| &entry.member));
        for facts in seen.values_mut().filter_map(Seen::found_mut) {
            let member = self.table.get(&facts.key.pid).map(|entry| &entry.member);
            // In a cgroup with a process that was not read in time, that is unknown.
            let member = member.filter(|it| it.inside.as_ref().is_none_or(|inside| !unread.contains(inside)));
            facts.orphaned = facts.orphaned.or_else(|| orphans.orphaned(member?));
        }
    }

    /// Returns all ancestors up to pid 1; `None` if one is unread, its pid was reused, or there are too many.
    fn ancestors(&self, entry: &Entry) -> Option<Vec<ProcessKey>> {
        let mut line = Vec::new();
        let mut node = &entry.node;
        while node.ppid != 0 {
            let parent = &self.table.get(&node.ppid)?.node;
            if self.unread.contains_key(&node.ppid)
                || parent.key.start_ticks > node.key.start_ticks
                || line.len() == MOST_ANCESTORS
            {
                return None;
            }
            line.push(parent.key);
            node = parent;
        }
        Some(line)
    }

    /// Returns the processes outside containers that run CRIU.
    fn criu(&mut self, proc: &Proc, now: Duration) -> HashSet<u32> {
        let named = self.found.iter().filter(|other| {
            is_criu(&other.stat.comm, other.uid, (None, None)) && !other.cgroup.place.is_contained()
        });
        let named: Vec<Stat> = named.map(|other| other.stat.clone()).collect();
        let genuine = named.into_iter().filter(|stat| {
            let program = match self.others.program(stat, now) {
                Some(program) => program,
                // Root's CRIU must be recognized although it was not read in time.
                None => self.others.read_program(proc, stat, (now, self.commands)).unwrap_or_default(),
            };
            is_criu(&stat.comm, Some(0), (program.exe.as_deref(), program.exe_uid))
        });
        genuine.map(|stat| stat.key.pid).collect()
    }

    /// Returns whether one of these processes is a known ancestor.
    fn descends_from(&self, entry: &Entry, these: &HashSet<u32>) -> bool {
        let mut node = &entry.node;
        for _ in 0..MOST_ANCESTORS {
            let parent = self.table.get(&node.ppid).filter(|_| !self.unread.contains_key(&node.ppid));
            let Some(parent) = parent.filter(|it| it.node.key.start_ticks <= node.key.start_ticks) else {
                break;
            };
            if these.contains(&node.ppid) {
                return true;
            }
            node = &parent.node;
        }
        false
    }

    /// Returns the processes without GPU memory that belong to a holder's workload or pod, or descend from a holder.
    fn relatives(
        &mut self,
        proc: &Proc,
        (unclear, pods): (HashSet<u32>, &HashSet<&str>),
        time: Time,
    ) -> Result<Vec<Relative>, Gap> {
        let holders = self.table.values().filter(|entry| entry.is_holder);
        let held: HashSet<&Workload> = holders.filter_map(|entry| entry.workload.as_ref()).collect();
        let mut relatives = Vec::new();
        let below_unclear = self.and_below(unclear);
        for other in std::mem::take(&mut self.found) {
            let Some(entry) = self.table.get(&other.stat.key.pid) else { continue };
            let (workload, below) = match (&entry.workload, entry.below.and_then(Truth::known)) {
                (Some(workload), Some(below)) => (workload, below),
                // It can descend only from holders that are marked.
                (Some(workload), None) if below_unclear.contains(&other.stat.key.pid) => (workload, false),
                // Skip a process with unknown workload that does not descend from a holder. Otherwise, one
                // contradictory cgroup would make the members of the whole node unknown.
                (None, Some(false)) => continue,
                // Its holder is marked.
                (None, Some(true) | None) if below_unclear.contains(&other.stat.key.pid) => continue,
                _ => return Err(Gap::Unreadable),
            };
            let in_pod = other.cgroup.place.pod_uid.as_deref().is_some_and(|uid| pods.contains(uid));
            if below || in_pod || held.contains(workload) {
                let late = other.stat.state == State::Zombie && time.climb_until.passed();
                let state = if late { State::Unknown } else { threads::state(proc, &other.stat) };
                let program = match self.others.program(&other.stat, time.now) {
                    Some(program) => program,
                    // Out of time: the program is read in a later interval and unknown until then.
                    None if time.climb_until.passed() => Program::unread(),
                    None => {
                        let read = self.others.read_program(proc, &other.stat, (time.now, self.commands));
                        read.unwrap_or_else(Program::unread)
                    }
                };
                let relative =
                    relative((other, program), workload, self.ticks_per_second).ok_or(Gap::Malformed)?;
                relatives.push(Relative { state, ..relative });
            }
        }
        relatives.sort_unstable_by_key(|relative| relative.key);
        Ok(relatives)
    }
}

fn relative(
    (other, program): (Other, Program),
    workload: &Workload,
    ticks_per_second: f64,
) -> Option<Relative> {
    let seconds = |ticks| super::others::seconds(ticks, ticks_per_second);
    Some(Relative {
        key: other.stat.key,
        state: other.stat.state,
        ppid: other.stat.ppid,
        uid: other.uid,
        user: None,
        place: Arc::clone(&other.cgroup.place),
        exe: program.exe.map(Into::into),
        exe_uid: program.exe_uid,
        command: program.command.map(Into::into),
        workload: workload.to_string(),
        cpu_seconds: seconds(other.stat.cpu_ticks),
        reaped_cpu_seconds: seconds(other.stat.reaped_ticks?),
        comm: other.stat.comm,
    })
}

const fn gap(error: ReadError) -> Gap {
    if error.is_denied() { Gap::NotPermitted } else { Gap::Unreadable }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "runs a program")]
mod tests {
    use std::process::Command;

    use bailiff_proc::NO_OWNER;
    use bailiff_snapshot::workload::Home;

    use super::*;

    #[test]
    fn name_of_a_program_that_was_not_read_in_time_does_not_protect() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (proc, now) = (Proc::own().unwrap(), Duration::from_secs(1_000_000));
        let owners = [Duration::ZERO, Duration::from_mins(1)].map(|patience| {
            let mut relations = Relations::new(100.0, &SamplerSettings::default());
            relations.begin();
            let holder = proc.stat_blocking(std::process::id()).unwrap();
            relations.holder(Node::new(&holder, Some(0), Home::Tree), Member::new(&holder, None));
            let other = relations.others.read(&proc, child.id(), now).unwrap().unwrap();
            relations.enter(other);
            relations.find_workloads(&HashSet::new());
            let none = (HashSet::new(), &HashSet::new());
            relations.relatives(&proc, none, Time::of(now, patience)).unwrap()[0].exe_uid
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owners, [Some(NO_OWNER), Some(0)]);
    }
}
