//! Which processes belong to a subject at this moment. Who is killed is decided elsewhere; here it is only told
//! who belongs together.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::workload::{self, Home, Look, Node};

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
        let found = match self.subject.kind {
            Kind::Workload | Kind::Gpu => {
                let name = self.subject.id.0.strip_prefix("workload:").unwrap_or_default();
                let mut found = of_workload(table, name);
                // Once the root of a tree has ended, its offspring are trees of their own.
                let same = |parent: &Person, child: &Person| parent.stat.session == child.stat.session;
                found.extend(self.offspring(table, same));
                found
            }
            Kind::Process | Kind::MpsServer => {
                self.offspring(table, |_, child| !self.holding.contains(&child.stat.key))
            }
            Kind::Lease => Vec::new(),
        };
        found.into_iter().map(|person| (person.stat.key.pid, person.stat.key)).collect()
    }

    /// The verified, the subject's own and whoever they started in their own cgroup.
    fn offspring<'a>(&self, table: &'a Table, belongs: impl Fn(&Person, &Person) -> bool) -> Vec<&'a Person> {
        let roots = self.subject.members.iter().filter(|member| member.holds).filter_map(|member| member.key);
        let mut next: Vec<&Person> =
            roots.chain(self.verified.iter().copied()).filter_map(|key| table.get(key)).collect();
        let mut known: BTreeSet<u32> = next.iter().map(|person| person.stat.key.pid).collect();
        let mut all = Vec::new();
        while let Some(person) = next.pop() {
            all.push(person);
            let children = table.children(person.stat.key.pid).iter().filter_map(|pid| table.people.get(pid));
            let of_its_place = children.filter(|child| child.place.cgroup == person.place.cgroup);
            next.extend(
                of_its_place.filter(|child| belongs(person, child) && known.insert(child.stat.key.pid)),
            );
        }
        all
    }
}

/// Those whose workload has this name.
fn of_workload<'a>(table: &'a Table, name: &str) -> Vec<&'a Person> {
    let node = |person: &Person| Node::new(&person.stat, Home::of(&person.place));
    let nodes: BTreeMap<u32, Node> = table.people.iter().map(|(pid, person)| (*pid, node(person))).collect();
    let look = |pid: u32| nodes.get(&pid).cloned().map_or(Look::Gone, Look::There);
    let belongs = |pid: &u32| {
        let workload = nodes.get(pid).and_then(|node| workload::workload(node, look));
        workload.is_some_and(|workload| workload.to_string() == name)
    };
    table.people.iter().filter(|(pid, _)| belongs(pid)).map(|(_, person)| person).collect()
}
