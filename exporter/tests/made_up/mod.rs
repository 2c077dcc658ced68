//! Made-up nodes: samples like those of the sampler, without a GPU.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod mps;

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::lease::{Record, Tally, Ticket, Waits};
use bailiff_snapshot::pod_resources::{ContainerName, DynamicDevice, PodDevice, PodList};
use bailiff_snapshot::slurm::{AllocatedGpu, HookRuns, JobRecord};
use bailiff_snapshot::{
    About, Activity, ActivityEngine, ActivityUnknown, Answer, CgroupMemory, ClockEvent, ComputeMode,
    DeviceProcess, DeviceProcesses, Driver, Engines, Entry, ErrorCounts, Facts, Fault, Gap, GpuId, GpuSample,
    GpuState, Health, Held, InvalidQuota, Io, KernelLog, Kinds, Leases, LimitBackend, LoggedXid, Memory,
    MemoryHealth, MemoryUnknown, MigIds, Place, PodResources, PoolGpu, ProcessKey, Quota, QuotaGpu,
    QuotaProcess, Reading, RecoveryAction, Sample, Seen, SlurmSample, Source, SourceState, State, Telemetry,
    Truth, UtilSample,
};
use snapshot_fixtures::sample::{self as fixtures, reading};
#[allow(unused_imports, reason = "no test uses all of it")]
pub(crate) use snapshot_fixtures::sample::{entry, found, walk};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// Returns the sample of interval `seq` on a node with these GPUs and processes.
pub(crate) fn sample(seq: u64, gpus: Vec<GpuSample>, processes: BTreeMap<u32, Seen>) -> Sample {
    Sample {
        took: Duration::from_millis(12),
        sources: [Source::Nvml, Source::Proc]
            .map(|source| (source, SourceState::up(Duration::from_millis(3))))
            .into(),
        driver: Driver {
            version: Some("580.95.05".into()),
            nvml: Some("13.580.95.05".into()),
            cuda: Some((13, 0)),
        },
        ..fixtures::sample((seq, INTERVAL), gpus, processes)
    }
}

/// Returns an idle GPU with these entries in sample `seq`, with all its values.
pub(crate) fn gpu(seq: u64, index: u32, entries: Vec<Entry>) -> GpuSample {
    let held: u64 = entries.iter().filter_map(|entry| entry.memory).sum();
    let clocks = [("sm", 1980), ("memory", 2619)].map(|(clock, megahertz)| (clock.to_owned(), megahertz));
    GpuSample {
        about: About {
            id: Some(GpuId(format!("GPU-{index:08x}-0000-4000-8000-000000000000"))),
            name: Some("NVIDIA H200".into()),
            pci_bus_id: Some(format!("00000000:{:02X}:00.0", 16 + index)),
            minor: Some(index),
            compute_capability: Some((9, 0)),
            ..About::unnamed(index)
        },
        memory: Some(Memory {
            total: 141 * GIB,
            free: (140 * GIB).saturating_sub(held),
            used: held,
            reserved: Some(GIB / 2),
        }),
        telemetry: Telemetry {
            utilization: Some(37),
            memory_utilization: Some(4),
            power: Some(312_456),
            energy: Some(1_234_567_891),
            temperature: Some(41),
            clocks: clocks.into(),
            compute_mode: Some(ComputeMode::Default),
            mig_enabled: Some(false),
            activity: Activity { ratios: [(ActivityEngine::Graphics, 0.5)].into(), ..Activity::default() },
            accounting: Some(true),
            health: Health {
                recovery_action: Some(RecoveryAction::None),
                ecc: ErrorCounts { corrected: Some(3), uncorrected: Some(0) },
                clock_events: Some(vec![]),
                memory: MemoryHealth {
                    remapped_rows: ErrorCounts { corrected: Some(1), uncorrected: Some(0) },
                    remap_pending: Some(true),
                    remap_failed: Some(false),
                    retired_pages: ErrorCounts::default(),
                },
            },
        },
        reading: reading(seq, 0, vec![]),
        ..fixtures::gpu((index, ""), entries)
    }
}

pub(crate) fn facts(pid: u32, user: &str, comm: &str) -> Facts {
    Facts {
        comm: comm.to_owned(),
        user: Some(user.to_owned()),
        started: Some(1_699_999_000.25),
        cpu_seconds: 12.5,
        io: Some(Io { read_bytes: 4096, write_bytes: 0 }),
        orphaned: Some(false),
        reaped_cpu_seconds: Some(0.5),
        workload: Some(format!("tree:{pid}@7")),
        exe: Some("/usr/bin/python3.13".into()),
        ..fixtures::facts(ProcessKey { pid, start_ticks: 7 })
    }
}

