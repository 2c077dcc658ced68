//! The processes that belong to a subject at this moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bailiff_snapshot::slurm::{JobRecord, is_slurmstepd};
use bailiff_snapshot::workload::{self, Home, Lookup, Node, oldest_first};
use bailiff_snapshot::{ProcessKey, Truth};

use crate::Kind;
use crate::process::{ProcessInfo, Table};
use crate::verdict::Subject;

/// Input for finding the processes of a subject.
pub struct Members<'a, F> {
    /// The subject, as it was decided.
    pub subject: &'a Subject,
    /// Its verified processes that are still running.
    pub verified: &'a [ProcessKey],
    /// Whether a process holds GPU memory. If the subject is a process or an MPS server, its descendants with GPU memory do
    /// not belong to it, because they are separate targets.
    pub holds: F,
}

impl<F: Fn(ProcessKey) -> Truth> Members<'_, F> {
    /// Returns the processes that belong to the subject now, by pid.
    pub fn find(&self, table: &Table) -> BTreeMap<u32, ProcessKey> {
        let found = match self.subject.kind {
            Kind::Workload | Kind::Gpu => {
                let name = self.subject.id.0.strip_prefix("workload:").unwrap_or_default();
                let mut found = of_workload(table, name);
                // After the root of a process tree has exited, its descendants form trees of their own.
                let same =
                    |parent: &ProcessInfo, child: &ProcessInfo| parent.stat.session == child.stat.session;
                found.extend(self.offspring(table, same));
                found
            }
            Kind::Process | Kind::MpsServer => {
                self.offspring(table, |_, child| (self.holds)(child.stat.key) != Truth::True)
            }
            Kind::SlurmJob => self.subject.job.as_ref().map(|job| of_job(table, job)).unwrap_or_default(),
            Kind::Pod => of_pod(table, self.subject.id.0.strip_prefix("pod:").unwrap_or_default()),
            Kind::Lease => Vec::new(),
        };
        found.into_iter().map(|person| (person.stat.key.pid, person.stat.key)).collect()
    }

    /// Returns the pid of one of these members that may be a separate target, because its GPU memory is unknown.
    pub fn separate(&self, members: &BTreeMap<u32, ProcessKey>) -> Option<u32> {
        let evaluated = |key: ProcessKey| {
            self.subject.members.iter().any(|member| member.holds && member.key == Some(key))
        };
        let may_be = |key: ProcessKey| !evaluated(key) && (self.holds)(key) == Truth::Unknown;
        let is_process = self.subject.kind == Kind::Process;
        members.values().filter(|_| is_process).find(|key| may_be(**key)).map(|key| key.pid)
    }

    /// Returns the pid of a process that may belong to the subject, because its workload is unknown: a child of one of
    /// these members, an ancestor in the same session if the subject is a process tree, or a process of a Slurm job's owner.
    pub fn unclear(&self, table: &Table, members: &BTreeMap<u32, ProcessKey>) -> Option<u32> {
        let is_unknown = |person: &ProcessInfo| Home::of(&person.place) == Home::Unknown;
        let owner = self.slurm_owner();
        let may_belong = |person: &ProcessInfo| {
            members.contains_key(&person.stat.ppid) || owner.is_some_and(|owner| owner == person.uid)
        };
        let mut others = table.people.values().filter(|person| !members.contains_key(&person.stat.key.pid));
        let below = others.find(|person| may_belong(person) && is_unknown(person));
        let is_tree = self.subject.id.0.starts_with("workload:tree:");
        let above =
            || line(table, members.keys().filter(|_| is_tree)).into_iter().find(|person| is_unknown(person));
        below.or_else(above).map(|person| person.stat.key.pid)
    }

    /// Returns the owner of the subject if it is a Slurm job. Other uids, such as root's in containers, can have several users.
    fn slurm_owner(&self) -> Option<u32> {
        let is_slurms = self.subject.id.0.starts_with("workload:slurm:");
        match &self.subject.job {
            Some(job) => Some(job.uid),
            None => self.subject.members.iter().filter(|_| is_slurms).find_map(|member| member.uid),
        }
    }

    /// Returns the verified processes, the subject's own, and their descendants in the same cgroup or below the
    /// same container or unit.
    fn offspring<'a>(
        &self,
        table: &'a Table,
        belongs: impl Fn(&ProcessInfo, &ProcessInfo) -> bool,
    ) -> Vec<&'a ProcessInfo> {
        let roots = self.subject.members.iter().filter(|member| member.holds).filter_map(|member| member.key);
        let mut next: Vec<&ProcessInfo> =
            roots.chain(self.verified.iter().copied()).filter_map(|key| table.get(key)).collect();
        let mut known: BTreeSet<u32> = next.iter().map(|person| person.stat.key.pid).collect();
        let mut all = Vec::new();
        while let Some(person) = next.pop() {
            all.push(person);
            let children = table.children(person.stat.key.pid).iter().filter_map(|pid| table.people.get(pid));
            let of_its_place = children.filter(|child| workload::share_cgroup(&child.place, &person.place));
            next.extend(
                of_its_place.filter(|child| belongs(person, child) && known.insert(child.stat.key.pid)),
            );
        }
        all
    }
}

