//! The oracle's own interpretation of a snapshot: which targets exist, their attributes, and which of them are exempt.

use bailiff_engine::Kind;
use bailiff_engine::value::Value;
use bailiff_engine::view::View;
use bailiff_snapshot::wire;
use bailiff_snapshot::{LostGpu, State, Truth};

use crate::plan::{Cond, Plan};
use crate::world::MIB;

/// A target in a snapshot.
pub(crate) struct ObservedTarget<'a> {
    pub(crate) id: String,
    pub(crate) processes: Vec<&'a wire::Process>,
    pub(crate) relatives: Option<Vec<&'a wire::Relative>>,
    /// Descendants of a workload's processes that belong to another workload.
    below: Vec<&'a wire::Relative>,
    pub(crate) gpu: Option<&'a wire::Gpu>,
    held: Vec<(&'a wire::Gpu, &'a wire::Holder)>,
    cpu: Value,
    snapshot: &'a wire::Snapshot,
}

/// Attributes of a process.
#[derive(Default)]
struct Process<'a> {
    uid: Option<u32>,
    comm: Option<&'a str>,
    exe: Option<&'a str>,
}

/// All targets in a snapshot.
pub(crate) struct Coverage<'a> {
    pub(crate) view: &'a View,
    processes: Vec<ObservedTarget<'a>>,
    workloads: Vec<ObservedTarget<'a>>,
    gpus: Vec<ObservedTarget<'a>>,
}

impl<'a> Coverage<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        Self {
            view,
            processes: all(view, Kind::Process),
            workloads: all(view, Kind::Workload),
            gpus: all(view, Kind::Gpu),
        }
    }

    pub(crate) fn of(&self, kind: Kind) -> &[ObservedTarget<'a>] {
        match kind {
            Kind::Process => &self.processes,
            Kind::Workload => &self.workloads,
            Kind::Gpu => &self.gpus,
            Kind::Lease | Kind::MpsServer | Kind::SlurmJob | Kind::Pod => &[],
        }
    }

    pub(crate) fn find(&self, kind: Kind, id: &str) -> Option<&ObservedTarget<'a>> {
        self.of(kind).iter().find(|target| target.id == id)
    }
}

/// GPUs and pids that show whether a target that is not observed is gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces {
    pub(crate) gpus: Vec<String>,
    pub(crate) pids: Vec<u32>,
}

/// Returns all targets of a kind.
fn all<'a>(view: &'a View, kind: Kind) -> Vec<ObservedTarget<'a>> {
    let snapshot = &view.snapshot;
    let mut found: Vec<ObservedTarget<'a>> = Vec::new();
    let observe = |id: String,
                   processes: Vec<&'a wire::Process>,
                   relatives: Option<Vec<&'a wire::Relative>>,
                   gpu| {
        let cpu =
            view.targets.iter().find(|target| *target.id.0 == *id).map_or(Value::Unknown(""), |it| it.cpu);
        let held = holdings(snapshot, &processes);
        let below = below(snapshot, &processes, relatives.as_deref());
        ObservedTarget { id, processes, relatives, below, gpu, held, cpu, snapshot }
    };
    match kind {
        Kind::Process => {
            for process in &snapshot.processes {
                let id = match (process.start_ticks, process.first_seq, &*process.state) {
                    (Some(ticks), _, _) => format!("process:{}@{ticks}", process.pid),
                    (None, Some(seq), "gone") => format!("process:{}#{seq}", process.pid),
                    _ => continue,
                };
                let below = snapshot
                    .relatives
                    .as_ref()
                    .map(|all| all.iter().filter(|relative| relative.ppid == process.pid).collect());
                found.push(observe(id, vec![process], below, None));
            }
        }
        Kind::Workload => {
            let mut names: Vec<&str> = snapshot.processes.iter().filter_map(workload).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let members = snapshot.processes.iter().filter(|it| workload(it) == Some(name)).collect();
                let below = snapshot
                    .relatives
                    .as_ref()
                    .map(|all| all.iter().filter(|relative| relative.workload == name).collect());
                found.push(observe(format!("workload:{name}"), members, below, None));
            }
        }
        Kind::Gpu => {
            for gpu in &snapshot.gpus {
                if let Some(uuid) = &gpu.uuid {
                    found.push(observe(format!("gpu:{uuid}"), Vec::new(), None, Some(gpu)));
                }
            }
        }
        Kind::Lease | Kind::MpsServer | Kind::SlurmJob | Kind::Pod => {}
    }
    found
}

