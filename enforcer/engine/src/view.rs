//! A view: the targets of a snapshot with their processes and GPUs, and values that depend on two snapshots.

mod account;
mod between;
mod holdings;
pub mod leases;
mod reused_pids;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::identity::MILLIS_PER_TICK;
use bailiff_snapshot::pod_resources::{ObjectName, PodAllocation};
use bailiff_snapshot::slurm::JobRecord;
use bailiff_snapshot::{Allocation, Fault, Held, Leases, MpsServer, PidNamespace, ProcessKey, Truth, wire};
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::value::Value;

/// Stable name of a target: `process:4100@98765` (pid and start tick), `process:4100#12` (only listed by the
/// driver, first in snapshot 12), `workload:unit:/system.slice/nb.service`, `gpu:GPU-…`, `lease:NAME#TOKEN`,
/// `slurm_job:7@98765` (id and start in milliseconds since boot), `pod:UID`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub Arc<str>);

impl fmt::Display for TargetId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A target of rules.
#[derive(Debug, Clone)]
pub struct Target {
    /// Name.
    pub id: TargetId,
    /// Kind.
    pub kind: Kind,
    /// Indexes of its processes in the snapshot's `processes`.
    pub processes: Vec<usize>,
    /// Indexes of its processes in the snapshot's `relatives`; `None` without a scan.
    pub relatives: Option<Vec<usize>>,
    /// For a workload: indexes of relatives that descend from its processes and belong to another workload. An
    /// action may affect them.
    pub below: Vec<usize>,
    /// Indexes of its GPUs in the snapshot's `gpus`.
    pub gpus: Vec<usize>,
    /// The lease, for a target of that kind.
    pub lease: Option<Leased>,
    /// Index among the records of Slurm jobs, for a target of that kind.
    pub job: Option<usize>,
    /// CPU seconds per second of all its processes; 1 is a busy core.
    pub cpu: Value,
    /// Bytes per second from and to storage, of its processes with GPU memory.
    pub io: Value,
    /// Whether one of its processes may hold a lost GPU, or a GPU of a Slurm job is not reported, so that the observed
    /// values are incomplete.
    pub(crate) on_lost: bool,
}

impl Target {
    /// Returns the UID of a target that is a pod.
    pub(crate) fn pod_uid(&self) -> Option<&str> {
        self.id.0.strip_prefix("pod:").filter(|_| self.kind == Kind::Pod)
    }
}

/// A lease as a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// Index among the held leases.
    pub place: usize,
    /// Whether all processes on its GPUs are known, and for each of them whether it belongs to the lease.
    pub whole: bool,
}

/// A snapshot with its targets.
#[derive(Debug, Clone)]
pub struct View {
    /// The snapshot.
    pub snapshot: wire::Snapshot,
    /// All targets.
    pub targets: Vec<Target>,
    holdings: holdings::Holdings,
    /// Pids that each GPU lists.
    listed_pids: reused_pids::Listed,
    /// Data for the next view.
    account: account::Account,
}

/// Whether a source responded for a GPU. If it did, an absent target no longer exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It responded.
    Well,
    /// It did not.
    Ill,
}

impl View {
    /// Time of the snapshot since boot.
    pub const fn boot(&self) -> Duration {
        Duration::from_millis(self.snapshot.boot_ms)
    }

    /// Sampling interval.
    pub const fn interval(&self) -> Duration {
        Duration::from_millis(self.snapshot.interval_ms)
    }

    /// Whether its processes belong to this host and boot, and can be identified.
    pub fn trusted(&self) -> bool {
        self.snapshot.pid_namespace == PidNamespace::Host && self.snapshot.boot_id.is_some()
    }

    /// Returns an MPS server as its daemon reported it; `None` if the exporter does not see it.
    pub(crate) fn mps_server(&self, target: &Target) -> Option<&MpsServer> {
        let process = self.processes(target).find_map(wire::Process::key)?;
        self.snapshot.mps.as_ref()?.server(process)
    }

    /// Returns whether a source answered.
    pub fn source(&self, name: &str) -> Health {
        match self.snapshot.sources.get(name) {
            Some(source) if source.up => Health::Well,
            _ => Health::Ill,
        }
    }

