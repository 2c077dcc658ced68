//! A snapshot: a sample joined with the previous snapshot. Everything that depends on two samples is computed
//! here. The computation cannot fail and does not wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::lost;
use crate::memory::Held;
use crate::quota;
use crate::still;
use crate::unreleased::Account;
use crate::users::{self, UserTotals};
use crate::utilization::{Question, Window};
use crate::{
    About, BootId, DeviceProcesses, Driver, Entry, Facts, Fault, Gap, Gaps, GpuSample, Kinds, Leases,
    LostGpu, Memory, Moment, Mps, Parts, PidNamespace, Place, ProcessId, Quota, Reading, Relative, Sample,
    Seen, Source, SourceState, State, Stuck, Telemetry, Truth, UnknownReason, Unreleased, Utilization, Why,
};

/// Evidence is valid for this long plus two intervals.
const FRESH: Duration = Duration::from_mins(1);

/// State of a node in one interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Sequence number of the sample.
    pub seq: u64,
    /// Start of the sample.
    pub at: Moment,
    /// Duration of the sample.
    pub took: Duration,
    /// Sampling interval.
    pub interval: Duration,
    /// Id of the boot; `None` if it could not be read.
    pub boot_id: Option<BootId>,
    /// Whether the driver's pids can be attributed to processes.
    pub namespace: PidNamespace,
    /// State of each source.
    pub sources: BTreeMap<Source, SourceState>,
    /// Versions of driver, NVML and CUDA.
    pub driver: Driver,
    /// GPUs and MIG instances.
    pub gpus: Vec<Gpu>,
    /// GPUs that are lost or no longer listed, with the processes that last held them.
    pub lost: Vec<LostGpu>,
    /// Processes that the driver lists on a GPU.
    pub processes: BTreeMap<ProcessId, Process>,
    /// Processes without GPU memory in the workloads of holders; `None` if not all processes could be read.
    pub relatives: Option<Vec<Relative>>,
    /// Group names of the processes' owners, by uid.
    pub groups: BTreeMap<u32, Vec<String>>,
    /// GPU time of each user so far, by name, or by uid if there is no name.
    pub users: BTreeMap<String, UserTotals>,
    /// Processes with open device files, from the latest scan.
    pub device_processes: Option<DeviceProcesses>,
    /// State of the lease pool; `None` if there is none or it did not answer.
    pub leases: Option<Leases>,
    /// Shared quota files; `None` if there is no quota directory or it could not be read.
    pub quotas: Option<Vec<Quota>>,
    /// State of MPS; `None` if no part of it was found.
    pub mps: Option<Mps>,
    /// Number of all gaps so far.
    pub gaps: Gaps,
    /// Number of sampling workers that hung and could not be terminated.
    pub workers_hung: u32,
}

/// One GPU or MIG instance in a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Names and ids of the GPU.
    pub about: About,
    /// Why the GPU could not be read.
    pub fault: Option<Fault>,
    /// Memory use of the device.
    pub memory: Option<Memory>,
    /// Breakdown of the memory; `None` if a part is unknown.
    pub parts: Option<Parts>,
    /// Power, clocks and other readings.
    pub telemetry: Telemetry,
    /// Number of entries in the driver's process list; `None` if there is no list.
    pub listed: Option<u64>,
    /// Number of MIG instances, if MIG is on and all are known. The driver then lists processes by instance.
    pub instances: Option<u64>,
    /// Processes that the driver lists on the GPU.
    pub holders: Vec<Holder>,
    /// Memory not released after its holders exited.
    pub unreleased: Unreleased,
    /// Number of Xid errors so far, by Xid.
    pub xids: BTreeMap<u64, u64>,
    /// Whether nothing computed on the GPU in the last window.
    pub idle: Truth,
    /// Utilization samples, kept for the next window.
    pub reading: Reading,
}

