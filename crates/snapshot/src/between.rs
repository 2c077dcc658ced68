//! Joins a sample with the previous snapshot. All values that need two samples are computed here and in the
//! modules that this module calls. The computation neither fails nor waits.

mod allocations;
mod energy;
mod instances;
mod kernel_log;
mod lost;
pub(crate) mod pods;
mod quotas;
mod still;
mod users;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::identity::millis;
use crate::lease::Names;
use crate::listed::{Candidate, ListedPids};
use crate::memory::Held;
use crate::unreleased::Account;
use crate::utilization::{Instance, InstanceUsers, Question, Utilization, Why, Window};
use crate::{
    About, Entry, Facts, Gap, Gaps, Gpu, GpuSample, GpuState, Holder, KernelLog, KernelLogState, Leases,
    Moment, Parts, PidNamespace, Place, Process, ProcessId, ProcessKey, Quota, Sample, Seen, Snapshot,
    Source, State, Truth, UnknownReason, Unreleased,
};
use instances::InstanceKey;

/// Evidence is valid for this long plus two intervals.
const FRESH: Duration = Duration::from_mins(1);
/// Maximum number of restored processes that are remembered.
const MOST_RESTORED: usize = 4096;

impl Snapshot {
    /// Joins a sample with the previous snapshot.
    pub fn between(previous: Option<&Self>, mut sample: Sample) -> Self {
        let previous = previous.filter(|previous| previous.boot_id == sample.boot_id);
        let (slurm, pods) = (sample.slurm.take(), sample.pod_resources.take());
        let restored = restored(previous, &mut sample.processes);
        let mut snapshot = Self { restored, ..Self::without_allocations(previous, sample) };
        snapshot.slurm = slurm.map(|slurm| allocations::join(slurm, &snapshot, previous));
        snapshot.pods = pods.map(|pods| pods::join(&pods, &snapshot, previous));
        snapshot.pod_seconds = pods::totals(snapshot.pods.as_ref(), previous);
        snapshot
    }

    fn without_allocations(previous: Option<&Self>, mut sample: Sample) -> Self {
        let mut join = Join::new(previous, &mut sample);
        join.instances = instances::of(previous, (&sample.gpus, &join.seen), sample.namespace);
        let mut gpus: Vec<Gpu> = sample.gpus.into_iter().map(|gpu| join.gpu(gpu)).collect();
        ListedPids::forget_removed(&mut join.listed_pids, |parent, id| is_removed(&gpus, parent, id));
        let kernel_log = join.kernel_log(sample.kernel_log.as_ref(), &mut gpus);
        let input = users::UserInput { at: sample.at, gpus: &gpus, processes: &join.processes };
        let users = users::totals(previous, &input);
        let energy = energy::totals(previous, &input);
        let mut relatives = sample.relatives.filter(|_| sample.namespace.attributes());
        Place::share(relatives.iter_mut().flatten().map(|relative| &mut relative.place));
        let evidence =
            still::Evidence { previous, gpus: &gpus, relatives: relatives.as_deref(), window: join.window() };
        still::count(&mut join.processes, &evidence);
        let answered = sample.sources.get(&Source::Nvml).is_some_and(|nvml| nvml.fault.is_none());
        let lost = lost::LostInput { previous, end: sample.at.boot + sample.took, answered, gpus: &gpus };
        let quotas = join.quotas(sample.quotas, &gpus);
        Self {
            seq: sample.seq,
            at: sample.at,
            took: sample.took,
            interval: sample.interval,
            boot_id: sample.boot_id,
            namespace: sample.namespace,
            sources: sample.sources,
            driver: sample.driver,
            lost: lost.lost(),
            leases: join.leases(sample.leases, &gpus),
            gpus,
            processes: join.processes,
            listed_pids: join.listed_pids,
            relatives,
            groups: sample.groups,
            users,
            energy,
            device_processes: sample.device_processes,
            quotas,
            mps: sample.mps,
            slurm: None,
            pods: None,
            pod_seconds: BTreeMap::new(),
            kernel_log,
            restored: BTreeSet::new(),
            gaps: join.gaps,
            workers_hung: sample.workers_hung,
        }
    }
}

/// Marks the processes that were restored, also those whose ancestor CRIU has exited since; returns their identities, up
/// to a limit.
fn restored(previous: Option<&Snapshot>, seen: &mut BTreeMap<u32, Seen>) -> BTreeSet<ProcessKey> {
    let mut all = previous.map(|previous| previous.restored.clone()).unwrap_or_default();
    for facts in seen.values_mut().filter_map(Seen::found_mut) {
        facts.restored |= all.contains(&facts.key);
        if facts.restored && all.len() < MOST_RESTORED {
            all.insert(facts.key);
        }
    }
    all
}

