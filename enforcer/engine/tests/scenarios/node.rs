//! A made-up node with the enforcer's engine. The input is ticks, the output is short summaries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::engine::{Engine, Now, Skip};
use bailiff_engine::policy::{self, LoadContext, Mode, Policy};
use bailiff_engine::verdict::{ActionReport, Outcome, Verdict, What};
use bailiff_engine::view::View;
use bailiff_snapshot::pod_resources::{ContainerName, PodAllocation, PodGpuState, PodGpus};
use bailiff_snapshot::slurm::{AllocatedGpu, JobId, JobRecord, SlurmNode};
use bailiff_snapshot::{Allocation, AllocationState, LastListed, LostGpu, Place, State, Word, wire};
use snapshot_fixtures::stream as fixtures;

pub(crate) const TICK: u64 = 5000;
const MIB: u64 = 1 << 20;

/// A process that holds memory.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) ticks: u64,
    pub(crate) uid: Option<u32>,
    pub(crate) comm: &'static str,
    pub(crate) workload: String,
    pub(crate) gpus: Vec<usize>,
    pub(crate) mib: Option<u64>,
    /// Utilization in percent, or `None` if it was not observed.
    pub(crate) util: Option<u32>,
    /// Whether `/proc` confirms the process.
    pub(crate) confirmed: bool,
    /// Whether CRIU is known to have restored the process.
    pub(crate) restored: bool,
    /// The driver lists its pid since before its start.
    pub(crate) reused_pid: bool,
    /// Its pod. Name and UID have the pod's number.
    pub(crate) pod: Option<u8>,
    /// Namespace of its pod.
    pub(crate) namespace: &'static str,
}

/// A GPU that is allocated to a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodGpu {
    /// Number of the pod.
    pub(crate) pod: u8,
    pub(crate) gpu: usize,
    pub(crate) state: PodGpuState,
    /// For how long it has been unused, in milliseconds.
    pub(crate) unused_ms: Option<u64>,
}

/// Returns the UID of the pod with this number.
pub(crate) fn uid(pod: u8) -> String {
    format!("0b1c2d3e-0000-4000-8000-{pod:012}")
}

/// A GPU.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub(crate) free_mib: u64,
    pub(crate) fault: Option<&'static str>,
    /// Whether the GPU's holders are remembered when it is lost.
    pub(crate) remembered: bool,
    /// When the GPU was first found lost. `None` means just now.
    pub(crate) since_ms: Option<u64>,
}

/// A Slurm job with one GPU.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: u32,
    pub(crate) uid: u32,
    /// When the prolog ran.
    pub(crate) boot_ms: u64,
    pub(crate) gpu: usize,
    /// State of the GPU; `None` if the driver does not report the GPU.
    pub(crate) state: Option<AllocationState>,
}

pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) processes: BTreeMap<u32, Process>,
    pub(crate) gpus: Vec<Gpu>,
    /// Slurm jobs and the states of their GPUs; `None` if the source fails.
    pub(crate) jobs: Option<Vec<Job>>,
    /// Allocated GPUs; `None` if the kubelet does not answer.
    pub(crate) pod_gpus: Option<Vec<PodGpu>>,
    /// Processes without GPU memory.
    pub(crate) relatives: Vec<wire::Relative>,
    pub(crate) proc_up: bool,
    pub(crate) namespace: &'static str,
    pub(crate) boot: &'static str,
    pub(crate) boot_ms: u64,
    pub(crate) interval: u64,
    policy: Arc<Policy>,
    pub(crate) wall_offset: u64,
    view: Option<Arc<View>>,
    /// Id of the action in flight, after the ids of all earlier actions.
    pub(crate) requests: Vec<u64>,
}

pub(crate) fn load(rules: &str) -> Arc<Policy> {
    let loaded = policy::load(
        rules.as_bytes(),
        "rules.yaml",
        LoadContext::accepting(Duration::from_secs(1_700_000_000)),
    );
    match loaded {
        Ok(loaded) => Arc::new(loaded.policy),
        Err(faults) => panic!("{faults:?}"),
    }
}