/// One process on one GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// Identity of the process.
    pub process: ProcessId,
    /// Kinds of context on the GPU.
    pub kinds: Kinds,
    /// Bytes held; `None` if the driver does not report it.
    pub memory: Option<u64>,
    /// Largest number of bytes ever held; `None` unless accounting mode is on.
    pub peak: Option<u64>,
    /// How long every sample has listed the process; 0 in the first.
    pub listed: Duration,
    /// Utilization of the GPU by the process in the last window.
    pub utilization: Utilization,
    /// Time observed idle since last observed busy. Only windows observed as idle are counted.
    pub idle: Duration,
    /// Observed utilization (largest sample of each window) over time, in seconds of a fully busy GPU.
    pub busy_seconds: f64,
    /// Memory held, integrated over time, in byte-seconds.
    pub byte_seconds: f64,
}

/// A process that holds GPU memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// State of the process.
    pub state: State,
    /// Number of consecutive samples in this state.
    pub samples: u32,
    /// Number of consecutive windows in which its whole workload did nothing; 0 unless it is orphaned.
    pub still: u32,
    /// Facts from `/proc`; `None` if `/proc` does not show the process.
    pub facts: Option<Facts>,
}

impl Snapshot {
    /// Joins a sample with the previous snapshot.
    #[must_use]
    pub fn between(previous: Option<&Self>, sample: Sample) -> Self {
        let previous = previous.filter(|previous| previous.boot_id == sample.boot_id);
        let mut gaps = previous.map(|previous| previous.gaps.clone()).unwrap_or_default();
        gaps.add(&sample.gaps);
        let mut join = Join {
            seq: sample.seq,
            at: sample.at,
            namespace: sample.namespace,
            good_for: FRESH + sample.interval * 2,
            previous,
            seen: sample.processes,
            ids: HashMap::new(),
            processes: BTreeMap::new(),
            gaps,
        };
        let gpus: Vec<Gpu> = sample.gpus.into_iter().map(|gpu| join.gpu(gpu)).collect();
        let input = users::UserInput { at: sample.at, gpus: &gpus, processes: &join.processes };
        let users = users::totals(previous, &input);
        let mut relatives = sample.relatives.filter(|_| sample.namespace.attributes());
        Place::share(relatives.iter_mut().flatten().map(|relative| &mut relative.place));
        let evidence =
            still::Evidence { previous, gpus: &gpus, relatives: relatives.as_deref(), window: join.window() };
        still::count(&mut join.processes, &evidence);
        let answered = sample.sources.get(&Source::Nvml).is_some_and(|nvml| nvml.fault.is_none());
        let end = sample.at.boot + sample.took;
        let lost = lost::LostInput { previous, end, answered, gpus: &gpus }.lost();
        let leases = join.leases(sample.leases, &gpus);
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
            gpus,
            lost,
            processes: join.processes,
            relatives,
            groups: sample.groups,
            users,
            device_processes: sample.device_processes,
            leases,
            quotas,
            mps: sample.mps,
            gaps: join.gaps,
            workers_hung: sample.workers_hung,
        }
    }

    /// Returns how a holder is stuck; `None` if it is not stuck or that is unknown.
    #[must_use]
    pub fn stuck(&self, holder: &Holder) -> Option<Stuck> {
        Stuck::of(self.processes.get(&holder.process)?)
    }

    /// Returns the GPU with the same UUID, or with the same index if a UUID is unknown.
    #[must_use]
    pub fn gpu(&self, about: &About) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| match (&gpu.about.id, &about.id) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => gpu.about.index == about.index,
        })
    }
}

impl Gpu {
    /// Returns whether MIG mode is on, or this is a MIG instance.
    #[must_use]
    pub fn mig(&self) -> bool {
        self.about.mig.is_some() || self.telemetry.mig_enabled == Some(true)
    }

    /// Returns whether the driver listed the GPU's processes, in one list or by MIG instance.
    #[must_use]
    pub fn lists_processes(&self) -> bool {
        self.listed.is_some() || self.instances.is_some()
    }