/// Working state of [`Snapshot::between`].
struct Join<'a> {
    seq: u64,
    at: Moment,
    namespace: PidNamespace,
    /// How long evidence stays valid without a newer sample.
    good_for: Duration,
    previous: Option<&'a Snapshot>,
    /// Users of each GPU instance.
    instances: BTreeMap<InstanceKey, InstanceUsers>,
    /// Pids that each GPU lists, also of GPUs that are missing in this sample.
    listed_pids: BTreeMap<String, ListedPids>,
    seen: BTreeMap<u32, Seen>,
    ids: HashMap<u32, ProcessId>,
    processes: BTreeMap<ProcessId, Process>,
    gaps: Gaps,
}

/// Entries of the driver's list of a GPU.
#[derive(Default)]
struct SortedEntries<'e> {
    /// Without a pid in this PID namespace.
    unnamed: Vec<&'e Entry>,
    /// Whose memory may be that of a process that has exited, because another one has its pid.
    reused: Vec<&'e Entry>,
    named: Vec<&'e Entry>,
}

/// Holders of a GPU at the start of the window, by pid, and the length of the window.
struct Past<'a> {
    holders: HashMap<u32, &'a Holder>,
    window: Duration,
}

impl<'a> Join<'a> {
    /// Takes the processes of a sample.
    fn new(previous: Option<&'a Snapshot>, sample: &mut Sample) -> Self {
        let mut gaps = previous.map(|previous| previous.gaps.clone()).unwrap_or_default();
        gaps.add(&sample.gaps);
        Self {
            seq: sample.seq,
            at: sample.at,
            namespace: sample.namespace,
            good_for: FRESH + sample.interval * 2,
            previous,
            instances: BTreeMap::new(),
            listed_pids: previous.map(|previous| previous.listed_pids.clone()).unwrap_or_default(),
            seen: std::mem::take(&mut sample.processes),
            ids: HashMap::new(),
            processes: BTreeMap::new(),
            gaps,
        }
    }
}

