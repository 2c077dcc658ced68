//! Finds out whether containers use the GPUs that the kubelet has allocated to them, and which GPUs are used without an
//! allocation.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::pod_resources::{
    AllocationKey, ContainerName, DeviceId, DeviceName, PodAllocation, PodDevice, PodGpuState, PodGpus,
    PodResources, StateSeconds, UnallocatedProcesses, Unattributed,
};
use crate::unlisted::is_system;
use crate::utilization::IDLE_AT_MOST_PERCENT;
use crate::{Facts, Gpu, Holder, ProcessId, Snapshot, Truth, Word};

/// Time of each allocation in each state, kept while the kubelet does not answer.
pub(crate) type Totals = BTreeMap<AllocationKey, StateSeconds>;

/// Joins the kubelet's list with a snapshot whose other parts are complete.
pub(crate) fn join(sample: &PodResources, now: &Snapshot, previous: Option<&Snapshot>) -> PodGpus {
    let mut join = Join::new(sample, now);
    let allocated = join.allocated();
    let before = previous.iter().flat_map(|previous| &previous.pods).flat_map(|pods| &pods.allocations);
    let before: BTreeSet<AllocationKey> = before.filter_map(PodAllocation::key).collect();
    let mut allocations: Vec<PodAllocation> =
        allocated.values().map(|allocated| join.allocation(allocated)).collect();
    for allocation in &mut allocations {
        allocation.seconds = seconds((allocation, &before), now, previous);
        allocation.unused = join.unused(allocation, previous);
        let is_known = |_: &&(String, u64)| allocation.pod_uid.is_some();
        allocation.unused_since_ms = allocation.unused.as_ref().filter(is_known).map(|(_, since)| *since);
    }
    let unallocated = join.unallocated(&allocated);
    let count = |(reason, count): (&Unattributed, &u64)| (reason.name().to_owned(), *count);
    PodGpus {
        boot_ms: sample.boot_ms,
        allocations,
        dynamic: sample.list.dynamic.clone(),
        unattributed: join.unattributed.iter().map(count).collect(),
        unallocated,
    }
}

/// Returns the time of each allocation, for the next snapshot. Without an answer of the kubelet, it does not change.
pub(crate) fn totals(pods: Option<&PodGpus>, previous: Option<&Snapshot>) -> Totals {
    let Some(pods) = pods else {
        return previous.map(|previous| previous.pod_seconds.clone()).unwrap_or_default();
    };
    let total = |it: &PodAllocation| Some((it.key()?, it.seconds.clone()?));
    pods.allocations.iter().filter_map(total).collect()
}

impl PodAllocation {
    fn key(&self) -> Option<AllocationKey> {
        Some((self.container.clone(), self.resource.clone(), self.gpu_uuid.clone()?))
    }
}

/// Returns the time in each state. A window counts if the GPU was allocated at both ends of it, and then for the state at its
/// end.
fn seconds(
    (allocation, before): (&PodAllocation, &BTreeSet<AllocationKey>),
    now: &Snapshot,
    previous: Option<&Snapshot>,
) -> Option<StateSeconds> {
    let (key, share) = (allocation.key()?, allocation.share?);
    let zero = || PodGpuState::ALL.map(|state| (state, 0.0)).into();
    let Some(previous) = previous else { return Some(zero()) };
    let mut seconds = previous.pod_seconds.get(&key).cloned().unwrap_or_else(zero);
    if before.contains(&key) {
        let window = now.at.boot.saturating_sub(previous.at.boot);
        let known = allocation.state.known().filter(|_| no_gap(previous, now));
        let state = known.unwrap_or(PodGpuState::Unknown);
        *seconds.entry(state).or_default() += window.as_secs_f64() * share;
    }
    Some(seconds)
}

/// Returns whether no sample was missed between two snapshots.
fn no_gap(previous: &Snapshot, now: &Snapshot) -> bool {
    now.at.boot.saturating_sub(previous.at.boot) <= now.interval * 2 + now.took
}

/// Ids of a container that name the same GPU.
struct Allocated<'a> {
    /// Position of the GPU in the snapshot.
    gpu: usize,
    device: &'a PodDevice,
    /// Whether it is not known which pod of this name has the GPU, or which container has a device twice.
    is_ambiguous: bool,
    shared: bool,
    /// Part of the GPU that is allocated.
    share: Option<f64>,
}

/// The allocations by container, resource, and position of the GPU.
type Allocations<'a> = BTreeMap<(&'a ContainerName, &'a str, usize), Allocated<'a>>;

