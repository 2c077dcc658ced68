//! Finds out whether jobs use the GPUs that Slurm has allocated to them, and who uses GPUs without an allocation.

use std::time::Duration;

use crate::slurm::{
    AllocatedGpu, Allocation, AllocationState, JobRecord, SlurmNode, SlurmSample, Unallocated,
};
use crate::unlisted::is_system;
use crate::{Gpu, Holder, ProcessId, Snapshot, Source, Truth};

/// Utilization in percent up to which a process counts as idle.
const IDLE_UP_TO: u32 = 1;

/// Joins the records with a snapshot whose other parts are complete.
pub(crate) fn join(sample: SlurmSample, now: &Snapshot, previous: Option<&Snapshot>) -> SlurmNode {
    let join = Join { now, previous };
    let boot = now.boot_id.as_ref().map(|id| &id.0);
    let mut node = SlurmNode { runs: sample.runs, unread: sample.unread, ..SlurmNode::default() };
    for record in sample.jobs.iter().filter(|record| Some(&record.boot_id) == boot) {
        let allocated = record.gpus.iter().flatten();
        node.allocations.extend(allocated.filter_map(|gpu| join.allocation(record, gpu)));
        node.unallocated.extend(join.unallocated(record));
        node.jobs.push(record.clone());
    }
    let managed = sample.managed.filter(|managed| Some(&managed.boot_id) == boot);
    let minors = managed.map(|managed| managed.minors).unwrap_or_default();
    node.unallocated.extend(join.outside_slurm(&minors, &node.jobs));
    node
}

struct Join<'a> {
    now: &'a Snapshot,
    previous: Option<&'a Snapshot>,
}

/// The processes of a job on a GPU.
enum Processes<'a> {
    Known(Vec<&'a Holder>),
    /// The list is not known, or a process may or may not belong to the job.
    Unknown,
}

