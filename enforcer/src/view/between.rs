//! Makes a view of a snapshot and the view before it. Neither fails nor waits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::wire;

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
        if let Some(past) = before.map(|before| Past::new(before, &snapshot)) {
            let now = Now { used: used(&snapshot), snapshot: &snapshot };
            for target in targets.iter_mut().filter(|target| target.kind != Kind::Gpu) {
                (target.cpu, target.io) = (past.cpu(target, &now), past.io(target, &now));
            }
        }
        Self { snapshot, targets, holds }
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

/// What processes had used at the snapshot before.
struct Past<'a> {
    window: Duration,
    used: HashMap<Key, Used>,
    /// Who was in each target.
    members: HashMap<&'a str, &'a Target>,
    before: &'a View,
}

/// A pid and a start tick.
type Key = (u32, u64);

#[derive(Clone, Copy)]
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

impl<'a> Past<'a> {
    fn new(before: &'a View, snapshot: &wire::Snapshot) -> Self {
        Self {
            window: Duration::from_millis(snapshot.boot_ms.saturating_sub(before.snapshot.boot_ms)),
            used: used(&before.snapshot),
            members: before.targets.iter().map(|target| (&*target.id.0, target)).collect(),
            before,
        }
    }

    /// CPU time of all its processes in the window, and of children that ended in it and were waited for.
    fn cpu(&self, target: &Target, now: &Now<'_>) -> Value {
        let Some(then) = self.members.get(&*target.id.0).copied() else { return NO_WINDOW };
        let (Some(_), Some(_)) = (&target.relatives, &then.relatives) else {
            return Value::Unknown("its other processes were not looked for");
        };
        let here = keys(now.snapshot, target);
        let there = keys(&self.before.snapshot, then);
        let mut spent = 0.0;
        for key in &here {
            let Some(used) = now.used.get(key) else { return Value::Unknown("CPU time was not read") };
            if there.contains(key) && !self.used.contains_key(key) {
                return Value::Unknown("CPU time was not read at the snapshot before");
            }
            // One that was not there before has spent all of its time in this window.
            spent += used.cpu() - self.used.get(key).map_or(0.0, Used::cpu);
        }
        let gone = there.into_iter().filter(|key| !here.contains(key));
        let Some(ended) = self.ended(gone, &here, now) else { return self.at_least(spent) };
        match spent - ended {
            spent if spent < -EPSILON => Value::Unknown("CPU time went back"),
            spent => Value::Number(spent.max(0.0) / self.window.as_secs_f64()),
        }
    }

    /// What processes that have ended had used before this window, and what their parents' figures now hold as
    /// well; none where a parent did not wait for its child, so that the child's last work is not known.
    fn ended(&self, gone: impl Iterator<Item = Key>, here: &BTreeSet<Key>, now: &Now<'_>) -> Option<f64> {
        let mut by_parent: HashMap<u32, f64> = HashMap::new();
        for key in gone {
            let used = self.used.get(&key)?;
            *by_parent.entry(used.parent).or_default() += used.cpu();
        }
        let mut sum = 0.0;
        for (parent, ended) in by_parent {
            let key = here.iter().find(|(pid, _)| *pid == parent)?;
            let waited = now.used.get(key)?.reaped - self.used.get(key)?.reaped;
            if waited + EPSILON < ended {
                return None;
            }
            sum += ended;
        }
        Some(sum)
    }

    fn at_least(&self, spent: f64) -> Value {
        Value::AtLeast(spent.max(0.0) / self.window.as_secs_f64())
    }

    /// Bytes a second of those that hold memory.
    fn io(&self, target: &Target, now: &Now<'_>) -> Value {
        let mut moved = 0_u64;
        for place in &target.processes {
            let Some(process) = now.snapshot.processes.get(*place) else { continue };
            let Some(key) = process.start_ticks.map(|ticks| (process.pid, ticks)) else { return NO_WINDOW };
            let read = |used: &HashMap<Key, Used>| used.get(&key).map(|used| used.io);
            match (read(&self.used), read(&now.used)) {
                (Some(Some(then)), Some(Some(now))) if now >= then => {
                    moved = (now - then).saturating_add(moved);
                }
                (None, _) => return NO_WINDOW,
                _ => return Value::Unknown("the exporter may not read it"),
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes in one window are not to be expected")]
        let moved = moved as f64;
        Value::Number(moved / self.window.as_secs_f64())
    }
}

/// A tick of the kernel's account of CPU time, and a little more for rounding.
const EPSILON: f64 = 0.011;

/// What processes have used now.
struct Now<'a> {
    snapshot: &'a wire::Snapshot,
    used: HashMap<Key, Used>,
}

fn used(snapshot: &wire::Snapshot) -> HashMap<Key, Used> {
    let holders = snapshot.processes.iter().filter_map(|process| {
        let facts = process.facts.as_ref()?;
        let used = Used {
            own: facts.cpu_seconds,
            reaped: facts.reaped_cpu_seconds?,
            io: facts.io_bytes,
            parent: facts.ppid,
        };
        Some(((process.pid, process.start_ticks?), used))
    });
    let relatives = snapshot.relatives.iter().flatten().map(|relative| {
        let used = Used {
            own: relative.cpu_seconds,
            reaped: relative.reaped_cpu_seconds,
            io: None,
            parent: relative.ppid,
        };
        ((relative.pid, relative.start_ticks), used)
    });
    holders.chain(relatives).collect()
}

/// Who is in a target of a snapshot.
fn keys(snapshot: &wire::Snapshot, target: &Target) -> BTreeSet<Key> {
    let holders = target.processes.iter().filter_map(|place| {
        let process = snapshot.processes.get(*place)?;
        Some((process.pid, process.start_ticks?))
    });
    let others = snapshot.relatives.as_deref().unwrap_or_default();
    let others = target.relatives.iter().flatten().filter_map(|place| {
        let relative = others.get(*place)?;
        Some((relative.pid, relative.start_ticks))
    });
    holders.chain(others).collect()
}