struct Join<'a> {
    sample: &'a PodResources,
    now: &'a Snapshot,
    unattributed: BTreeMap<Unattributed, u64>,
    /// Pods with a device that may be any GPU.
    with_unknown_devices: BTreeSet<(&'a str, &'a str)>,
    /// Number of UIDs of each pod with processes.
    uids: HashMap<(&'a str, &'a str), usize>,
    /// Whether the name of every pod with processes is known.
    all_named: bool,
}

/// What is known of the container of a process.
enum Owner<'a> {
    Container(&'a ContainerName),
    /// A container of this pod.
    Pod(&'a str, &'a str),
    /// A container of some pod, or not even that is known.
    Unknown,
    Outside,
}

impl<'a> Join<'a> {
    fn new(sample: &'a PodResources, now: &'a Snapshot) -> Self {
        let mut uids: HashMap<_, usize> = HashMap::new();
        let live = || sample.live.iter().flatten();
        for (namespace, pod) in live().filter_map(|pod| pod.name.as_ref()) {
            *uids.entry((namespace.as_str(), pod.as_str())).or_default() += 1;
        }
        let dynamic = sample.list.dynamic.iter();
        Self {
            sample,
            now,
            unattributed: BTreeMap::new(),
            with_unknown_devices: dynamic.map(|device| pod_of(&device.container)).collect(),
            uids,
            all_named: sample.live.is_some() && live().all(|pod| pod.name.is_some()),
        }
    }