    /// Returns whether a GPU may be held by an unseen process: it has no process list, or is absent.
    pub fn hides(&self, uuid: &str) -> bool {
        let is_gpu = |gpu: &&wire::Gpu| gpu.uuid.as_deref() == Some(uuid);
        let gpu = self.snapshot.gpus.iter().find(is_gpu);
        gpu.is_none_or(|gpu| gpu.fault.is_some() || gpu.listed.is_none())
    }

    /// Returns the GPU of a target of that kind.
    pub fn gpu_of(&self, target: &Target) -> Option<&wire::Gpu> {
        self.snapshot.gpus.get(*target.gpus.first()?).filter(|_| target.kind == Kind::Gpu)
    }

    /// Returns the lease pool, if its server responded recently.
    pub fn leases(&self) -> Option<&Leases> {
        leases::of(&self.snapshot)
    }

    /// Returns the lease of a target of that kind.
    pub fn held(&self, target: &Target) -> Option<&Held> {
        self.leases()?.held.get(target.lease?.place)
    }

    /// Returns the record of a Slurm job, for a target of that kind.
    pub fn job(&self, target: &Target) -> Option<&JobRecord> {
        self.snapshot.slurm.as_ref()?.jobs.get(target.job?)
    }

    /// Returns the GPUs of a Slurm job that the driver reports.
    pub(crate) fn allocations<'a>(&'a self, job: &'a JobRecord) -> impl Iterator<Item = &'a Allocation> {
        let all = self.snapshot.slurm.iter().flat_map(|slurm| &slurm.allocations);
        all.filter(|allocation| allocation.job == job.job)
    }