impl Join<'_> {
    fn gpu(&mut self, sample: GpuSample) -> Gpu {
        let last = self.previous.and_then(|previous| previous.gpu(&sample.about));
        let healthy = last.filter(|gpu| gpu.fault.is_none());
        let holders = healthy.map(|gpu| gpu.holders.as_slice()).unwrap_or_default();
        let past = Past {
            holders: holders.iter().map(|holder| (holder.process.pid(), holder)).collect(),
            window: self.window(),
        };
        let entries = sample.entries.as_deref().unwrap_or_default();
        let pids: BTreeSet<u32> = entries.iter().map(|entry| entry.pid).collect();
        let instance = self.instance(&sample, healthy);
        let reading = sample.reading.cleaned(|pid| pids.contains(&pid), &mut self.gaps);
        let mig = sample.about.mig.is_some() || sample.telemetry.mig_enabled == Some(true);
        let window = Window { before: healthy.map(|gpu| &gpu.reading), now: &reading, mig, instance };
        let about = last.filter(|_| sample.about.id.is_none()).map_or(&sample.about, |last| &last.about);
        let sorted = self.sorted((about, sample.entries_at), sample.entries.as_deref());
        let mut holders: Vec<Holder> =
            sorted.named.iter().map(|entry| self.holder(entry, &window, &past)).collect();
        holders.extend(sorted.reused.iter().map(|entry| self.reused(entry, &past)));
        let idle = window.idle(holders.iter().map(|holder| holder.utilization));
        let held = sample.entries.is_some().then(|| self.held(&sorted, &holders)).flatten();
        let mut xids = last.map(|gpu| gpu.xids.clone()).unwrap_or_default();
        for xid in sample.xids {
            *xids.entry(xid).or_default() += 1;
        }
        let parts = Parts::of(sample.memory, held).filter(|_| !mig || sample.about.mig.is_some());
        let account = Account::of(parts, &holders, &self.processes)
            .map(|account| account.at(self.at.boot, self.good_for));
        let account = if self.namespace.attributes() { account } else { Err(UnknownReason::PidNamespace) };
        let unreleased = Unreleased::after(last.map(|gpu| &gpu.unreleased), account);
        if unreleased.given_up() {
            self.gaps.count(Gap::Unreleased);
        }
        Gpu {
            parts,
            unreleased,
            listed: sample.entries.as_ref().map(|entries| entries.len() as u64),
            instances: sample.instances,
            about: sample.about,
            fault: sample.fault,
            memory: sample.memory,
            memory_unknown: sample.memory_unknown,
            telemetry: sample.telemetry,
            holders,
            xids,
            cgroups: sample.cgroups,
            idle,
            reading,
        }
    }

    /// Returns the activity of a MIG instance since the previous snapshot, if it is known.
    fn instance(&self, sample: &GpuSample, before: Option<&Gpu>) -> Option<Instance> {
        let activity = &sample.telemetry.activity;
        let users = *self.instances.get(&instances::key(&sample.about)?)?;
        let is_calm = activity.calm.known()?;
        // Otherwise it is the activity since another sample, which did not arrive.
        let is_of_window =
            before?.telemetry.activity.until == activity.from && activity.from < activity.until;
        is_of_window.then(|| Instance { is_calm, engines: activity.engines(), users })
    }

    /// Returns the time since the previous snapshot.
    fn window(&self) -> Duration {
        self.previous.map_or(Duration::ZERO, |previous| self.at.boot.saturating_sub(previous.at.boot))
    }

    fn holder(&mut self, entry: &Entry, window: &Window<'_>, past: &Past<'_>) -> Holder {
        let process = self.identify(entry.pid, past);
        let same_pid = past.holders.get(&entry.pid).copied();
        let before = same_pid.filter(|holder| holder.process == process);
        let utilization = window.evaluate(Question {
            pid: entry.pid,
            kinds: entry.kinds,
            role: self.processes.get(&process).and_then(|process| process.facts.as_ref()?.role),
            listed_before: before.is_some(),
            was_another: before.is_none() && same_pid.is_some(),
        });
        let mut holder = Holder {
            process,
            reused_pid: false,
            kinds: entry.kinds,
            memory: entry.memory,
            peak: entry.peak,
            listed: Duration::ZERO,
            utilization,
            idle: Duration::ZERO,
            busy_seconds: 0.0,
            byte_seconds: 0.0,
            xids: BTreeMap::new(),
        };
        if let Some(before) = before {
            holder.carry_on(before, past.window);
        }
        holder
    }

    /// Returns a process that may be another one than that which the driver lists with its pid, so its memory and utilization
    /// are unknown.
    fn reused(&mut self, entry: &Entry, past: &Past<'_>) -> Holder {
        self.gaps.count(Gap::ReusedPid);
        let process = self.identify(entry.pid, past);
        if let Some(facts) = self.processes.get_mut(&process).and_then(|process| process.facts.as_mut()) {
            facts.reused_pid = true;
        }
        Holder {
            process,
            reused_pid: true,
            kinds: entry.kinds,
            memory: None,
            peak: None,
            listed: Duration::ZERO,
            utilization: Utilization::Unknown(Why::NotListedBefore),
            idle: Duration::ZERO,
            busy_seconds: 0.0,
            byte_seconds: 0.0,
            xids: BTreeMap::new(),
        }
    }

    /// Sorts the entries of the driver's list. Without a list, the pids of the last one are kept.
    fn sorted<'e>(
        &mut self,
        (about, at): (&About, Duration),
        entries: Option<&'e [Entry]>,
    ) -> SortedEntries<'e> {
        let Some(entries) = entries else { return SortedEntries::default() };
        let (unnamed, named): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| entry.pid == 0 || !self.namespace.attributes());
        let before = self.listed_pids.remove(name(about)).unwrap_or_default();
        let parent = about.mig.as_ref().and_then(|mig| mig.parent.as_ref()).map(|id| id.0.as_str());
        let pids = (parent, named.iter().map(|entry| entry.pid));
        let process = |pid: u32| self.facts(pid).map(|it| Candidate::new(it.key, it.uid, &it.place));
        let pids = before.next(pids, at, process);
        let may_be_another = |entry: &&Entry| process(entry.pid).is_some_and(|it| pids.may_be_another(&it));
        let (reused, named) = named.into_iter().partition(may_be_another);
        if !pids.is_empty() {
            self.listed_pids.insert(name(about).to_owned(), pids);
        }
        SortedEntries { unnamed, reused, named }
    }

    /// Returns what is known of the process that has a pid now.
    fn facts(&self, pid: u32) -> Option<&Facts> {
        match self.ids.get(&pid) {
            Some(id) => self.processes.get(id)?.facts.as_ref(),
            None => self.seen.get(&pid)?.found(),
        }
    }

    /// Returns the identity of a listed pid. It is the same on all GPUs of a snapshot that list the pid.
    fn identify(&mut self, pid: u32, past: &Past<'_>) -> ProcessId {
        if let Some(id) = self.ids.get(&pid) {
            return *id;
        }
        let unconfirmed = match past.holders.get(&pid).map(|holder| holder.process) {
            Some(id @ ProcessId::Unconfirmed { .. }) => id,
            _ => ProcessId::Unconfirmed { pid, first_seq: self.seq },
        };
        let (id, state, facts) = match self.seen.remove(&pid) {
            Some(Seen::Found(facts)) => (ProcessId::Live(facts.key), facts.state, Some(*facts)),
            Some(Seen::Gone) => (unconfirmed, State::Gone, None),
            Some(Seen::Hidden) => (unconfirmed, State::Hidden, None),
            // `/proc` was not read or reading failed, so the process may or may not exist.
            None => (unconfirmed, State::Unknown, None),
        };
        let before = self.previous.and_then(|previous| previous.processes.get(&id));
        let samples = before.filter(|before| before.state == state).map_or(0, |before| before.samples);
        let process = Process { state, samples: samples.saturating_add(1), still: 0, facts };
        self.ids.insert(pid, id);
        self.processes.insert(id, process);
        id
    }

    /// Sums the memory by kind of holder; `None` if a holder's memory or the PID namespace is unknown.
    fn held(&self, entries: &SortedEntries<'_>, holders: &[Holder]) -> Option<Held> {
        let SortedEntries { unnamed, reused, .. } = entries;
        // Such memory is held by the earlier process, or by the one that has the pid now.
        if !reused.is_empty() || self.namespace == PidNamespace::Unknown && !unnamed.is_empty() {
            return None;
        }
        let mut held = Held::default();
        for entry in unnamed {
            held.other_namespaces = held.other_namespaces.checked_add(entry.memory?)?;
        }
        for holder in holders {
            let process = self.processes.get(&holder.process)?;
            let part = match (process.state, &process.facts) {
                (State::Gone, _) => &mut held.dead_pids,
                // `/proc` was not read or reading failed, so the process may or may not exist.
                (State::Unknown, None) => return None,
                _ => &mut held.holders,
            };
            *part = part.checked_add(holder.memory?)?;
        }
        Some(held)
    }

    /// Joins the records of the kernel log with the processes.
    fn kernel_log(&mut self, read: Option<&KernelLog>, gpus: &mut [Gpu]) -> Option<KernelLogState> {
        let before = self.previous.and_then(|previous| previous.kernel_log.as_ref());
        kernel_log::join((before, read), (gpus, &self.processes), self.namespace, &mut self.gaps)
    }

    /// Joins the lease pool with that of the previous snapshot.
    fn leases(&self, reported: Option<Leases>, gpus: &[Gpu]) -> Option<Leases> {
        let mut leases = reported?;
        let before = self.previous.and_then(|previous| previous.leases.as_ref());
        leases.carry_on(before, self.window(), gpus);
        Some(leases)
    }

    /// Joins the quota files with data from the driver and from the previous snapshot.
    fn quotas(&self, reported: Option<Vec<Quota>>, gpus: &[Gpu]) -> Option<Vec<Quota>> {
        let mut quotas = reported?;
        quotas::join(&mut quotas, self.previous, &quotas::QuotaInput { gpus, processes: &self.processes });
        Some(quotas)
    }
}

