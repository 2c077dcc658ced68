//! Makes a view of a snapshot and the view before it. Neither fails nor waits.

use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::wire;
use hashbrown::HashMap;

use super::{Target, TargetId, View};
use crate::policy::Kind;
use crate::value::Value;

impl View {
    /// The view of a snapshot. The view before is for what only two can tell: use of CPU and storage.
    #[must_use]
    pub fn between(before: Option<&Self>, snapshot: wire::Snapshot) -> Self {
        let before = before.filter(|before| {
            before.snapshot.boot_id == snapshot.boot_id && before.snapshot.boot_ms < snapshot.boot_ms
        });
        let mut maker = Maker::new(&snapshot);
        maker.processes();
        maker.workloads();
        maker.gpus();
        let Maker { holds, mut targets, .. } = maker;
        let account = Account::of(&snapshot, &targets);
        if let Some(before) = before {
            let length = Duration::from_millis(snapshot.boot_ms.saturating_sub(before.snapshot.boot_ms));
            let window = Window { length, before, now: &account };
            for target in targets.iter_mut().filter(|target| target.kind != Kind::Gpu) {
                (target.cpu, target.io) = (window.cpu(target), window.io(target));
            }
        }
        Self { snapshot, targets, holds, account }
    }
}

const NO_WINDOW: Value = Value::Unknown("no snapshot before");

struct Maker<'a> {
    snapshot: &'a wire::Snapshot,
    holds: Vec<Vec<(usize, usize)>>,
    /// Children among the relatives, by parent's pid.
    children: HashMap<u32, Vec<usize>>,
    targets: Vec<Target>,
}

impl<'a> Maker<'a> {
    fn new(snapshot: &'a wire::Snapshot) -> Self {
        let places: HashMap<u32, usize> =
            snapshot.processes.iter().enumerate().map(|(place, process)| (process.pid, place)).collect();
        let mut holds = vec![Vec::new(); snapshot.processes.len()];
        for (gpu, held) in snapshot.gpus.iter().enumerate() {
            for (place, holder) in held.holders.iter().enumerate() {
                if let Some(process) = places.get(&holder.pid) {
                    holds[*process].push((gpu, place));
                }
            }
        }
        let mut children: HashMap<u32, Vec<usize>> = HashMap::new();
        for (place, relative) in snapshot.relatives.iter().flatten().enumerate() {
            children.entry(relative.ppid).or_default().push(place);
        }
        let targets = Vec::with_capacity(snapshot.processes.len() * 2 + snapshot.gpus.len());
        Self { snapshot, holds, children, targets }
    }

    fn processes(&mut self) {
        for (place, process) in self.snapshot.processes.iter().enumerate() {
            // What the snapshot could not confirm, and does not know to be gone, is no target: it may be one
            // that is known by its start time.
            let name = match (process.start_ticks, process.first_seq, process.state.as_str()) {
                (Some(ticks), _, _) => format!("process:{}@{ticks}", process.pid),
                (None, Some(seq), "gone") => format!("process:{}#{seq}", process.pid),
                _ => continue,
            };
            let mut target = self.target((Kind::Process, name), vec![place]);
            target.relatives = self.snapshot.relatives.as_ref().map(|_| self.descendants(process.pid));
            if role(process) == Some("mps_server") {
                let name = format!("mps_server:{}", &target.id.0["process:".len()..]);
                let server = self.target((Kind::MpsServer, name), vec![place]);
                self.targets.push(server);
            }
            self.targets.push(target);
        }
    }

    fn workloads(&mut self) {
        let mut members: HashMap<&str, (Vec<usize>, Vec<usize>)> = HashMap::new();
        let mut order = Vec::new();
        for (place, process) in self.snapshot.processes.iter().enumerate() {
            let Some(workload) = process.facts.as_ref().and_then(|facts| facts.workload.as_deref()) else {
                continue;
            };
            let entry = members.entry(workload).or_insert_with(|| {
                order.push(workload);
                Default::default()
            });
            entry.0.push(place);
        }
        for (place, relative) in self.snapshot.relatives.iter().flatten().enumerate() {
            if let Some(entry) = members.get_mut(relative.workload.as_str()) {
                entry.1.push(place);
            }
        }
        for workload in order {
            let Some((holders, others)) = members.remove(workload) else { continue };
            let mut target = self.target((Kind::Workload, format!("workload:{workload}")), holders);
            target.relatives = self.snapshot.relatives.as_ref().map(|_| others);
            self.targets.push(target);
        }
    }