/// Returns children of these processes that are not yet counted.
fn below<'a>(
    snapshot: &'a wire::Snapshot,
    processes: &[&wire::Process],
    counted: Option<&[&wire::Relative]>,
) -> Vec<&'a wire::Relative> {
    let counted = |other: &wire::Relative| counted.into_iter().flatten().any(|one| one.pid == other.pid);
    let child = |other: &wire::Relative| processes.iter().any(|process| process.pid == other.ppid);
    snapshot.relatives.iter().flatten().filter(|other| child(other) && !counted(other)).collect()
}

fn holdings<'a>(
    snapshot: &'a wire::Snapshot,
    processes: &[&wire::Process],
) -> Vec<(&'a wire::Gpu, &'a wire::Holder)> {
    let mut found = Vec::new();
    for gpu in &snapshot.gpus {
        for holder in &gpu.holders {
            if processes.iter().any(|process| process.pid == holder.pid) {
                found.push((gpu, holder));
            }
        }
    }
    found
}

pub(crate) fn workload(process: &wire::Process) -> Option<&str> {
    process.facts.as_ref()?.workload.as_deref()
}

/// Returns whether there is a GPU without a process list, which any process might hold. For a lost GPU, the remembered
/// list may be known.
fn blind(snapshot: &wire::Snapshot) -> bool {
    let silent = snapshot.gpus.iter().filter(|gpu| gpu.instances.is_none());
    silent.filter(|gpu| gpu.fault.is_some() || gpu.listed.is_none()).any(|gpu| {
        let known = snapshot.lost.iter().any(|lost| lost.uuid == gpu.uuid);
        gpu.fault.as_deref() != Some("lost") || !known
    })
}

/// Returns whether a process may hold a lost GPU. A process that started after the GPU was lost does not hold it. A
/// process that started before the remembered list was read and that is not in it does not hold it either.
fn may_hold(lost: &LostGpu, pid: u32, ticks: Option<u64>) -> bool {
    match (ticks, lost.since_ms, &lost.last) {
        (Some(ticks), Some(since), _) if ticks * 10 >= since => false,
        (None, ..) | (_, _, None) => true,
        (Some(ticks), _, Some(last)) => {
            last.holders.contains(&(pid, Some(ticks))) || ticks * 10 + 10 > last.at_ms
        }
    }
}

