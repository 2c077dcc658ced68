//! Builds a view from a snapshot and the previous view. It cannot fail and does not wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::slurm::{JobRecord, SlurmNode};
use bailiff_snapshot::{LostGpu, Place, Role, State, wire};
use hashbrown::HashMap;

use super::account::{Account, NO_WINDOW, Window};
use super::holdings::Holdings;
use super::{Leased, Target, TargetId, View, leases, reused_pids};
use crate::Kind;

impl View {
    /// Builds the view of a snapshot. The previous view is needed for CPU and storage use.
    pub fn between(before: Option<&Self>, mut snapshot: wire::Snapshot) -> Self {
        let holders =
            snapshot.processes.iter_mut().filter_map(|process| Some(&mut process.facts.as_mut()?.place));
        let relatives = snapshot.relatives.iter_mut().flatten().map(|relative| &mut relative.place);
        Place::share(holders.chain(relatives));
        snapshot.processes.shrink_to_fit();
        snapshot.relatives.iter_mut().for_each(Vec::shrink_to_fit);
        snapshot.gpus.iter_mut().for_each(|gpu| gpu.holders.shrink_to_fit());
        let before = before.filter(|before| {
            before.snapshot.boot_id == snapshot.boot_id && before.snapshot.boot_ms < snapshot.boot_ms
        });
        if let Some(before) = before {
            remember_lost(&before.snapshot, &mut snapshot);
        }
        let listed_pids = reused_pids::mark(before.map(|before| &before.listed_pids), &mut snapshot);
        let mut maker = Maker::new(&snapshot);
        maker.processes();
        maker.workloads();
        maker.gpus();
        maker.leases();
        maker.jobs();
        maker.pods();
        let Maker { holdings, mut targets, .. } = maker;
        let account = Account::of(&snapshot, &targets);
        if let Some(before) = before {
            let length = Duration::from_millis(snapshot.boot_ms.saturating_sub(before.snapshot.boot_ms));
            let window = Window { length, before, now: &account };
            let uses = |kind| !matches!(kind, Kind::Gpu | Kind::Lease | Kind::SlurmJob);
            for target in targets.iter_mut().filter(|target| uses(target.kind)) {
                (target.cpu, target.io) = (window.cpu(target), window.io(target));
            }
        }
        for target in &mut targets {
            target.on_lost = on_lost(target, &snapshot);
        }
        Self { snapshot, targets, holdings, listed_pids, account }
    }
}

/// Copies lost GPUs from the previous snapshot if the exporter was restarted after the driver had stopped
/// listing them.
fn remember_lost(before: &wire::Snapshot, now: &mut wire::Snapshot) {
    let answered = now.sources.get("nvml").is_some_and(|nvml| nvml.up);
    let since_ms = answered.then_some(now.boot_ms);
    let known = before.gpus.iter().map(|gpu| LostGpu {
        index: gpu.index.clone(),
        uuid: gpu.uuid.clone(),
        parent_uuid: gpu.parent_uuid.clone(),
        since_ms,
        last: None,
    });
    for gpu in before.lost.iter().cloned().chain(known) {
        let uuid = gpu.uuid.as_deref();
        let listed = now.gpus.iter().any(|of| gpu.is(&of.index, of.uuid.as_deref()))
            || now.lost.iter().any(|of| of.is(&gpu.index, uuid));
        // A MIG instance was removed if its GPU lists other instances.
        let removed = gpu.parent_uuid.is_some()
            && now.gpus.iter().any(|of| of.uuid == gpu.parent_uuid && leases::lists_holders(of));
        if !listed && !removed {
            now.lost.push(LostGpu { since_ms: gpu.since_ms.or(since_ms), ..gpu });
        }
    }
}

/// Returns whether a process of a target may hold a lost GPU; a process that was not examined may.
fn on_lost(target: &Target, snapshot: &wire::Snapshot) -> bool {
    if target.kind == Kind::Gpu {
        return false;
    }
    if let Some((slurm, place)) = snapshot.slurm.as_ref().zip(target.job) {
        return slurm.jobs.get(place).is_none_or(|job| is_incomplete(job, slurm, snapshot));
    }
    let holders = target.processes.iter().filter_map(|place| snapshot.processes.get(*place));
    let others = target.relatives.iter().flatten();
    let others = others.filter_map(|place| snapshot.relatives.as_ref()?.get(*place));
    let members: Vec<(u32, Option<u64>)> = holders
        .map(|process| (process.pid, process.start_ticks))
        .chain(others.map(|relative| (relative.pid, Some(relative.start_ticks))))
        .collect();
    let is_of_processes = matches!(target.kind, Kind::Process | Kind::Workload | Kind::Pod);
    let incomplete = target.relatives.is_none() && is_of_processes;
    let may_hold = |gpu: &LostGpu| members.iter().any(|(pid, ticks)| gpu.may_be_held_by(*pid, *ticks));
    snapshot.lost.iter().any(|gpu| incomplete || may_hold(gpu))
}