/// Returns a sample with one GPU and one idle process of alice's.
pub(crate) fn small(seq: u64) -> Sample {
    let gpus = vec![gpu(seq, 0, vec![entry(41, Some(GIB))])];
    sample(seq, gpus, [found(facts(41, "alice", "python3"))].into())
}

/// Returns a node with this many GPUs, and this many processes on each, in pods. Half of the processes are busy.
pub(crate) fn large(seq: u64, gpus: u32, each: u32) -> Sample {
    let pid = |gpu: u32, n: u32| 1_000_000 + gpu * each + n;
    let one = |index: u32| {
        let entries = (0..each).map(|n| entry(pid(index, n), Some(GIB / 4 + u64::from(n)))).collect();
        let mut gpu = gpu(seq, index, entries);
        let busy = |n: u32| UtilSample {
            pid: pid(index, n),
            stamp: seq * 1000 + u64::from(n),
            engines: Engines { sm: n % 101, memory: n % 50, ..Engines::default() },
        };
        gpu.reading.answer = Answer::Samples((0..each).step_by(2).map(busy).collect());
        gpu
    };
    let all = (0..gpus).flat_map(|gpu| (0..each).map(move |n| pid(gpu, n)));
    let processes = all.map(|pid| {
        let mut facts = facts(pid, &format!("user{}", pid % 40), "python3");
        facts.place = pod(pid);
        found(facts)
    });
    sample(seq, (0..gpus).map(one).collect(), processes.collect())
}

pub(crate) fn pod(n: u32) -> Place {
    Place {
        cgroup: "/kubepods.slice".into(),
        container: Some(format!("{n:064x}")),
        runtime: Some("containerd".into()),
        pod_uid: Some(format!("9c5b4a5e-7d1f-4f0e-9a3b-{n:012x}")),
        pod: Some(format!("trainer-{n}")),
        namespace: Some("research".into()),
        ..Place::default()
    }
}

/// Returns a sample with all kinds of values. The utilization between two such samples is known.
pub(crate) fn motley(seq: u64) -> Sample {
    let mut busy = gpu(seq, 0, motley_entries());
    let engines = Engines { sm: 50, memory: 20, encoder: 1, decoder: 2, jpeg: 3, ofa: 0 };
    busy.reading.answer = Answer::Samples(vec![UtilSample { pid: 41, stamp: seq, engines }]);
    busy.xids = vec![13, 79];
    busy.cgroups = cgroups();
    busy.telemetry.health.recovery_action = Some(RecoveryAction::NodeReboot);
    busy.telemetry.health.clock_events = Some(vec![ClockEvent::SwThermal]);
    busy.telemetry.health.memory.retired_pages = ErrorCounts { corrected: Some(2), uncorrected: Some(0) };
    let unknown = GpuSample {
        memory: None,
        memory_unknown: Some(MemoryUnknown::OwnCgroupLimited),
        telemetry: Telemetry::default(),
        entries: None,
        reading: Reading::default(),
        ..gpu(seq, 1, vec![])
    };
    let lost = GpuSample::faulty(About::unnamed(3), Fault::Lost);
    let [parent, instance] = mig(seq);
    let mut sample = sample(seq, vec![busy, unknown, parent, instance, lost], motley_processes());
    sample.device_processes =
        Some(DeviceProcesses { boot_ms: seq * 5000, processes: device_processes(), unreadable: 2 });
    sample.sources.insert(Source::Proc, SourceState::down(Fault::NotPermitted));
    sample.gaps.count(Gap::Telemetry);
    sample.kernel_log = Some(kernel_log(seq));
    sample.sources.insert(Source::Redis, SourceState::up(Duration::from_millis(1)));
    sample.leases = Some(pool(seq));
    sample.sources.insert(Source::Quota, SourceState::up(Duration::from_millis(1)));
    sample.quotas = Some(quotas(seq));
    sample.sources.insert(Source::Mps, SourceState::up(Duration::from_millis(4)));
    sample.mps = Some(mps::mps(seq));
    sample
}