/// Returns these processes and their ancestors in the same sessions.
fn line<'a>(table: &'a Table, pids: impl Iterator<Item = &'a u32>) -> Vec<&'a ProcessInfo> {
    let (mut known, mut found) = (BTreeSet::new(), Vec::new());
    let mut next: Vec<&ProcessInfo> = pids.filter_map(|pid| table.people.get(pid)).collect();
    while let Some(person) = next.pop() {
        if known.insert(person.stat.key.pid) {
            found.push(person);
            let parent = table.people.get(&person.stat.ppid);
            next.extend(parent.filter(|parent| parent.stat.session == person.stat.session));
        }
    }
    found
}

/// Returns the processes whose workload has this name.
fn of_workload<'a>(table: &'a Table, name: &str) -> Vec<&'a ProcessInfo> {
    let node = |person: &ProcessInfo| Node::new(&person.stat, Some(person.uid), Home::of(&person.place));
    let mut nodes: HashMap<u32, Node> =
        table.people.iter().map(|(pid, person)| (*pid, node(person))).collect();
    // A process that was not read may be the root of the tree.
    for pid in &table.unread {
        let start = name.strip_prefix("tree:").and_then(|root| root.strip_prefix(&format!("{pid}@")));
        if let (Some(Ok(start)), Some(node)) = (start.map(str::parse), nodes.get_mut(pid)) {
            node.key.start_ticks = start;
        }
    }
    let mut found = Vec::new();
    for pid in oldest_first(nodes.values(), |pid| nodes.get(&pid)) {
        let lookup = |pid: u32| nodes.get(&pid).cloned().map_or(Lookup::Gone, Lookup::There);
        let workload = nodes.get(&pid).and_then(|node| workload::workload(node, lookup));
        if let Some(node) = nodes.get_mut(&pid) {
            node.set_workload(workload.as_ref());
        }
        if workload.is_some_and(|workload| workload.to_string() == name) {
            found.extend(table.people.get(&pid));
        }
    }
    found
}

/// Returns the processes in the cgroup of a Slurm job, without the external step and Slurm's own.
fn of_job<'a>(table: &'a Table, job: &JobRecord) -> Vec<&'a ProcessInfo> {
    let is_slurm = |person: &ProcessInfo| person.uid == 0 && is_slurmstepd(&person.stat.comm);
    let belongs = |person: &&ProcessInfo| {
        job.contains(&person.place) && matches!(Home::of(&person.place), Home::Named(_)) && !is_slurm(person)
    };
    table.people.values().filter(belongs).collect()
}