impl Node {
    /// Returns a node just after the start of the enforcer.
    pub(crate) fn fresh(rules: &str) -> Self {
        let policy = load(rules);
        Self {
            engine: Engine::new(policy.clone(), Mode::Enforce),
            processes: BTreeMap::new(),
            gpus: vec![Gpu { free_mib: 1000, fault: None, remembered: true, since_ms: None }; 2],
            jobs: Some(Vec::new()),
            pod_gpus: Some(Vec::new()),
            relatives: Vec::new(),
            proc_up: true,
            namespace: "host",
            boot: "boot-1",
            boot_ms: 10_000_000,
            interval: TICK,
            policy,
            wall_offset: 1_700_000_000_000,
            view: None,
            requests: Vec::new(),
        }
    }

    /// Returns a node that has been running for a while, without holders.
    pub(crate) fn new(rules: &str) -> Self {
        let mut node = Self::fresh(rules);
        assert_eq!(node.ticks(3), ["", "", ""]);
        node
    }

    /// Starts an idle holder, or returns an existing holder to be changed.
    pub(crate) fn process(&mut self, pid: u32) -> &mut Process {
        self.processes.entry(pid).or_insert_with(|| Process {
            ticks: 100,
            uid: Some(1000),
            comm: "python3",
            workload: format!("slurm:{pid}"),
            gpus: vec![0],
            mib: Some(1000),
            util: Some(0),
            confirmed: true,
            restored: false,
            reused_pid: false,
            pod: None,
            namespace: "team",
        })
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        self.boot_ms += ms;
    }

    pub(crate) fn now(&self, late: u64) -> Now {
        let boot = self.boot_ms + late;
        Now { boot: Duration::from_millis(boot), wall: Duration::from_millis(boot + self.wall_offset) }
    }

    /// Advances by one tick. Returns the engine's summary.
    pub(crate) fn tick(&mut self) -> String {
        self.wait(TICK);
        self.feed(0).unwrap()
    }