/// Adds an empty GPU, which Slurm has just allocated to carol's job 4711. A process of the job holds memory on GPU 0.
pub(crate) fn with_slurm(mut sample: Sample) -> Sample {
    let empty = gpu(sample.seq, 4, vec![]);
    let uuid = empty.about.id.as_ref().map(|id| id.0.clone());
    sample.gpus.push(empty);
    let record = JobRecord {
        boot_id: sample.boot_id.as_ref().map(|id| id.0.clone()).unwrap_or_default(),
        job: "4711".parse().expect("the id of a job"),
        sluid: None,
        uid: 1002,
        user: Some("carol".to_owned()),
        account: Some("physics".to_owned()),
        node: "n0".to_owned(),
        gpus: Some(vec![AllocatedGpu { position: 0, minor: 4, uuid }]),
        boot_ms: bailiff_snapshot::millis(sample.at.boot),
    };
    let runs = vec![HookRuns { hook: "prolog".to_owned(), result: "clean".to_owned(), count: 3 }];
    sample.slurm = Some(SlurmSample { jobs: vec![record], runs, ..SlurmSample::default() });
    sample.sources.insert(Source::Slurm, SourceState::up(Duration::from_millis(1)));
    sample
}

/// Removes the jobs from a sample, as before their prologs.
pub(crate) fn without_jobs(mut sample: Sample) -> Sample {
    sample.slurm.iter_mut().for_each(|slurm| slurm.jobs.clear());
    sample
}

/// Adds the kubelet's answer: bob's pod has GPU 0, a replica of the MIG instance, and devices that are not attributed.
pub(crate) fn with_pods(mut sample: Sample) -> Sample {
    let container = ContainerName::new("research", "trainer-1", "main").expect("valid names");
    let device = |id: &str| PodDevice {
        container: container.clone(),
        resource: "nvidia.com/gpu".to_owned(),
        id: id.to_owned(),
        is_only: true,
        is_ambiguous: false,
    };
    let empty = gpu(sample.seq, 4, vec![]);
    let first = "GPU-00000000-0000-4000-8000-000000000000";
    let fourth = "GPU-00000004-0000-4000-8000-000000000000";
    if sample.gpus.iter().all(|gpu| gpu.about.index != "4") {
        sample.gpus.push(empty);
    }
    let [driver, pool, name] = ["gpu.nvidia.com", "node-1", "gpu-0"].map(str::to_owned);
    let dynamic = DynamicDevice { container: container.clone(), driver, pool, device: name };
    let list = PodList {
        devices: vec![device(first), device(&format!("{fourth}::1")), device("GPU-elsewhere")],
        dynamic: vec![dynamic],
        invalid: 0,
    };
    sample.pod_resources = Some(PodResources {
        boot_ms: bailiff_snapshot::millis(sample.at.boot),
        list,
        allocatable: Some([(first.to_owned(), 1), (fourth.to_owned(), 4)].into()),
        ..PodResources::default()
    });
    sample.sources.insert(Source::PodResources, SourceState::up(Duration::from_millis(2)));
    sample
}

/// Returns a cgroup with all values, and one below it that inherits the limit.
fn cgroups() -> Vec<CgroupMemory> {
    let unknown = |cgroup: &str| CgroupMemory::unknown(cgroup.to_owned(), LimitBackend::Dmem);
    let parent = CgroupMemory {
        hard: Some(20 * GIB),
        soft: Some(GIB),
        effective: Some(20 * GIB),
        used: Some(3 * GIB),
        peak: Some(4 * GIB),
        stale_reservation: Some(GIB),
        ..unknown("/system.slice")
    };
    let child = CgroupMemory { effective: Some(20 * GIB), ..unknown("/system.slice/train.service") };
    vec![parent, child]
}

/// Returns alice's quota for process 41 on the first GPU and a MIG instance, and a file that is not a quota file.
fn quotas(seq: u64) -> Vec<Quota> {
    let row = |uuid: &str, limit| QuotaGpu {
        uuid: uuid.to_owned(),
        limit,
        used: GIB,
        peak: 3 * GIB,
        denied: seq,
        denied_bytes: seq * GIB,
        held: None,
        held_around: None,
    };
    let process = |process, alive| QuotaProcess {
        process,
        alive,
        claim: (7, 7, 4_026_531_836),
        used: vec![GIB / 2, 0],
        denied: seq,
        denied_since: None,
    };
    let alice = ProcessKey { pid: 41, start_ticks: 7 };
    let gpus = vec![row("00000000-0000-4000-8000-000000000000", Some(4 * GIB)), row("1", None)];
    let processes = vec![process(Some(alice), Truth::True), process(None, Truth::False)];
    let none = Quota { name: "1000/none".into(), invalid: Some(InvalidQuota::Short), ..Quota::default() };
    vec![Quota { name: "1000/a".into(), gpus, processes, ..Quota::default() }, none]
}