/// Returns whether a GPU of a job is unknown or not reported, or a process of the job without GPU memory may hold a lost GPU.
fn is_incomplete(job: &JobRecord, slurm: &SlurmNode, snapshot: &wire::Snapshot) -> bool {
    let reported = slurm.allocations.iter().filter(|allocation| allocation.job == job.job).count();
    let may_hold = |gpu: &LostGpu| gpu.since_ms.is_none_or(|since| job.boot_ms <= since);
    job.gpus.as_ref().is_none_or(|gpus| gpus.len() != reported) || snapshot.lost.iter().any(may_hold)
}

struct Maker<'a> {
    snapshot: &'a wire::Snapshot,
    holdings: Holdings,
    /// Children among the relatives, by the parent's pid.
    children: HashMap<u32, Vec<usize>>,
    targets: Vec<Target>,
}

impl<'a> Maker<'a> {
    fn new(snapshot: &'a wire::Snapshot) -> Self {
        let mut children: HashMap<u32, Vec<usize>> = HashMap::new();
        for (place, relative) in snapshot.relatives.iter().flatten().enumerate() {
            children.entry(relative.ppid).or_default().push(place);
        }
        let targets = Vec::with_capacity(snapshot.processes.len() * 2 + snapshot.gpus.len());
        Self { snapshot, holdings: Holdings::of_all(snapshot), children, targets }
    }