impl ObservedTarget<'_> {
    fn holdings(&self) -> &[(&wire::Gpu, &wire::Holder)] {
        &self.held
    }

    pub(crate) fn traces(&self) -> Traces {
        Traces { gpus: self.gpus(), pids: self.processes.iter().map(|process| process.pid).collect() }
    }

    pub(crate) fn gpus(&self) -> Vec<String> {
        let mut uuids: Vec<String> = match self.gpu {
            Some(gpu) => gpu.uuid.iter().cloned().collect(),
            None => self.holdings().iter().filter_map(|(gpu, _)| gpu.uuid.clone()).collect(),
        };
        uuids.sort();
        uuids.dedup();
        uuids
    }

    /// Returns the age of the youngest process, or `None` if a start time is unknown.
    pub(crate) fn youngest_ms(&self) -> Option<u64> {
        let starts: Option<Vec<u64>> = self.processes.iter().map(|process| process.start_ticks).collect();
        Some(self.snapshot.boot_ms.saturating_sub(*starts?.iter().max()? * 10))
    }

    pub(crate) fn gone(&self) -> bool {
        self.processes.iter().all(|process| process.state == State::Gone)
    }

    /// Returns the age of the oldest process, or `None` if a start time is unknown.
    pub(crate) fn age_ms(&self) -> Option<u64> {
        let starts: Option<Vec<u64>> = self.processes.iter().map(|process| process.start_ticks).collect();
        Some(self.snapshot.boot_ms.saturating_sub(*starts?.iter().min()? * 10))
    }

    pub(crate) fn evaluate(&self, cond: &Cond) -> Truth {
        match cond {
            Cond::All(conds) => {
                let all: Vec<Truth> = conds.iter().map(|cond| self.evaluate(cond)).collect();
                if all.contains(&Truth::False) {
                    Truth::False
                } else if all.contains(&Truth::Unknown) {
                    Truth::Unknown
                } else {
                    Truth::True
                }
            }
            Cond::Any(conds) => {
                let all: Vec<Truth> = conds.iter().map(|cond| self.evaluate(cond)).collect();
                if all.contains(&Truth::True) {
                    Truth::True
                } else if all.contains(&Truth::Unknown) {
                    Truth::Unknown
                } else {
                    Truth::False
                }
            }
            Cond::Not(cond) => match self.evaluate(cond) {
                Truth::True => Truth::False,
                Truth::False => Truth::True,
                Truth::Unknown => Truth::Unknown,
            },
            leaf => self.leaf(leaf),
        }
    }

    fn leaf(&self, cond: &Cond) -> Truth {
        match cond {
            Cond::GpuUtilMax(max) => self.util_at_most(*max),
            Cond::CpuUtilMax(max) => match self.cpu {
                Value::Number(used) => (used * 100.0 <= f64::from(*max)).into(),
                Value::AtLeast(used) if used * 100.0 > f64::from(*max) => Truth::False,
                _ => Truth::Unknown,
            },
            Cond::VramMin(mib) => self.holds_at_least(mib * MIB),
            Cond::VramFreeBelow(mib) => match self.gpu.and_then(|gpu| gpu.memory.as_ref()) {
                Some(memory) => (memory.free < mib * MIB).into(),
                None => Truth::Unknown,
            },
            Cond::ProcessCountMax(max) => match self.gpu.and_then(|gpu| gpu.listed) {
                Some(listed) => (listed <= *max).into(),
                None => Truth::Unknown,
            },
            Cond::AgeMin(seconds) => match self.age_ms() {
                Some(age) => (age >= seconds * 1000).into(),
                None => Truth::Unknown,
            },
            Cond::Orphaned(expected) => self.orphaned(*expected),
            Cond::State(state) => self.state(state),
            Cond::Users(uids) => self.users(uids),
            Cond::Gpus(places) => {
                let hit = |place: &u32| self.holdings().iter().any(|(gpu, _)| gpu.index == place.to_string());
                if places.iter().any(hit) {
                    Truth::True
                } else if self.partial() {
                    Truth::Unknown
                } else {
                    Truth::False
                }
            }
            Cond::All(_) | Cond::Any(_) | Cond::Not(_) | Cond::Comms(_) | Cond::Exes(_) => {
                unreachable!("these are not leaves of a target")
            }
        }
    }

    /// Returns whether the target may hold more than was observed.
    fn partial(&self) -> bool {
        let mut members: Vec<(u32, Option<u64>)> =
            self.processes.iter().map(|process| (process.pid, process.start_ticks)).collect();
        let others = self.relatives.iter().flatten();
        members.extend(others.map(|relative| (relative.pid, Some(relative.start_ticks))));
        let lost = |lost: &LostGpu| {
            self.relatives.is_none() || members.iter().any(|(pid, ticks)| may_hold(lost, *pid, *ticks))
        };
        blind(self.snapshot) || self.gpu.is_none() && self.snapshot.lost.iter().any(lost)
    }

    fn holds_at_least(&self, bytes: u64) -> Truth {
        let held = self.holdings();
        let known: u64 = held.iter().filter_map(|(_, holder)| holder.memory).sum();
        let complete = held.iter().all(|(_, holder)| holder.memory.is_some());
        if held.iter().all(|(_, holder)| holder.memory.is_none()) {
            Truth::Unknown
        } else if known >= bytes {
            Truth::True
        } else if complete && !self.partial() {
            Truth::False
        } else {
            Truth::Unknown
        }
    }

    fn util_at_most(&self, max: u32) -> Truth {
        if let Some(gpu) = self.gpu {
            return gpu.utilization.map_or(Truth::Unknown, |percent| (percent <= max).into());
        }
        let held = self.holdings();
        if held.iter().any(|(_, holder)| holder.utilization.is_some_and(|percent| percent > max)) {
            return Truth::False;
        }
        let complete = held.iter().all(|(_, holder)| holder.utilization.is_some());
        if held.is_empty() || !complete || self.partial() { Truth::Unknown } else { Truth::True }
    }

    fn orphaned(&self, expected: bool) -> Truth {
        let each: Vec<Option<bool>> =
            self.processes.iter().map(|it| it.facts.as_ref().and_then(|facts| facts.orphaned)).collect();
        if each.contains(&Some(false)) {
            (!expected).into()
        } else if each.contains(&None) {
            Truth::Unknown
        } else {
            expected.into()
        }
    }

    fn state(&self, expected: &str) -> Truth {
        if self.processes.iter().any(|process| *process.state == *expected) {
            Truth::True
        } else if self.processes.iter().any(|process| process.state == State::Unknown) {
            Truth::Unknown
        } else {
            Truth::False
        }
    }

    fn users(&self, uids: &[u32]) -> Truth {
        let owners: Vec<Option<u32>> =
            self.processes.iter().map(|it| it.facts.as_ref().and_then(|facts| facts.uid)).collect();
        if owners.iter().flatten().any(|uid| uids.contains(uid)) {
            Truth::True
        } else if owners.contains(&None) {
            Truth::Unknown
        } else {
            Truth::False
        }
    }

    /// Returns whether the target is protected from all rules. The number of processes and their owners are checked
    /// when the action is performed.
    pub(crate) fn protected(&self, plan: &Plan) -> Truth {
        if self.gpu.is_some() || self.processes.iter().all(|process| process.state == State::Gone) {
            return Truth::False;
        }
        let contained = |process: &&wire::Process| {
            let place = process.facts.as_ref().map(|facts| &facts.place);
            place.is_some_and(|place| place.container.is_some() || place.pod_uid.is_some())
        };
        let root = |uid: Option<u32>, contained: bool| uid == Some(0) && !contained && !plan.allow_root;
        let holder = |process: &&wire::Process| match &process.facts {
            None => true,
            Some(facts) => {
                is_protected(
                    process.pid,
                    (&facts.comm, facts.exe.as_deref()),
                    (contained(process), facts.uid),
                ) || root(facts.uid, contained(process))
                    || facts.reused_pid
            }
        };
        let all_contained = self.processes.iter().all(contained);
        let other = |relative: &&wire::Relative| {
            is_protected(
                relative.pid,
                (&relative.comm, relative.exe.as_deref()),
                (all_contained, relative.uid),
            ) || root(relative.uid, all_contained)
        };
        if self.processes.iter().any(holder) || self.relatives.iter().flatten().any(other) {
            return Truth::True;
        }
        plan.protect.as_ref().map_or(Truth::False, |protect| self.exempts(protect))
    }

    /// Returns whether one of the target's processes matches, whether it holds memory or not. The result is unknown if
    /// a process is unknown or was possibly not observed.
    pub(crate) fn exempts(&self, cond: &Cond) -> Truth {
        if self.gpu.is_some() {
            return self.evaluate(cond);
        }
        let holders = self.processes.iter().map(|process| match &process.facts {
            Some(facts) => Process { uid: facts.uid, comm: Some(&facts.comm), exe: facts.exe.as_deref() },
            None => Process::default(),
        });
        let relatives = self.relatives.iter().flatten().chain(&self.below).map(|relative| Process {
            uid: relative.uid,
            comm: Some(&relative.comm),
            exe: relative.exe.as_deref(),
        });
        let unseen = self.relatives.is_none().then(Process::default);
        let found: Vec<Truth> =
            holders.chain(relatives).chain(unseen).map(|process| self.of_one(cond, &process)).collect();
        [Truth::True, Truth::Unknown].into_iter().find(|truth| found.contains(truth)).unwrap_or(Truth::False)
    }

    /// Evaluates a condition. Process conditions are evaluated for the process, other conditions for the target.
    fn of_one(&self, cond: &Cond, process: &Process<'_>) -> Truth {
        let known = |text: Option<&str>, expected: &[&str]| {
            text.map_or(Truth::Unknown, |text| expected.contains(&text).into())
        };
        let weakest = |conds: &[Cond], order: [Truth; 2], last| {
            let found: Vec<Truth> = conds.iter().map(|cond| self.of_one(cond, process)).collect();
            order.into_iter().find(|truth| found.contains(truth)).unwrap_or(last)
        };
        match cond {
            Cond::Users(uids) => process.uid.map_or(Truth::Unknown, |uid| uids.contains(&uid).into()),
            Cond::Comms(names) => known(process.comm, names),
            Cond::Exes(paths) => known(process.exe, paths),
            Cond::All(conds) => weakest(conds, [Truth::False, Truth::Unknown], Truth::True),
            Cond::Any(conds) => weakest(conds, [Truth::True, Truth::Unknown], Truth::False),
            Cond::Not(cond) => match self.of_one(cond, process) {
                Truth::True => Truth::False,
                Truth::False => Truth::True,
                Truth::Unknown => Truth::Unknown,
            },
            of_target => self.leaf(of_target),
        }
    }

    /// Returns the memory of the target's processes; `None` if that of one is unknown or there is no process.
    pub(crate) fn memory(&self) -> Option<u64> {
        let all = self.held.iter().map(|(_, holder)| holder.memory).sum();
        if self.processes.is_empty() { None } else { all }
    }

    /// Returns the user whom budgets and failures are counted for: the common owner, or that of the first process.
    pub(crate) fn charged(&self) -> Option<u32> {
        let holders = self.processes.iter().map(|it| it.facts.as_ref().and_then(|facts| facts.uid));
        let others = self.relatives.iter().flatten().map(|relative| relative.uid);
        self.uid().or_else(|| holders.chain(others).next()?)
    }

    /// Returns the common owner of the target's processes.
    pub(crate) fn uid(&self) -> Option<u32> {
        let holders = self.processes.iter().map(|it| it.facts.as_ref().and_then(|facts| facts.uid));
        let others = self.relatives.iter().flatten().map(|relative| relative.uid);
        let mut owners: Vec<Option<u32>> = holders.chain(others).collect();
        owners.dedup();
        if owners.len() == 1 { owners[0] } else { None }
    }
}

/// Returns whether a process is protected: services of system users are. In a container only driver services are, if the program
/// is not known to be another one.
fn is_protected(pid: u32, (comm, exe): (&str, Option<&str>), (contained, uid): (bool, Option<u32>)) -> bool {
    let is_driver_service = comm == "nv-hostengine" && (!contained || exe.is_none());
    let named = is_driver_service || (!contained && ["sshd", "kubelet", "slurmstepd"].contains(&comm));
    pid <= 1 || uid.is_none_or(|uid| named && uid < 1000)
}