/// Returns the processes in all containers of a pod.
fn of_pod<'a>(table: &'a Table, uid: &str) -> Vec<&'a ProcessInfo> {
    table.people.values().filter(|person| person.place.pod_uid.as_deref() == Some(uid)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use bailiff_snapshot::stat::Stat;
    use bailiff_snapshot::{Place, State};

    use crate::verdict::Member;
    use crate::view::TargetId;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

    fn person(pid: u32, ppid: u32, session: u32, cgroup: &str) -> ProcessInfo {
        let stat = Stat {
            key: key(pid),
            comm: "python3".into(),
            state: State::Sleeping,
            ppid,
            session,
            cpu_ticks: 0,
            reaped_ticks: None,
            threads: 1,
            kernel_thread: false,
        };
        let place = Place::parse(&format!("0::{cgroup}")).into();
        ProcessInfo { stat, uid: 1000, place, unified: None, exe: None, exe_uid: None }
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: u64::from(pid) }
    }

    fn table() -> Table {
        let container = format!("/docker/{ID}");
        Table::of([
            person(1, 0, 1, "/"),
            person(10, 1, 10, "/s"),
            person(11, 10, 10, "/s"),
            person(12, 11, 10, "/s"),
            person(13, 10, 13, "/s"),
            person(14, 10, 10, "/elsewhere"),
            person(15, 14, 10, "/elsewhere"),
            person(20, 1, 20, "/s"),
            person(30, 1, 30, &container),
            person(31, 1, 31, &container),
            person(32, 30, 32, &format!("{container}/below/docker-{OTHER}.scope")),
            person(33, 30, 33, &format!("/system.slice/docker-{OTHER}.scope")),
            person(40, 1, 40, &format!("/system.slice/docker-{OTHER}.scope")),
            person(41, 1, 41, &format!("/own.slice/docker-{OTHER}.scope")),
        ])
    }

    /// The subject whose members are searched, and the expected result.
    struct Case<'a> {
        kind: Kind,
        id: &'a str,
        holder: u32,
        verified: &'a [u32],
        holding: &'a [u32],
        expected: &'a [u32],
    }

    fn member(pid: u32) -> Member {
        Member {
            key: Some(key(pid)),
            pid,
            uid: Some(1000),
            comm: String::new(),
            exe: None,
            cgroup: "/s".into(),
            confinement: "/s".into(),
            notebook: None,
            vram: None,
            holds: true,
        }
    }

    fn subject((id, kind): (&str, Kind), members: Vec<Member>) -> Subject {
        let id = TargetId(id.into());
        Subject { id, kind, uid: None, user: None, gpus: Vec::new(), job: None, pod: None, members }
    }

    fn check(case: &Case<'_>) {
        let subject = subject((case.id, case.kind), vec![member(case.holder)]);
        let verified: Vec<ProcessKey> = case.verified.iter().copied().map(key).collect();
        let holds = |key: ProcessKey| Truth::from(case.holding.contains(&key.pid));
        let members = Members { subject: &subject, verified: &verified, holds };
        let found: Vec<u32> = members.find(&table()).into_keys().collect();
        assert_eq!(found, case.expected, "{} {:?}", case.id, case.holding);
    }

    #[test]
    fn members_of_a_process_are_its_descendants_without_memory() {
        let case = Case {
            kind: Kind::Process,
            id: "process:10@10",
            holder: 10,
            verified: &[],
            holding: &[10],
            expected: &[10, 11, 12, 13],
        };
        check(&case);
        check(&Case { holding: &[10, 11], expected: &[10, 13], ..case });
        check(&Case { holding: &[10, 12], expected: &[10, 11, 13], ..case });
        check(&Case { holder: 9, verified: &[11], expected: &[11, 12], ..case });
        check(&Case { id: "process:30@30", holder: 30, holding: &[30], expected: &[30, 32], ..case });
    }

    #[test]
    fn process_with_unknown_cgroup_may_be_a_member_of_its_relatives() {
        let unclear = |unknown: ProcessInfo, target: (&str, Kind), members: &[u32]| {
            let table = Table::sorted(table().with([unknown]).people);
            let members = members.iter().map(|pid| (*pid, key(*pid))).collect();
            let subject = subject(target, vec![member(11)]);
            Members { subject: &subject, verified: &[], holds: |_| Truth::False }.unclear(&table, &members)
        };
        let (process, tree) = (("process:11@11", Kind::Process), ("workload:tree:10@10", Kind::Workload));
        let (job, container) =
            (("workload:slurm:/j", Kind::Workload), ("workload:container:/c", Kind::Workload));
        let place = Arc::<Place>::default();
        let unknown =
            |pid, ppid, session| ProcessInfo { place: place.clone(), ..person(pid, ppid, session, "") };
        let cases = [
            ("a child", unclear(unknown(50, 12, 50), process, &[11, 12]), Some(50)),
            ("a child of another", unclear(unknown(50, 20, 50), process, &[11, 12]), None),
            ("the parent of a process", unclear(unknown(10, 1, 10), process, &[11, 12]), None),
            ("the root of a tree", unclear(unknown(10, 1, 10), tree, &[11, 12]), Some(10)),
            ("the parent in another session", unclear(unknown(10, 1, 9), tree, &[11, 12]), None),
            ("a process of the job's owner", unclear(unknown(50, 1, 50), job, &[11]), Some(50)),
            ("a process of a container's owner", unclear(unknown(50, 1, 50), container, &[11]), None),
        ];
        for (what, found, expected) in cases {
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn descendant_with_unknown_memory_may_be_a_separate_target() {
        let separate = |target, holds: fn(u32) -> Truth| {
            let members = [11, 12].map(|pid| (pid, key(pid))).into();
            let subject = subject(target, vec![member(11)]);
            Members { subject: &subject, verified: &[], holds: |key: ProcessKey| holds(key.pid) }
                .separate(&members)
        };
        let (process, tree) = (("process:11@11", Kind::Process), ("workload:tree:10@10", Kind::Workload));
        assert_eq!(separate(process, |_| Truth::Unknown), Some(12), "11 was evaluated");
        assert_eq!(separate(process, |pid| if pid == 12 { Truth::False } else { Truth::Unknown }), None);
        assert_eq!(separate(tree, |_| Truth::Unknown), None, "it belongs to the workload");
    }

    #[test]
    fn memory_of_a_subject_is_unknown_without_that_of_each_holder() {
        let holder = |vram| Member { vram, ..member(11) };
        let other = Member { holds: false, vram: Some(9), ..member(12) };
        let memory = |kind, members: &[Member]| subject(("", kind), members.to_vec()).memory();
        assert_eq!(memory(Kind::Process, &[holder(Some(3)), holder(Some(4)), other.clone()]), Some(7));
        assert_eq!(memory(Kind::Process, &[holder(Some(3)), holder(None)]), None);
        assert_eq!(memory(Kind::Process, std::slice::from_ref(&other)), None);
        assert_eq!(memory(Kind::Pod, &[other]), Some(0), "pods can have no process with memory");
    }

    #[test]
    fn members_of_deeply_nested_processes_are_found_at_once() {
        let nested = (10..30_010).map(|pid| person(pid, pid - 1, 10, "/s"));
        let table = Table::of(nested.chain([person(1, 0, 1, "/")]));
        assert_eq!(of_workload(&table, "tree:10@10").len(), 30_000);
    }

    #[test]
    fn members_of_a_job_are_the_processes_in_its_steps() {
        let at = |pid, uid, comm: &str, path: &str| {
            let mut found = person(pid, 1, pid, &format!("/system.slice/slurmstepd.scope/{path}"));
            (found.uid, found.stat.comm) = (uid, comm.into());
            found
        };
        let table = Table::of([
            at(50, 1000, "bash", "job_7/step_batch/user/task_0"),
            at(51, 1001, "python3", "job_7/step_0/user/task_0"),
            at(52, 0, "slurmstepd", "job_7/step_0/slurm"),
            at(57, 0, "slurmstepd-wlm", "job_7/step_1/slurm"),
            at(53, 1000, "slurmstepd", "job_7/step_0/user"),
            at(54, 0, "sleep", "job_7/step_extern/user"),
            at(55, 1000, "bash", "job_77/step_batch/user/task_0"),
            at(56, 1000, "bash", "s5K1KKYAYG5D00/step_0/user"),
        ]);
        let record = |sluid: Option<&str>| JobRecord {
            boot_id: String::new(),
            job: "7".parse().unwrap(),
            sluid: sluid.map(|sluid| sluid.parse().unwrap()),
            uid: 1000,
            user: None,
            account: None,
            node: String::new(),
            gpus: None,
            boot_ms: 0,
        };
        for (sluid, expected) in [(None, vec![50, 51, 53]), (Some("s5K1KKYAYG5D00"), vec![50, 51, 53, 56])] {
            let found = of_job(&table, &record(sluid)).into_iter().map(|person| person.stat.key.pid);
            assert_eq!(found.collect::<Vec<u32>>(), expected);
        }
    }

    #[test]
    fn members_of_a_workload_are_all_of_its_name() {
        let container = format!("workload:container:/docker/{ID}");
        let (one, other) =
            (format!("/system.slice/docker-{OTHER}.scope"), format!("/own.slice/docker-{OTHER}.scope"));
        let [one, other] = [one, other].map(|path| format!("workload:container:{path}"));
        let case = Case {
            kind: Kind::Workload,
            id: "workload:tree:10@10",
            holder: 10,
            verified: &[],
            holding: &[10],
            expected: &[10, 11, 12, 14, 15],
        };
        check(&case);
        check(&Case { id: "workload:tree:9@9", holder: 9, verified: &[11], expected: &[11, 12], ..case });
        check(&Case { id: &container, holder: 30, expected: &[30, 31, 32], ..case });
        check(&Case { id: &one, holder: 40, expected: &[33, 40], ..case });
        check(&Case { id: &other, holder: 41, expected: &[41], ..case });
        check(&Case { id: "workload:", holder: 99, expected: &[], ..case });
        check(&Case { kind: Kind::Lease, expected: &[], ..case });
    }
}