    fn processes(&mut self) {
        for (place, process) in self.snapshot.processes.iter().enumerate() {
            // An unconfirmed process is not a target unless it is known to be gone, because it may be the same
            // process as a target that is known by its start time.
            let name = match (process.start_ticks, process.first_seq, process.state.known()) {
                (Some(ticks), _, _) => format!("process:{}@{ticks}", process.pid),
                (None, Some(seq), Some(State::Gone)) => format!("process:{}#{seq}", process.pid),
                _ => continue,
            };
            let mut target = self.target((Kind::Process, name), vec![place]);
            target.relatives = self.relatives(&target.processes, || self.descendants(process.pid));
            let role = process.facts.as_ref().and_then(|facts| facts.role.as_ref());
            if role.is_some_and(|role| *role == Role::MpsServer) {
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
            target.relatives = self.relatives(&target.processes, || others);
            target.below = self.below(&target.processes, workload);
            self.targets.push(target);
        }
    }

    /// Returns the relatives of a target with these processes, if all were read.
    fn relatives(&self, processes: &[usize], found: impl FnOnce() -> Vec<usize>) -> Option<Vec<usize>> {
        let mut facts =
            processes.iter().filter_map(|place| self.snapshot.processes.get(*place)?.facts.as_ref());
        let is_whole = self.snapshot.relatives.is_some() && !facts.any(|facts| facts.unread_relatives);
        is_whole.then(found)
    }

    /// Returns descendants of these processes that belong to another workload.
    fn below(&self, processes: &[usize], workload: &str) -> Vec<usize> {
        let relatives = self.snapshot.relatives.as_deref().unwrap_or_default();
        let pids = processes.iter().filter_map(|place| Some(self.snapshot.processes.get(*place)?.pid));
        let descendants = pids.flat_map(|pid| self.descendants(pid));
        let mut below: Vec<usize> = descendants
            .filter(|place| relatives.get(*place).is_some_and(|it| it.workload != workload))
            .collect();
        below.sort_unstable();
        below.dedup();
        below
    }

    fn gpus(&mut self) {
        for (place, gpu) in self.snapshot.gpus.iter().enumerate() {
            let Some(uuid) = &gpu.uuid else { continue };
            let mut target = self.target((Kind::Gpu, format!("gpu:{uuid}")), Vec::new());
            target.gpus = vec![place];
            self.targets.push(target);
        }
    }

    fn leases(&mut self) {
        let Some(leases) = leases::of(self.snapshot) else { return };
        let pool = leases::Pool::of(leases, (self.snapshot, &self.holdings));
        for (place, held) in leases.held.iter().enumerate() {
            let found = pool.found(held);
            let name = format!("lease:{}#{}", held.lease, held.token);
            let mut target = self.target((Kind::Lease, name), found.processes);
            target.gpus = found.gpus;
            target.lease = Some(Leased { place, whole: found.whole });
            self.targets.push(target);
        }
    }

    /// Adds the jobs. A job's GPUs are those that were allocated to it and those on which it holds memory.
    fn jobs(&mut self) {
        let Some(slurm) = &self.snapshot.slurm else { return };
        for (place, job) in slurm.jobs.iter().enumerate() {
            let own = |process: &wire::Process| {
                process.facts.as_ref().is_some_and(|facts| job.contains(&facts.place))
            };
            let processes = self.snapshot.processes.iter().enumerate();
            let processes = processes.filter(|(_, process)| own(process)).map(|(place, _)| place).collect();
            let name = format!("slurm_job:{}@{}", job.job, job.boot_ms);
            let mut target = self.target((Kind::SlurmJob, name), processes);
            let allocated = |gpu: &wire::Gpu| {
                slurm.allocations.iter().any(|given| given.job == job.job && given.gpu == gpu.index)
            };
            let all = self.snapshot.gpus.iter().enumerate();
            target.gpus.extend(all.filter(|(_, gpu)| allocated(gpu)).map(|(place, _)| place));
            target.gpus.sort_unstable();
            target.gpus.dedup();
            target.job = Some(place);
            self.targets.push(target);
        }
    }

    /// Adds the pods with GPU memory, and those with an allocated GPU. A pod's GPUs are those that are allocated to it and those
    /// on which it holds memory.
    fn pods(&mut self) {
        let mut pods: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (place, process) in self.snapshot.processes.iter().enumerate() {
            let uid = process.facts.as_ref().and_then(|facts| facts.place.pod_uid.as_deref());
            if let Some(uid) = uid {
                pods.entry(uid).or_default().0.push(place);
            }
        }
        for (place, relative) in self.snapshot.relatives.iter().flatten().enumerate() {
            if let Some(entry) = relative.place.pod_uid.as_deref().and_then(|uid| pods.get_mut(uid)) {
                entry.1.push(place);
            }
        }
        let allocations = || self.snapshot.pods.iter().flat_map(|pods| &pods.allocations);
        for uid in allocations().filter_map(|it| it.pod_uid.as_deref()) {
            pods.entry(uid).or_default();
        }
        for (uid, (holders, others)) in pods {
            let mut target = self.target((Kind::Pod, format!("pod:{uid}")), holders);
            // Only pods with a process that holds memory were scanned.
            let is_scanned = !target.processes.is_empty();
            target.relatives = self.relatives(&target.processes, || others).filter(|_| is_scanned);
            let is_allocated = |gpu: &wire::Gpu| {
                allocations().any(|it| it.pod_uid.as_deref() == Some(uid) && it.gpu == gpu.index)
            };
            let all = self.snapshot.gpus.iter().enumerate();
            target.gpus.extend(all.filter(|(_, gpu)| is_allocated(gpu)).map(|(place, _)| place));
            target.gpus.sort_unstable();
            target.gpus.dedup();
            self.targets.push(target);
        }
    }

    fn target(&self, (kind, name): (Kind, String), processes: Vec<usize>) -> Target {
        let mut gpus: Vec<usize> = processes
            .iter()
            .flat_map(|process| self.holdings.of(*process))
            .map(|(gpu, _)| *gpu as usize)
            .collect();
        gpus.sort_unstable();
        gpus.dedup();
        Target {
            id: TargetId(Arc::from(name)),
            kind,
            processes,
            relatives: None,
            below: Vec::new(),
            gpus,
            lease: None,
            job: None,
            cpu: NO_WINDOW,
            io: NO_WINDOW,
            on_lost: false,
        }
    }

    /// Returns relatives below a process, but not below another holder, which is a target of its own.
    fn descendants(&self, pid: u32) -> Vec<usize> {
        let mut found = Vec::new();
        if !self.children.contains_key(&pid) {
            return found;
        }
        let relatives = self.snapshot.relatives.as_deref().unwrap_or_default();
        let mut parents = vec![pid];
        while let Some(parent) = parents.pop() {
            for child in self.children.get(&parent).into_iter().flatten() {
                // Cyclic parents are impossible; the limit prevents an endless loop.
                if found.len() > relatives.len() {
                    return found;
                }
                if let Some(relative) = relatives.get(*child) {
                    found.push(*child);
                    parents.push(relative.pid);
                }
            }
        }
        found
    }
}