/// Returns whether a GPU has no longer this MIG instance; false if not all of its instances are known.
fn is_removed(gpus: &[Gpu], parent: &str, instance: &str) -> bool {
    let lists = |gpu: &Gpu| gpu.instances.is_some() || gpu.telemetry.mig_enabled == Some(false);
    gpus.iter().any(|gpu| name(&gpu.about) == parent && lists(gpu))
        && !gpus.iter().any(|gpu| name(&gpu.about) == instance)
}

/// Returns the UUID of a GPU, or its index without one.
fn name(about: &About) -> &str {
    about.id.as_ref().map_or(&about.index, |id| &id.0)
}

impl Leases {
    /// Updates the durations of each GPU from the previous sample's pool, if there is one.
    fn carry_on(&mut self, before: Option<&Self>, window: Duration, gpus: &[Gpu]) {
        let window = millis(window);
        self.before_ms = before.map(|before| before.boot_ms);
        for gpu in &mut self.gpus {
            let before = before.and_then(|before| before.gpus.iter().find(|before| gpu.as_before(before)));
            let seen = gpus.iter().find(|seen| gpu.is(Names::from(*seen)));
            if let Some(before) = before {
                gpu.since_ms = before.since_ms.saturating_add(window);
            }
            if gpu.gpu_state == GpuState::Leased {
                gpu.idle = before.and(seen).map_or(Truth::Unknown, |seen| seen.idle);
                gpu.idle_ms = match (before, gpu.idle) {
                    (Some(before), Truth::True) => before.idle_ms.saturating_add(window),
                    (Some(before), Truth::Unknown) => before.idle_ms,
                    (Some(_), Truth::False) | (None, _) => 0,
                };
            }
        }
    }
}