/// Returns a pool of three GPUs: GPU 0 is leased to alice's process 41, GPU 2 is idle, and GPU 9, which the driver
/// does not list, was taken by a client of GPU.py.
pub(crate) fn pool(seq: u64) -> Leases {
    let gpu = |id: &str, gpu_state| PoolGpu { id: id.to_owned(), gpu_state, ..PoolGpu::default() };
    let record =
        Record { pid: Some(7), time: "2026-11-21 06:29:57".into(), alive: Truth::False, ..Record::default() };
    let held = Held {
        lease: "ours".into(),
        gpus: vec!["0".into()],
        age_ms: Some(seq * 5000 + 500),
        user: Some("alice".into()),
        mode: Some("run".into()),
        holder: Some(ProcessKey { pid: 41, start_ticks: 7 }),
        alive: Truth::True,
        ..Held::default()
    };
    Leases {
        boot_ms: seq * 5000,
        gpus: vec![
            PoolGpu { lease: Some("ours".into()), ..gpu("0", GpuState::Leased) },
            gpu("2", GpuState::Idle),
            PoolGpu {
                record: Some(record),
                uuid: Some("GPU-elsewhere".into()),
                ..gpu("9", GpuState::Legacy)
            },
        ],
        held: vec![held],
        queue: vec![Ticket { lease: "theirs".into(), want: 2, age_ms: Some(1500), ..Ticket::default() }],
        tally: Tally {
            events: [("grant".to_owned(), 3)].into(),
            waits: Some(Waits {
                buckets: vec![(Duration::from_millis(10), 2), (Duration::from_secs(1), 0)],
                longer: 1,
                sum: Duration::from_millis(4250),
            }),
            append_only: Some(true),
        },
        ..Leases::default()
    }
}

fn motley_entries() -> Vec<Entry> {
    let kinds = |compute, graphics, mps| Kinds { compute, graphics, mps };
    vec![
        Entry { peak: Some(3 * GIB), ..entry(41, Some(2 * GIB)) },
        Entry { kinds: kinds(true, true, false), ..entry(42, Some(GIB)) },
        Entry { kinds: kinds(false, false, true), ..entry(43, Some(GIB)) },
        entry(44, Some(GIB)),
        entry(45, Some(GIB)),
        entry(46, None),
        entry(0, Some(GIB)),
    ]
}

fn motley_processes() -> BTreeMap<u32, Seen> {
    let mut in_pod = facts(42, "bob", "train");
    in_pod.place = pod(1);
    in_pod.orphaned = None;
    in_pod.io = None;
    let mut in_job = facts(43, "carol", "a \"quoted\\\nname");
    in_job.place.slurm_job = Some("4711".into());
    in_job.command = Some("python train.py --token …".into());
    let mut nameless = facts(46, "", "nameless");
    (nameless.user, nameless.uid, nameless.state) = (None, Some(1234), State::Zombie);
    let found =
        [facts(41, "alice", "python3"), in_pod, in_job, nameless, facts(51, "alice", "mig")].map(found);
    found.into_iter().chain([(44, Seen::Gone), (45, Seen::Hidden)]).collect()
}

/// Returns a GPU in MIG mode and its only instance.
fn mig(seq: u64) -> [GpuSample; 2] {
    let mut parent = gpu(seq, 2, vec![]);
    parent.telemetry.mig_enabled = Some(true);
    parent.entries = None;
    parent.instances = Some(1);
    let mut instance = gpu(seq, 2, vec![entry(51, Some(GIB))]);
    instance.about = About {
        index: "2:0".into(),
        id: Some(GpuId("MIG-1".into())),
        mig: Some(MigIds {
            parent: parent.about.id.clone(),
            gpu_instance: Some(7),
            compute_instance: Some(0),
        }),
        ..instance.about
    };
    let activity = Activity { unknown: Some(ActivityUnknown::FirstSample), ..Activity::default() };
    instance.telemetry = Telemetry { activity, ..Telemetry::default() };
    [parent, instance]
}

/// Returns a log with a line about process 41.
fn kernel_log(seq: u64) -> KernelLog {
    let line = format!("4,{seq},1,-;NVRM: Xid (PCI:0000:10:00): 13, pid=41, name=python3, Ch 00000008");
    let at = |seq| Duration::from_secs(5 * seq);
    KernelLog {
        from: at(seq) + Duration::from_secs(1),
        until: at(seq + 1) + Duration::from_secs(1),
        xids: LoggedXid::parse(&line).into_iter().collect(),
    }
}

fn device_processes() -> Vec<DeviceProcess> {
    let device_process = |pid, minors: &[u32]| DeviceProcess {
        pid,
        start_ticks: None,
        comm: "x".into(),
        uid: Some(0),
        minors: minors.to_vec(),
    };
    vec![
        device_process(41, &[0]),
        device_process(77, &[0, 2]),
        device_process(78, &[0]),
        device_process(51, &[2]),
    ]
}