    /// Feeds a snapshot that was taken now, with this delay.
    pub(crate) fn feed(&mut self, late: u64) -> Result<String, Skip> {
        let view = Arc::new(View::between(self.view.as_deref(), self.snapshot()));
        let verdicts = self.engine.tick(self.now(late), view.clone())?;
        self.view = Some(view);
        for verdict in &verdicts {
            if let What::Act(id, _) = verdict.what {
                self.requests.push(id);
            }
        }
        Ok(verdicts.iter().map(summary).collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn ticks(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.tick()).collect()
    }

    /// Runs one tick per letter, for process 4100: true (idle), false (busy), unknown, or a dot for a
    /// missed tick.
    pub(crate) fn run(&mut self, letters: &str) -> Vec<String> {
        let mut events = Vec::new();
        for letter in letters.chars() {
            self.process(4100).util = match letter {
                'T' => Some(0),
                'F' => Some(90),
                'U' => None,
                _ => {
                    self.wait(TICK);
                    continue;
                }
            };
            events.push(self.tick());
        }
        events
    }

    /// Reports the result of the last action.
    pub(crate) fn report(&mut self, outcome: Outcome) {
        let id = *self.requests.last().unwrap();
        let nothing =
            [Outcome::Gone, Outcome::IdentityChanged, Outcome::Refused, Outcome::Reprieved, Outcome::DryRun];
        let acted = !nothing.contains(&outcome);
        self.engine.report(&ActionReport { acted, ..ActionReport::new(id, outcome, "") });
    }

    pub(crate) fn pause(&mut self) -> Option<u64> {
        self.engine.pause(self.now(0), None, "upgrade".to_owned())
    }

    pub(crate) fn pause_for(&mut self, length: Duration) {
        self.engine.pause(self.now(0), Some(length), "upgrade".to_owned());
    }

    pub(crate) fn reload(&mut self, rules: &str) -> Option<u64> {
        self.policy = load(rules);
        self.engine.reload(self.policy.clone(), Mode::Enforce).cancel
    }

    /// Restarts the enforcer. Its state is saved to a file and loaded again.
    pub(crate) fn restart(&mut self) {
        let text = serde_json::to_string(&self.engine.saved()).unwrap();
        self.engine = Engine::new(self.policy.clone(), Mode::Enforce);
        self.engine.restore(serde_json::from_str(&text).unwrap(), self.now(0));
    }

    /// Kills the enforcer and starts it again.
    pub(crate) fn crash(&mut self) {
        let text = serde_json::to_string(&self.engine.saved_for_a_crash()).unwrap();
        self.engine = Engine::new(self.policy.clone(), Mode::Enforce);
        self.engine.restore(serde_json::from_str(&text).unwrap(), self.now(0));
    }

    pub(crate) fn snapshot(&self) -> wire::Snapshot {
        let gpus = self.gpus.iter().enumerate().map(|(index, gpu)| self.gpu(index, gpu)).collect();
        let processes = self.listed().map(|(pid, process)| self.wire_process(*pid, process)).collect();
        let mut snapshot = wire::Snapshot {
            boot_id: Some(self.boot.to_owned()),
            wall_ms: self.boot_ms + self.wall_offset,
            boot_ms: self.boot_ms,
            interval_ms: self.interval,
            pid_namespace: self.namespace.into(),
            relatives: Some(self.relatives.clone()),
            lost: self.lost(),
            slurm: self.jobs.as_ref().map(|jobs| self.slurm(jobs)),
            pods: self.pod_gpus.as_ref().map(|gpus| self.pods(gpus)),
            ..fixtures::snapshot(self.boot_ms / TICK, gpus, processes)
        };
        snapshot.sources.insert("proc".to_owned(), fixtures::source(self.proc_up));
        snapshot.sources.insert("pod_resources".to_owned(), fixtures::source(self.pod_gpus.is_some()));
        snapshot.sources.insert("slurm".to_owned(), fixtures::source(self.jobs.is_some()));
        snapshot
    }

    fn slurm(&self, jobs: &[Job]) -> SlurmNode {
        let mut node = SlurmNode::default();
        for job in jobs {
            let (id, user) =
                (job.id.to_string().parse::<JobId>().unwrap(), Some(format!("user-{}", job.uid)));
            let uuid = Some(format!("GPU-{}", job.gpu));
            node.jobs.push(JobRecord {
                boot_id: self.boot.to_owned(),
                job: id.clone(),
                sluid: None,
                uid: job.uid,
                user: user.clone(),
                account: None,
                node: "n1".to_owned(),
                gpus: Some(vec![AllocatedGpu { position: 0, minor: 0, uuid: uuid.clone() }]),
                boot_ms: job.boot_ms,
            });
            node.allocations.extend(job.state.map(|state| Allocation {
                job: id,
                uid: job.uid,
                user,
                account: None,
                gpu: job.gpu.to_string(),
                gpu_uuid: uuid,
                state,
                unused_ms: None,
                used: matches!(state, AllocationState::InUse | AllocationState::Idle),
                complete: state == AllocationState::NeverUsed,
            }));
        }
        node
    }

    fn pods(&self, gpus: &[PodGpu]) -> PodGpus {
        let allocation = |it: &PodGpu| PodAllocation {
            container: ContainerName::new("team", &format!("pod-{}", it.pod), "main").unwrap(),
            resource: "nvidia.com/gpu".to_owned(),
            gpu: it.gpu.to_string(),
            gpu_uuid: Some(format!("GPU-{}", it.gpu)),
            shared: false,
            share: Some(1.0),
            state: it.state.into(),
            pod_uid: Some(uid(it.pod)),
            unused_since_ms: it.unused_ms.map(|unused| self.boot_ms - unused),
            unused: None,
            seconds: None,
        };
        PodGpus {
            boot_ms: self.boot_ms,
            allocations: gpus.iter().map(allocation).collect(),
            ..PodGpus::default()
        }
    }

    fn lost(&self) -> Vec<LostGpu> {
        let lost = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.fault == Some("lost"));
        lost.map(|(index, gpu)| {
            let held = self.processes.iter().filter(|(_, process)| process.gpus.contains(&index));
            let holders = held.map(|(pid, process)| (*pid, Some(process.ticks))).collect();
            LostGpu {
                index: index.to_string(),
                uuid: Some(format!("GPU-{index}")),
                since_ms: gpu.since_ms.or(Some(self.boot_ms)),
                last: gpu.remembered.then_some(LastListed { at_ms: 2000, holders }),
                ..LostGpu::default()
            }
        })
        .collect()
    }