    fn gpus(&mut self) {
        for (place, gpu) in self.snapshot.gpus.iter().enumerate() {
            let Some(uuid) = &gpu.uuid else { continue };
            let mut target = self.target((Kind::Gpu, format!("gpu:{uuid}")), Vec::new());
            target.gpus = vec![place];
            self.targets.push(target);
        }
    }

    fn target(&self, (kind, name): (Kind, String), processes: Vec<usize>) -> Target {
        let mut gpus: Vec<usize> =
            processes.iter().flat_map(|process| &self.holds[*process]).map(|(gpu, _)| *gpu).collect();
        gpus.sort_unstable();
        gpus.dedup();
        Target {
            id: TargetId(Arc::from(name)),
            kind,
            processes,
            relatives: None,
            gpus,
            cpu: NO_WINDOW,
            io: NO_WINDOW,
        }
    }

    /// Relatives below a process; not below another holder among them, which is a target of its own.
    fn descendants(&self, pid: u32) -> Vec<usize> {
        let mut found = Vec::new();
        if !self.children.contains_key(&pid) {
            return found;
        }
        let mut parents = vec![pid];
        while let Some(parent) = parents.pop() {
            for child in self.children.get(&parent).into_iter().flatten() {
                // A loop of parents cannot be, and must not be walked for ever.
                if found.len() > self.children.len() + self.snapshot.processes.len() {
                    return found;
                }
                if let Some(relative) = self.snapshot.relatives.as_deref().unwrap_or_default().get(*child) {
                    found.push(*child);
                    parents.push(relative.pid);
                }
            }
        }
        found
    }
}

fn role(process: &wire::Process) -> Option<&str> {
    process.facts.as_ref()?.role.as_deref()
}

/// A pid and a start tick.
type Key = (u32, u64);

/// What is compared of every process of a snapshot with the snapshot before, close together in memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    /// By place in the snapshot.
    holders: Vec<Option<Entry>>,
    relatives: Vec<Entry>,
    used: HashMap<Key, Used>,
    /// By name: the target's place in the view.
    targets: HashMap<TargetId, usize>,
}

/// A process, and what it has used where that was read.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    used: Option<Used>,
}

#[derive(Debug, Clone, Copy)]
struct Used {
    /// CPU time of its own, seconds.
    own: f64,
    /// CPU time of children that it waited for, seconds.
    reaped: f64,
    /// Bytes to and from storage.
    io: Option<u64>,
    parent: u32,
}

impl Used {
    fn cpu(&self) -> f64 {
        self.own + self.reaped
    }
}

impl Account {
    fn of(snapshot: &wire::Snapshot, targets: &[Target]) -> Self {
        let holders: Vec<Option<Entry>> = snapshot.processes.iter().map(holder).collect();
        let relatives: Vec<Entry> = snapshot.relatives.iter().flatten().map(relative).collect();
        let known = holders.iter().flatten().chain(&relatives);
        let used = known.filter_map(|entry| Some((entry.key, entry.used?))).collect();
        let targets = targets.iter().enumerate().map(|(place, target)| (target.id.clone(), place)).collect();
        Self { holders, relatives, used, targets }
    }

    /// Who is in a target of its snapshot, in order.
    fn members(&self, target: &Target) -> Vec<Entry> {
        let holders = target.processes.iter().filter_map(|place| *self.holders.get(*place)?);
        let relatives = target.relatives.iter().flatten();
        let relatives = relatives.filter_map(|place| self.relatives.get(*place).copied());
        let mut members: Vec<Entry> = holders.chain(relatives).collect();
        members.sort_unstable_by_key(|entry| entry.key);
        members
    }
}

fn holder(process: &wire::Process) -> Option<Entry> {
    let used = process.facts.as_ref().and_then(|facts| {
        Some(Used {
            own: facts.cpu_seconds,
            reaped: facts.reaped_cpu_seconds?,
            io: facts.io_bytes,
            parent: facts.ppid,
        })
    });
    Some(Entry { key: (process.pid, process.start_ticks?), used })
}