impl Join<'_> {
    /// Returns the state of an allocated GPU; `None` if the driver does not report the GPU.
    fn allocation(&self, record: &JobRecord, allocated: &AllocatedGpu) -> Option<Allocation> {
        let gpu = self.now.gpus.iter().find(|gpu| is(gpu, allocated))?;
        let before = self.before(record, gpu);
        let window = self
            .previous
            .map_or(Duration::ZERO, |previous| self.now.at.boot.saturating_sub(previous.at.boot));
        let since_prolog = self.now.at.boot.saturating_sub(Duration::from_millis(record.boot_ms));
        let processes = self.processes(record, gpu);
        let is_known = matches!(processes, Processes::Known(_));
        // A longer window means that samples were missed.
        let no_gap = window <= self.now.interval * 2 + self.now.took;
        let complete =
            is_known && no_gap && before.map_or_else(|| self.is_new(record), |before| before.complete);
        let has_processes = matches!(&processes, Processes::Known(known) if !known.is_empty());
        let used = before.is_some_and(|before| before.used) || has_processes;
        let state = self.state(&processes, used, complete);
        let unused_before = before.filter(|_| no_gap).and_then(|before| before.unused_ms);
        let unused_ms = match state {
            AllocationState::NeverUsed => Some(crate::millis(since_prolog)),
            AllocationState::Idle => {
                Some(unused_before.map_or(0, |unused| unused.saturating_add(crate::millis(window))))
            }
            AllocationState::InUse | AllocationState::Unknown => None,
        };
        Some(Allocation {
            job: record.job.clone(),
            uid: record.uid,
            user: record.user.clone(),
            account: record.account.clone(),
            gpu: gpu.about.index.clone(),
            gpu_uuid: gpu.about.id.as_ref().map(|id| id.0.clone()),
            state,
            unused_ms,
            used,
            complete,
        })
    }

    /// Returns whether the previous sample shows that the job had not started yet: it read all records, and there was
    /// none of this run.
    fn is_new(&self, record: &JobRecord) -> bool {
        let Some(previous) = self.previous else { return false };
        let is_same = |other: &JobRecord| (&other.job, other.boot_ms) == (&record.job, record.boot_ms);
        let Some(slurm) = &previous.slurm else {
            // Before the first run of a hook, there is no directory.
            let state = |source: Source| previous.sources.get(&source).map(|state| state.fault);
            return state(Source::Proc) == Some(None) && state(Source::Slurm).is_none();
        };
        !slurm.unread && !slurm.jobs.iter().any(is_same)
    }

    fn before(&self, record: &JobRecord, gpu: &Gpu) -> Option<&Allocation> {
        // A run that started after that sample is another run of the job.
        let earlier = |previous: &&Snapshot| Duration::from_millis(record.boot_ms) <= previous.at.boot;
        let before = &self.previous.filter(earlier)?.slurm.as_ref()?.allocations;
        let uuid = &gpu.about.id.as_ref()?.0;
        before.iter().find(|before| before.job == record.job && before.gpu_uuid.as_ref() == Some(uuid))
    }

    fn processes<'a>(&self, record: &JobRecord, gpu: &'a Gpu) -> Processes<'a> {
        let is_known = gpu.fault.is_none() && gpu.listed.is_some() && !gpu.mig() && !gpu.has_reused_pid();
        if !is_known || !self.now.namespace.attributes() {
            return Processes::Unknown;
        }
        let mut known = Vec::new();
        for holder in &gpu.holders {
            let facts = self.now.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
            match facts.map_or(Truth::Unknown, |facts| record.owns(&facts.place, facts.uid)) {
                Truth::False => {}
                Truth::True => known.push(holder),
                Truth::Unknown => return Processes::Unknown,
            }
        }
        Processes::Known(known)
    }

    fn state(&self, processes: &Processes<'_>, used: bool, complete: bool) -> AllocationState {
        let Processes::Known(processes) = processes else { return AllocationState::Unknown };
        let percent = |holder: &&Holder| holder.utilization.percent();
        if processes.iter().any(|holder| percent(holder).is_some_and(|percent| percent > IDLE_UP_TO)) {
            return AllocationState::InUse;
        }
        let on_hold =
            |holder: &&Holder| self.now.processes.get(&holder.process).is_none_or(|it| it.state.on_hold());
        match (processes.is_empty(), used) {
            (true, true) => AllocationState::Idle,
            (true, false) if complete => AllocationState::NeverUsed,
            (false, _) if processes.iter().all(|holder| percent(holder).is_some() && !on_hold(holder)) => {
                AllocationState::Idle
            }
            _ => AllocationState::Unknown,
        }
    }

    /// Returns the memory that a job holds on GPUs that are not in its record.
    fn unallocated(&self, record: &JobRecord) -> Vec<Unallocated> {
        let Some(allocated) = &record.gpus else { return Vec::new() };
        let whole = self.now.gpus.iter().filter(|gpu| !gpu.mig() && !gpu.has_reused_pid());
        let outside = whole.filter(|gpu| !allocated.iter().any(|own| is(gpu, own)));
        let held = |gpu: &Gpu| {
            let own = gpu.holders.iter().filter(|holder| self.is_of(holder.process, record));
            let bytes = own.map(|holder| holder.memory).collect::<Option<Vec<u64>>>()?;
            (!bytes.is_empty()).then(|| bytes.iter().sum())
        };
        let row = |gpu: &Gpu| {
            let (job, gpu_uuid) = (Some(record.job.clone()), gpu.about.id.as_ref().map(|id| id.0.clone()));
            Some(Unallocated { job, gpu: gpu.about.index.clone(), gpu_uuid, bytes: held(gpu)? })
        };
        outside.filter_map(row).collect()
    }

    /// Returns the memory that processes outside Slurm hold on the GPUs with these minor numbers.
    fn outside_slurm(&self, minors: &[u32], jobs: &[JobRecord]) -> Vec<Unallocated> {
        let managed = |gpu: &&Gpu| {
            let is_whole = gpu.about.mig.is_none() && !gpu.mig();
            is_whole && gpu.about.minor.is_some_and(|minor| minors.contains(&minor))
        };
        let row = |gpu: &Gpu| {
            let gpu_uuid = gpu.about.id.as_ref().map(|id| id.0.clone());
            let bytes = self.held_outside_slurm(gpu, jobs)?;
            Some(Unallocated { job: None, gpu: gpu.about.index.clone(), gpu_uuid, bytes })
        };
        self.now.gpus.iter().filter(managed).filter_map(row).collect()
    }

    /// Returns the memory of processes outside Slurm; `None` if there are none, or if one may belong to a job, as one may
    /// whose cgroup is unknown.
    fn held_outside_slurm(&self, gpu: &Gpu, jobs: &[JobRecord]) -> Option<u64> {
        if !self.now.namespace.attributes() || gpu.has_reused_pid() {
            return None;
        }
        let may_use =
            |record: &&JobRecord| record.gpus.as_ref().is_none_or(|gpus| gpus.iter().any(|own| is(gpu, own)));
        let jobs: Vec<&JobRecord> = jobs.iter().filter(may_use).collect();
        let mut bytes = None;
        for holder in &gpu.holders {
            let facts = self.now.processes.get(&holder.process)?.facts.as_ref()?;
            let place = &facts.place;
            if place.cgroup.is_empty() {
                return None;
            }
            if place.slurm_job.is_some() || place.boundary.is_none() && is_system(&facts.comm, facts.uid) {
                continue;
            }
            // With `proctrack/linuxproc`, jobs run in slurmd's cgroup.
            let may_be_slurms = place.confinement().ends_with("/slurmd.service")
                || jobs.iter().any(|job| job.owns(place, facts.uid) != Truth::False);
            if may_be_slurms {
                return None;
            }
            bytes = Some(bytes.unwrap_or(0) + holder.memory?);
        }
        bytes
    }

    fn is_of(&self, process: ProcessId, record: &JobRecord) -> bool {
        let facts = self.now.processes.get(&process).and_then(|process| process.facts.as_ref());
        facts.is_some_and(|facts| record.contains(&facts.place))
    }
}

/// Returns whether this is an allocated GPU: the same UUID, or the same device file if no UUID was recorded.
fn is(gpu: &Gpu, allocated: &AllocatedGpu) -> bool {
    match (&allocated.uuid, &gpu.about.id) {
        (Some(recorded), Some(id)) => *recorded == id.0,
        _ => gpu.about.mig.is_none() && gpu.about.minor == Some(allocated.minor),
    }
}
