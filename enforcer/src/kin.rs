//! Which processes belong to a subject at this moment. Who is killed is decided elsewhere; here it is only told
//! who belongs together.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::ProcessKey;

use crate::census::{Person, Table};
use crate::policy::Kind;
use crate::verdict::Subject;

/// What a subject's processes are found by.
#[derive(Debug)]
pub(crate) struct Kin<'a> {
    /// As it was decided.
    pub(crate) subject: &'a Subject,
    /// Those that were verified and still live.
    pub(crate) verified: &'a [ProcessKey],
    /// All that hold GPU memory, the subject's own too: each is a target of its own.
    pub(crate) holding: &'a BTreeSet<ProcessKey>,
}

impl Kin<'_> {
    /// Those that belong to it now, by pid.
    pub(crate) fn find(&self, table: &Table) -> BTreeMap<u32, ProcessKey> {
        let mut found = BTreeMap::new();
        let mut put = |person: &Person| found.insert(person.stat.key.pid, person.stat.key);
        match self.subject.kind {
            Kind::Workload | Kind::Gpu => {
                let wanted = self.subject.id.0.strip_prefix("workload:");
                for person in table.people.values() {
                    if wanted.is_some() && workload(table, person).as_deref() == wanted {
                        put(person);
                    }
                }
                for person in self.offspring(table, |_| true) {
                    put(person);
                }
            }
            Kind::Process | Kind::MpsServer => {
                for person in self.offspring(table, |child| !self.holding.contains(&child.stat.key)) {
                    put(person);
                }
            }
            Kind::Lease => {}
        }
        found
    }

    /// The verified, the subject's own and whoever they started in their own cgroup.
    fn offspring<'a>(&self, table: &'a Table, belongs: impl Fn(&Person) -> bool) -> Vec<&'a Person> {
        let roots = self.subject.members.iter().filter(|member| member.holds).filter_map(|member| member.key);
        let mut next: Vec<&Person> =
            roots.chain(self.verified.iter().copied()).filter_map(|key| table.get(key)).collect();
        let mut known: BTreeSet<u32> = next.iter().map(|person| person.stat.key.pid).collect();
        let mut all = Vec::new();
        while let Some(person) = next.pop() {
            all.push(person);
            let children = table.children(person.stat.key.pid).iter().filter_map(|pid| table.people.get(pid));
            let of_its_place = children.filter(|child| child.place.cgroup == person.place.cgroup);
            next.extend(of_its_place.filter(|child| belongs(child) && known.insert(child.stat.key.pid)));
        }
        all
    }
}

/// The workload that a process belongs to.
fn workload(table: &Table, person: &Person) -> Option<String> {
    let place = &person.place;
    let named = [("container", &place.container), ("slurm", &place.slurm_job), ("pod", &place.pod_uid)];
    if let Some((kind, name)) = named.into_iter().find_map(|(kind, name)| Some((kind, name.as_ref()?))) {
        return Some(format!("{kind}:{name}"));
    }
    if place.unit.as_ref().is_some_and(|unit| !unit.starts_with("session-") && !unit.starts_with("user@")) {
        return Some(format!("unit:{}", place.cgroup));
    }
    let mut root = person;
    while let Some(parent) = table.people.get(&root.stat.ppid) {
        if parent.stat.key.pid == 1 || parent.uid != person.uid || parent.place.cgroup != place.cgroup {
            break;
        }
        root = parent;
    }
    Some(format!("tree:{}@{}", root.stat.key.pid, root.stat.key.start_ticks))
}