    /// Returns the allocations of GPUs that the driver lists, and counts the other devices.
    fn allocated(&mut self) -> Allocations<'a> {
        let mut ids: BTreeMap<usize, Vec<(&str, bool)>> = BTreeMap::new();
        let mut allocated = Allocations::new();
        self.count(Unattributed::InvalidName, self.sample.list.invalid);
        for device in &self.sample.list.devices {
            let found = match self.find(device) {
                Ok(found) => found,
                Err(reason) => {
                    self.count(reason, 1);
                    if reason != Unattributed::NotRunning {
                        self.with_unknown_devices.insert(pod_of(&device.container));
                    }
                    continue;
                }
            };
            let (gpu, id) = found;
            ids.entry(gpu).or_default().push((&device.id, id.shared));
            let share = self.share(id);
            let one = allocated.entry((&device.container, device.resource.as_str(), gpu));
            let one = one.or_insert(Allocated {
                gpu,
                device,
                is_ambiguous: device.is_ambiguous || self.uids.get(&pod_of(&device.container)) > Some(&1),
                shared: id.shared,
                share: Some(0.0),
            });
            one.share = one.share.zip(share).map(|(sum, share)| sum + share).filter(|sum| *sum <= 1.0 + 1e-9);
        }
        let conflicts: BTreeMap<usize, usize> =
            ids.iter().filter(|(_, ids)| contradict(ids)).map(|(gpu, ids)| (*gpu, ids.len())).collect();
        self.count(Unattributed::Conflict, conflicts.values().sum::<usize>() as u64);
        for one in allocated.values_mut().filter(|one| conflicts.contains_key(&one.gpu)) {
            (one.is_ambiguous, one.share) = (true, None);
        }
        allocated
    }

    fn count(&mut self, reason: Unattributed, count: u64) {
        if count > 0 {
            *self.unattributed.entry(reason).or_default() += count;
        }
    }

    /// Returns the position of the GPU that an id names.
    fn find(&self, device: &'a PodDevice) -> Result<(usize, DeviceId<'a>), Unattributed> {
        // Kubelets before 1.34 list pods that have finished, and their devices can be allocated again.
        if self.all_named && !self.uids.contains_key(&pod_of(&device.container)) {
            return Err(Unattributed::NotRunning);
        }
        let id = DeviceId::parse(&device.id).ok_or(Unattributed::UnknownId)?;
        Ok((self.position(id.gpu).ok_or(Unattributed::NotListed)?, id))
    }

    /// Returns the position of the only GPU or MIG instance with this name.
    fn position(&self, name: DeviceName<'_>) -> Option<usize> {
        let has_minor = |gpu: &Gpu, minor| gpu.about.mig.is_none() && gpu.about.minor == Some(minor);
        let is_named = |gpu: &Gpu| match (name, &gpu.about.mig) {
            (DeviceName::Uuid(uuid), _) => gpu.about.id.as_ref().is_some_and(|id| id.0 == uuid),
            (DeviceName::Minor(minor, None), _) => has_minor(gpu, minor),
            (DeviceName::Minor(minor, instance), Some(mig)) => {
                let mut parents = self.now.gpus.iter().filter(|parent| has_minor(parent, minor));
                let is_parent = |parent: &Gpu| parent.about.id.is_some() && parent.about.id == mig.parent;
                mig.gpu_instance == instance && parents.any(is_parent)
            }
            (DeviceName::Minor(..), None) => false,
        };
        let mut found = self.now.gpus.iter().enumerate().filter(|(_, gpu)| is_named(gpu));
        let (position, _) = found.next()?;
        // A GPU instance can have several compute instances.
        found.next().is_none().then_some(position)
    }

    /// Returns the part of the GPU that an id stands for.
    fn share(&self, id: DeviceId<'_>) -> Option<f64> {
        if !id.shared {
            return Some(1.0);
        }
        let replicas = *self.sample.allocatable.as_ref()?.get(id.device)?;
        Some(1.0 / f64::from(replicas))
    }

    fn allocation(&self, allocated: &Allocated<'a>) -> PodAllocation {
        let about = &self.now.gpus[allocated.gpu].about;
        PodAllocation {
            container: allocated.device.container.clone(),
            resource: allocated.device.resource.clone(),
            gpu: about.index.clone(),
            gpu_uuid: about.id.as_ref().map(|id| id.0.clone()),
            shared: allocated.shared,
            share: allocated.share,
            state: Word::Known(self.state(allocated)),
            pod_uid: self.uid(allocated),
            unused_since_ms: None,
            unused: None,
            seconds: None,
        }
    }

    /// Returns the UID of the pod that has the GPU, if there is only one of this name, and none of its devices is unknown.
    fn uid(&self, allocated: &Allocated<'a>) -> Option<String> {
        let pod = pod_of(&allocated.device.container);
        let has_unknown = self.sample.list.invalid > 0 || self.with_unknown_devices.contains(&pod);
        if allocated.is_ambiguous || has_unknown || !self.all_named {
            return None;
        }
        let is_named = |(namespace, name): &(String, String)| (namespace.as_str(), name.as_str()) == pod;
        let mut live = self.sample.live.iter().flatten();
        live.find(|pod| pod.name.as_ref().is_some_and(is_named)).map(|pod| pod.uid.clone())
    }

    fn state(&self, allocated: &Allocated<'a>) -> PodGpuState {
        let gpu = &self.now.gpus[allocated.gpu];
        let holders = || gpu.holders.iter().map(|holder| (holder, self.belongs(holder, allocated)));
        let own = || holders().filter(|(_, belongs)| *belongs == Truth::True).map(|(holder, _)| holder);
        let percent = |holder: &Holder| holder.utilization.percent();
        if own().any(|holder| percent(holder).is_some_and(|percent| percent > IDLE_AT_MOST_PERCENT)) {
            return PodGpuState::Busy;
        }
        if !self.is_complete(gpu) || holders().any(|(_, belongs)| belongs == Truth::Unknown) {
            return PodGpuState::Unknown;
        }
        let on_hold =
            |holder: &Holder| self.now.processes.get(&holder.process).is_none_or(|it| it.state.on_hold());
        match own().next() {
            None if allocated.is_ambiguous => PodGpuState::Unknown,
            None => PodGpuState::NoProcess,
            Some(_) if own().all(|holder| percent(holder).is_some() && !on_hold(holder)) => PodGpuState::Idle,
            Some(_) => PodGpuState::Unknown,
        }
    }

    /// Returns whether another container of the pod uses the GPU, for example with `NVIDIA_VISIBLE_DEVICES`.
    fn is_used_by_its_pod(&self, allocation: &PodAllocation) -> bool {
        let gpu = self.now.gpus.iter().find(|gpu| gpu.about.index == allocation.gpu);
        let pod = |holder: &Holder| self.facts(holder.process)?.place.pod_uid.as_ref();
        gpu.is_some_and(|gpu| gpu.holders.iter().any(|holder| pod(holder) == allocation.pod_uid.as_ref()))
    }

    /// Returns the pod, and since when its container has had no process on the GPU, in milliseconds since boot: since the first
    /// of the snapshots without a gap in which it had none. While the pod is unknown, which every user of the node can cause, the
    /// time goes on if no process is on the GPU.
    fn unused(&self, allocation: &PodAllocation, previous: Option<&Snapshot>) -> Option<(String, u64)> {
        let key = allocation.key()?;
        let before = previous.filter(|previous| no_gap(previous, self.now)).and_then(|it| it.pods.as_ref());
        let is_same = |before: &&PodAllocation| before.key().as_ref() == Some(&key);
        let before = before.and_then(|pods| pods.allocations.iter().find(is_same)?.unused.clone());
        if allocation.state != PodGpuState::NoProcess || self.is_used_by_its_pod(allocation) {
            return None;
        }
        let Some(pod) = &allocation.pod_uid else {
            let gpu = self.now.gpus.iter().find(|gpu| gpu.about.index == allocation.gpu)?;
            return before.filter(|_| gpu.holders.is_empty());
        };
        let since = before.filter(|(before, _)| before == pod).map(|(_, since)| since);
        Some((pod.clone(), since.unwrap_or_else(|| crate::millis(self.now.at.boot))))
    }

    /// Returns whether all processes on the GPU are known.
    fn is_complete(&self, gpu: &Gpu) -> bool {
        let listed = gpu.listed == Some(gpu.holders.len() as u64);
        gpu.fault.is_none() && listed && self.now.namespace.attributes()
    }

    fn belongs(&self, holder: &Holder, allocated: &Allocated<'a>) -> Truth {
        // The driver may mean a process of the container that has exited.
        if holder.reused_pid {
            return Truth::Unknown;
        }
        let container = &allocated.device.container;
        let belongs = match self.owner(holder) {
            Owner::Container(name) => (name == container).into(),
            Owner::Pod(namespace, pod) if !container.is_in((namespace, pod)) => Truth::False,
            Owner::Pod(..) if allocated.device.is_only => Truth::True,
            Owner::Pod(..) | Owner::Unknown => Truth::Unknown,
            Owner::Outside => Truth::False,
        };
        // The process may belong to the other pod of this name.
        if belongs == Truth::True && allocated.is_ambiguous { Truth::Unknown } else { belongs }
    }

    fn facts(&self, process: ProcessId) -> Option<&'a Facts> {
        self.now.processes.get(&process)?.facts.as_ref()
    }

    fn owner(&self, holder: &Holder) -> Owner<'a> {
        let Some(place) = self.facts(holder.process).map(|facts| &facts.place) else { return Owner::Unknown };
        if let Some(name) = place.container.as_ref().and_then(|id| self.sample.containers.get(id)) {
            return Owner::Container(name);
        }
        match (&place.namespace, &place.pod) {
            (Some(namespace), Some(pod)) => Owner::Pod(namespace, pod),
            _ if place.cgroup.is_empty() || place.pod_uid.is_some() => Owner::Unknown,
            // Above the exporter's own cgroup namespace, the names of pods are not visible.
            _ if place.container.is_some() && place.cgroup.starts_with("/..") => Owner::Unknown,
            _ => Owner::Outside,
        }
    }

    /// Returns the number of processes without an allocation on each GPU that the kubelet can allocate.
    fn unallocated(&self, allocated: &Allocations<'a>) -> Vec<UnallocatedProcesses> {
        let ids = self.sample.allocatable.iter().flat_map(|all| all.keys());
        let positions = ids.filter_map(|id| self.position(DeviceId::parse(id)?.gpu));
        let positions: BTreeSet<usize> = positions.collect();
        let row = |position: usize| {
            let gpu = self.now.gpus.get(position).filter(|gpu| self.is_complete(gpu))?;
            let on_it: Vec<&Allocated<'_>> = allocated.values().filter(|one| one.gpu == position).collect();
            let without = gpu.holders.iter().map(|holder| self.is_without(holder, &on_it));
            let processes = without.collect::<Option<Vec<bool>>>()?.into_iter().filter(|it| *it).count();
            let gpu_uuid = gpu.about.id.as_ref().map(|id| id.0.clone());
            Some(UnallocatedProcesses { gpu: gpu.about.index.clone(), gpu_uuid, processes: processes as u64 })
        };
        positions.into_iter().filter_map(row).collect()
    }

    /// Returns whether a process is in no container that has these allocations of its GPU; `None` if unknown.
    fn is_without(&self, holder: &Holder, on_gpu: &[&Allocated<'a>]) -> Option<bool> {
        if holder.reused_pid {
            return None;
        }
        let belongs = on_gpu.iter().map(|allocated| self.belongs(holder, allocated));
        if belongs.fold(Truth::False, Truth::or).known()? {
            return Some(false);
        }
        let facts = self.facts(holder.process)?;
        let pod = match self.owner(holder) {
            Owner::Unknown => return None,
            Owner::Outside => return Some(!is_system(&facts.comm, facts.uid)),
            Owner::Container(name) => pod_of(name),
            Owner::Pod(namespace, pod) => (namespace, pod),
        };
        // The kubelet may have allocated the GPU after it was asked.
        let is_new = crate::millis(facts.key.started()) >= self.sample.boot_ms;
        let may_have_it = self.sample.list.invalid > 0 || self.with_unknown_devices.contains(&pod);
        (!is_new && !may_have_it).then_some(true)
    }
}

fn pod_of(container: &ContainerName) -> (&str, &str) {
    (&container.namespace, &container.pod)
}

/// Returns whether these ids of one GPU cannot all be allocated: the same id twice, or one that is not shared and another.
fn contradict(ids: &[(&str, bool)]) -> bool {
    let distinct: BTreeSet<&str> = ids.iter().map(|(id, _)| *id).collect();
    distinct.len() < ids.len() || ids.len() > 1 && ids.iter().any(|(_, shared)| !shared)
}