fn relative(relative: &wire::Relative) -> Entry {
    let used = Used {
        own: relative.cpu_seconds,
        reaped: relative.reaped_cpu_seconds,
        io: None,
        parent: relative.ppid,
    };
    Entry { key: (relative.pid, relative.start_ticks), used: Some(used) }
}

/// Two snapshots and the time between them.
struct Window<'a> {
    length: Duration,
    before: &'a View,
    now: &'a Account,
}

impl Window<'_> {
    /// CPU time of all its processes in the window, and of children that ended in it and were waited for.
    fn cpu(&self, target: &Target) -> Value {
        let then = &self.before.account;
        let Some(past) = then.targets.get(&target.id).and_then(|place| self.before.targets.get(*place))
        else {
            return NO_WINDOW;
        };
        let (Some(_), Some(_)) = (&target.relatives, &past.relatives) else {
            return Value::Unknown("its other processes were not looked for");
        };
        let here = self.now.members(target);
        let there = then.members(past);
        let mut spent = 0.0;
        for entry in &here {
            let Some(used) = entry.used else { return Value::Unknown("CPU time was not read") };
            let before = match find(&there, entry.key) {
                Some(Entry { used: None, .. }) => {
                    return Value::Unknown("CPU time was not read at the snapshot before");
                }
                Some(Entry { used, .. }) => *used,
                // It was in another target, or not there at all: then all of its time is of this window.
                None => then.used.get(&entry.key).copied(),
            };
            spent += used.cpu() - before.map_or(0.0, |used| used.cpu());
        }
        let gone = there.iter().filter(|entry| find(&here, entry.key).is_none());
        let Some(ended) = self.ended(gone, &here) else { return self.at_least(spent) };
        match spent - ended {
            spent if spent < -EPSILON => Value::Unknown("CPU time went back"),
            spent => Value::Number(spent.max(0.0) / self.length.as_secs_f64()),
        }
    }

    /// What processes that have ended had used before this window, and what their parents' figures now hold as
    /// well; none where a parent did not wait for its child, so that the child's last work is not known.
    fn ended<'e>(&self, gone: impl Iterator<Item = &'e Entry>, here: &[Entry]) -> Option<f64> {
        let mut by_parent: Vec<(u32, f64)> = Vec::new();
        for entry in gone {
            let used = entry.used?;
            match by_parent.iter_mut().find(|(parent, _)| *parent == used.parent) {
                Some((_, sum)) => *sum += used.cpu(),
                None => by_parent.push((used.parent, used.cpu())),
            }
        }
        let mut sum = 0.0;
        for (parent, ended) in by_parent {
            let parent = here.iter().find(|entry| entry.key.0 == parent)?;
            let waited = parent.used?.reaped - self.before.account.used.get(&parent.key)?.reaped;
            if waited + EPSILON < ended {
                return None;
            }
            sum += ended;
        }
        Some(sum)
    }

    fn at_least(&self, spent: f64) -> Value {
        Value::AtLeast(spent.max(0.0) / self.length.as_secs_f64())
    }

    /// Bytes a second of those that hold memory.
    fn io(&self, target: &Target) -> Value {
        let mut moved = 0_u64;
        for place in &target.processes {
            let Some(Entry { key, used }) = self.now.holders.get(*place).copied().flatten() else {
                return NO_WINDOW;
            };
            let Some(then) = self.before.account.used.get(&key) else { return NO_WINDOW };
            match (then.io, used.and_then(|used| used.io)) {
                (Some(then), Some(now)) if now >= then => moved = (now - then).saturating_add(moved),
                _ => return Value::Unknown("the exporter may not read it"),
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes in one window are not to be expected")]
        let moved = moved as f64;
        Value::Number(moved / self.length.as_secs_f64())
    }
}

fn find(members: &[Entry], key: Key) -> Option<&Entry> {
    members.binary_search_by_key(&key, |entry| entry.key).ok().map(|place| &members[place])
}

/// A tick of the kernel's account of CPU time, and a little more for rounding.
const EPSILON: f64 = 0.011;