    /// Returns the largest utilization of the device since the previous snapshot, in percent, by any process.
    ///
    /// # Errors
    /// If the device's utilization sampler has no valid answer.
    pub fn used_since(&self, before: Option<&Self>) -> Result<u32, Why> {
        let before = before.filter(|gpu| gpu.fault.is_none()).map(|gpu| &gpu.reading);
        let sampled = Window { before, now: &self.reading, mig: self.mig() }.device()?;
        Ok(self.telemetry.utilization.map_or(sampled, |now| now.max(sampled)))
    }
}

/// Working state of [`Snapshot::between`].
struct Join<'a> {
    seq: u64,
    at: Moment,
    namespace: PidNamespace,
    /// How long evidence stays valid without a newer sample.
    good_for: Duration,
    previous: Option<&'a Snapshot>,
    seen: BTreeMap<u32, Seen>,
    ids: HashMap<u32, ProcessId>,
    processes: BTreeMap<ProcessId, Process>,
    gaps: Gaps,
}

/// Holders of a GPU at the start of the window, by pid, and the length of the window.
struct Past<'a> {
    holders: HashMap<u32, &'a Holder>,
    window: Duration,
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
        let reading = sample.reading.cleaned(|pid| pids.contains(&pid), &mut self.gaps);
        let mig = sample.about.mig.is_some() || sample.telemetry.mig_enabled == Some(true);
        let window = Window { before: healthy.map(|gpu| &gpu.reading), now: &reading, mig };
        let (unnamed, named): (Vec<&Entry>, Vec<&Entry>) =
            entries.iter().partition(|entry| entry.pid == 0 || !self.namespace.attributes());
        let holders: Vec<Holder> =
            named.into_iter().map(|entry| self.holder(entry, &window, &past)).collect();
        let idle = window.idle(holders.iter().map(|holder| holder.utilization));
        let held = sample.entries.is_some().then(|| self.held(&unnamed, &holders)).flatten();
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
            telemetry: sample.telemetry,
            holders,
            xids,
            idle,
            reading,
        }
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
            kinds: entry.kinds,
            memory: entry.memory,
            peak: entry.peak,
            listed: Duration::ZERO,
            utilization,
            idle: Duration::ZERO,
            busy_seconds: 0.0,
            byte_seconds: 0.0,
        };
        if let Some(before) = before {
            holder.carry_on(before, past.window);
        }
        holder
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
    fn held(&self, unnamed: &[&Entry], holders: &[Holder]) -> Option<Held> {
        if self.namespace == PidNamespace::Unknown && !unnamed.is_empty() {
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

    /// Joins the lease pool with that of the previous snapshot.
    fn leases(&self, reported: Option<Leases>, gpus: &[Gpu]) -> Option<Leases> {
        let mut leases = reported?;
        let before = self.previous.and_then(|previous| previous.leases.as_ref());
        leases.carry_on(before, self.window(), gpus);
        Some(leases)
    }

    /// Joins the quota files with data of the driver and of the previous snapshot.
    fn quotas(&self, reported: Option<Vec<Quota>>, gpus: &[Gpu]) -> Option<Vec<Quota>> {
        let mut quotas = reported?;
        quota::join(&mut quotas, self.previous, &quota::QuotaInput { gpus, processes: &self.processes });
        Some(quotas)
    }
}

impl Holder {
    fn carry_on(&mut self, before: &Self, window: Duration) {
        let seconds = window.as_secs_f64();
        self.listed = before.listed + window;
        self.busy_seconds = before.busy_seconds;
        if let Some(percent) = self.utilization.percent() {
            self.busy_seconds += f64::from(percent) / 100.0 * seconds;
        }
        self.byte_seconds = before.byte_seconds;
        if let (Some(then), Some(now)) = (before.memory, self.memory) {
            self.byte_seconds += mean(then, now) * seconds;
        }
        self.idle = match self.utilization.idle() {
            Some(true) => before.idle + window,
            Some(false) => Duration::ZERO,
            None => before.idle,
        };
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of VRAM are far below 2^53")]
fn mean(then: u64, now: u64) -> f64 {
    f64::midpoint(then as f64, now as f64)
}