    /// Returns the GPUs that are allocated to a pod, if the kubelet's answer contains them; none for other targets.
    pub(crate) fn pod_allocations<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = &'a PodAllocation> {
        let all = self.snapshot.pods.iter().flat_map(|pods| &pods.allocations);
        let uid = target.pod_uid();
        all.filter(move |allocation| uid.is_some() && allocation.pod_uid.as_deref() == uid)
    }

    /// Returns the name of a target that is a pod, if it is known.
    pub fn pod(&self, target: &Target) -> Option<ObjectName> {
        let uid = target.pod_uid()?;
        let places = self.processes(target).filter_map(|process| Some(&process.facts.as_ref()?.place));
        let of_places = places.filter_map(|place| Some((place.namespace.as_deref()?, place.pod.as_deref()?)));
        let of_kubelet = self.pod_allocations(target).map(|it| &it.container);
        let of_kubelet = of_kubelet.map(|name| (name.namespace.as_str(), name.pod.as_str()));
        of_places.chain(of_kubelet).find_map(|(namespace, name)| ObjectName::new(namespace, name, uid))
    }

    /// Returns the time since the prolog of a Slurm job.
    pub(crate) fn age_of_job(&self, job: &JobRecord) -> Duration {
        self.boot().saturating_sub(Duration::from_millis(job.boot_ms))
    }

    /// Returns the processes of a target with GPU memory.
    pub fn processes<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Process> {
        target.processes.iter().filter_map(|process| self.snapshot.processes.get(*process))
    }

    /// Returns the processes of a target without GPU memory.
    pub fn relatives<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Relative> {
        let all = self.snapshot.relatives.as_deref().unwrap_or_default();
        target.relatives.iter().flatten().filter_map(|relative| all.get(*relative))
    }

    /// Returns descendants of the target's processes that belong to another workload.
    pub(crate) fn below<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Relative> {
        let all = self.snapshot.relatives.as_deref().unwrap_or_default();
        target.below.iter().filter_map(|relative| all.get(*relative))
    }

    /// Returns the GPUs of a target.
    pub fn gpus<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Gpu> {
        target.gpus.iter().filter_map(|gpu| self.snapshot.gpus.get(*gpu))
    }

    /// Returns the memory that a target's processes hold, by GPU.
    pub fn holdings<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = (&'a wire::Gpu, &'a wire::Holder)> {
        target.processes.iter().flat_map(|process| self.holdings_of(*process))
    }

    /// Returns the memory that a process of the snapshot holds, by GPU.
    pub fn holdings_of(&self, process: usize) -> impl Iterator<Item = (&wire::Gpu, &wire::Holder)> {
        self.holdings.of(process).iter().filter_map(|(gpu, holder)| {
            let gpu = self.snapshot.gpus.get(*gpu as usize)?;
            Some((gpu, gpu.holders.get(*holder as usize)?))
        })
    }

    /// Returns the GPU that contains a MIG instance, or the GPU itself.
    pub(crate) fn whole_gpu<'a>(&'a self, gpu: &'a wire::Gpu) -> Option<&'a wire::Gpu> {
        let Some(parent) = &gpu.parent_uuid else { return Some(gpu) };
        self.snapshot.gpus.iter().find(|gpu| gpu.uuid.as_ref() == Some(parent))
    }

    /// Returns the largest value of a target's holdings.
    pub fn most(&self, target: &Target, figure: impl Fn(&wire::Holder) -> Option<f64>) -> Value {
        let figures = self.holdings(target).map(|(_, holder)| figure(holder));
        self.or_more(target, joined(figures, f64::max))
    }

    /// Returns the sum of a value over a target's holdings.
    pub fn sum(&self, target: &Target, figure: impl Fn(&wire::Holder) -> Option<f64>) -> Value {
        let figures = self.holdings(target).map(|(_, holder)| figure(holder));
        self.or_more(target, joined(figures, |sum, figure| sum + figure))
    }

    /// Converts a value into a lower bound if the target may hold more than was observed.
    pub(crate) fn or_more(&self, target: &Target, value: Value) -> Value {
        match value {
            Value::Number(number) if self.may_hold_more(target) => Value::AtLeast(number),
            value => value,
        }
    }

    /// Returns whether a target may hold more than was observed: a GPU has no process list, or the target may
    /// hold a lost GPU.
    pub(crate) fn may_hold_more(&self, target: &Target) -> bool {
        target.on_lost || self.blind()
    }

    /// Returns whether a GPU has no process list, so that any target may hold more. Holders of a lost GPU are
    /// remembered; in MIG mode the instances have the lists.
    pub fn blind(&self) -> bool {
        self.snapshot.gpus.iter().any(|gpu| {
            let remembered =
                || self.snapshot.lost.iter().any(|lost| lost.is(&gpu.index, gpu.uuid.as_deref()));
            let without_list = gpu.instances.is_none() && (gpu.fault.is_some() || gpu.listed.is_none());
            without_list && !(gpu.fault.as_ref().is_some_and(|fault| *fault == Fault::Lost) && remembered())
        })
    }

    /// Returns whether a process holds GPU memory.
    pub fn holds(&self, key: ProcessKey) -> Truth {
        let listed = self.snapshot.processes.iter().filter(|process| process.pid == key.pid);
        let starts: Vec<Option<u64>> = listed.map(|process| process.start_ticks).collect();
        if starts.contains(&Some(key.start_ticks)) {
            return Truth::True;
        }
        let on_lost = self.snapshot.lost.iter().any(|gpu| gpu.may_be_held_by(key.pid, Some(key.start_ticks)));
        // A process that started later is in no list yet.
        let may_hold = key.started() <= self.boot() && (starts.contains(&None) || on_lost || self.blind());
        if may_hold { Truth::Unknown } else { Truth::False }
    }

    /// Returns the age of a process.
    pub fn age(&self, process: &wire::Process) -> Option<Duration> {
        let started = Duration::from_millis(process.start_ticks?.checked_mul(MILLIS_PER_TICK)?);
        Some(self.boot().saturating_sub(started))
    }
}

/// Combines values; an unobserved one makes the result a lower bound.
pub(crate) fn joined(figures: impl Iterator<Item = Option<f64>>, join: impl Fn(f64, f64) -> f64) -> Value {
    let mut whole: Option<f64> = None;
    let mut complete = true;
    for figure in figures {
        match figure {
            Some(figure) => whole = Some(whole.map_or(figure, |whole| join(whole, figure))),
            None => complete = false,
        }
    }
    match whole {
        Some(whole) if complete => Value::Number(whole),
        Some(whole) => Value::AtLeast(whole),
        None => Value::Unknown("not observed"),
    }
}