    fn listed(&self) -> impl Iterator<Item = (&u32, &Process)> {
        let wire_process = |index: &usize| self.gpus[*index].fault.is_none();
        self.processes.iter().filter(move |(_, process)| process.gpus.iter().any(wire_process))
    }

    fn gpu(&self, index: usize, gpu: &Gpu) -> wire::Gpu {
        let on_it = self.processes.iter().filter(|(_, process)| process.gpus.contains(&index));
        let holders: Vec<wire::Holder> = on_it
            .filter(|_| gpu.fault.is_none())
            .map(|(pid, process)| fixtures::holder(*pid, process.mib.map(|mib| mib * MIB), process.util))
            .collect();
        wire::Gpu {
            fault: gpu.fault.map(Word::from),
            memory: gpu.fault.is_none().then_some(wire::Memory {
                total: 80_000 * MIB,
                free: gpu.free_mib * MIB,
                used: (80_000 - gpu.free_mib) * MIB,
                unaccounted: Some(0),
                ..wire::Memory::default()
            }),
            utilization: gpu.fault.is_none().then_some(0),
            listed: gpu.fault.is_none().then_some(holders.len() as u64),
            ..fixtures::gpu(&index.to_string(), holders)
        }
    }

    fn wire_process(&self, pid: u32, process: &Process) -> wire::Process {
        if !(process.confirmed && self.proc_up) {
            return fixtures::unconfirmed(pid, 7, State::Unknown);
        }
        let facts = wire::Facts {
            ppid: 3000,
            uid: process.uid,
            user: process.uid.map(|uid| format!("user-{uid}")),
            place: place(process.pod, process.namespace).into(),
            cpu_seconds: 1.0,
            orphaned: Some(false),
            reaped_cpu_seconds: Some(0.0),
            workload: Some(process.workload.clone()),
            restored: process.restored,
            reused_pid: process.reused_pid,
            ..fixtures::facts(process.comm)
        };
        fixtures::process(pid, process.ticks, facts)
    }
}

/// Returns the place of a process, in a container of a pod if it has one.
fn place(pod: Option<u8>, namespace: &str) -> Place {
    let Some(pod) = pod else { return Place { cgroup: "/made.slice".to_owned(), ..Place::default() } };
    Place {
        cgroup: format!("/kubepods.slice/kubepods-pod{pod}.slice"),
        pod_uid: Some(uid(pod)),
        pod: Some(format!("pod-{pod}")),
        namespace: Some(namespace.to_owned()),
        ..Place::default()
    }
}

/// Formats a verdict, such as `4100 due terminate`, with the pid of a process or the name of a workload or
/// GPU.
fn summary(verdict: &Verdict) -> String {
    let id = verdict.subject.id.to_string();
    let target = id.split_once(':').map_or(id.as_str(), |(_, target)| target);
    let target = target.split('@').next().unwrap_or(target);
    let what = match &verdict.what {
        What::Flag(_) => "flag".to_owned(),
        What::Clear(_) => "clear".to_owned(),
        What::Notify(channels) => format!("notify {}", channels.join(" ")),
        What::Due(action) => format!("due {}", action.name()),
        What::Act(_, action) if verdict.mode == Mode::DryRun => format!("would {}", action.name()),
        What::Act(_, action) => action.name().to_owned(),
        What::Withheld(action, hold) => format!("withheld {}: {}", action.name(), hold.name()),
        What::Reprieved(_) => "reprieved".to_owned(),
    };
    format!("{target} {what}")
}
