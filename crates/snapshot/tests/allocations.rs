//! Tests of allocated GPUs: which evidence makes a GPU used, idle, never used, or unknown.

#![expect(clippy::expect_used, reason = "a test may fail loudly")]

use std::time::Duration;

use bailiff_snapshot::slurm::{AllocatedGpu, JobRecord, ManagedGpus};
use bailiff_snapshot::{
    Allocation, AllocationState, BootId, Entry, Facts, Fault, GpuSample, Place, ProcessKey, Sample,
    SlurmSample, Source, SourceState, State,
};
use snapshot_fixtures::sample::{self as fixtures, entry, found, gpu, reading, used, walk};

const SECONDS: u64 = 10;
const PID: u32 = 41;

/// The record of job 7, whose prolog ran at the time of sample 1.
fn record() -> JobRecord {
    JobRecord {
        boot_id: "boot".into(),
        job: "7".parse().expect("an id"),
        sluid: None,
        uid: 1000,
        user: Some("alice".into()),
        account: Some("phys".into()),
        node: "n0".into(),
        gpus: Some(vec![AllocatedGpu { position: 0, minor: 0, uuid: Some("GPU-1".into()) }]),
        boot_ms: SECONDS * 1000,
    }
}

/// A process of this job, or outside jobs, by uid 1000.
fn process(job: Option<&str>, state: State) -> bailiff_snapshot::Facts {
    let place = Place { slurm_job: job.map(str::to_owned), ..Place::default() };
    bailiff_snapshot::Facts { place, state, ..fixtures::facts(ProcessKey { pid: PID, start_ticks: 7 }) }
}

/// Sample `n`, ten seconds after the one before, of one GPU with job 7.
fn sample(n: u64, gpu: GpuSample, process: Option<bailiff_snapshot::Facts>) -> Sample {
    let slurm = Some(SlurmSample { jobs: vec![record()], ..SlurmSample::default() });
    let processes = process.map(found);
    Sample { slurm, ..fixtures::sample((n, Duration::from_secs(SECONDS)), vec![gpu], processes) }
}

fn gpu_with(n: u64, sm: u32, entries: Vec<Entry>) -> GpuSample {
    let samples = if sm > 0 { vec![used(PID, n, sm)] } else { vec![] };
    GpuSample { reading: reading(n, sm, samples), ..gpu((0, "GPU-1"), entries) }
}

fn empty(n: u64) -> Sample {
    sample(n, gpu_with(n, 0, vec![]), None)
}

/// The sample before the prolog, which read the records.
fn before() -> Sample {
    Sample { slurm: Some(SlurmSample::default()), ..empty(0) }
}

fn holds(n: u64, sm: u32, process: bailiff_snapshot::Facts) -> Sample {
    sample(n, gpu_with(n, sm, vec![entry(PID, Some(1 << 30))]), Some(process))
}

fn after(samples: Vec<Sample>) -> Allocation {
    let mut slurm = walk(samples).slurm.expect("the hooks have run");
    assert_eq!(slurm.allocations.len(), 1);
    slurm.allocations.remove(0)
}

fn state(samples: Vec<Sample>) -> (AllocationState, Option<u64>) {
    let allocation = after(samples);
    (allocation.state, allocation.unused_ms.map(|ms| ms / 1000))
}

#[test]
fn gpu_is_never_used_only_if_every_sample_since_the_prolog_shows_it() {
    let never = (AllocationState::NeverUsed, Some(20));
    assert_eq!(state(vec![before(), empty(1), empty(2), empty(3)]), never);
    let no_directory = |sources: &[(Source, SourceState)]| Sample {
        slurm: None,
        sources: sources.iter().copied().collect(),
        ..empty(0)
    };
    let up = SourceState::up(Duration::ZERO);
    let first = vec![no_directory(&[(Source::Proc, up)]), empty(1), empty(2), empty(3)];
    assert_eq!(state(first), never, "before the first run of a hook");
    let unlisted = || GpuSample { entries: None, ..gpu_with(2, 0, vec![]) };
    let down = SourceState::down(Fault::Error);
    let unread = Some(SlurmSample { unread: true, ..SlurmSample::default() });
    for (samples, why) in [
        (vec![empty(9), empty(10)], "the exporter started later"),
        (vec![empty(1), empty(2)], "the exporter was restarted after the prolog"),
        (vec![no_directory(&[]), empty(1), empty(2)], "a sample that read nothing"),
        (
            vec![no_directory(&[(Source::Proc, up), (Source::Slurm, down)]), empty(1), empty(2)],
            "a sample that could not read the records",
        ),
        (
            vec![Sample { slurm: unread, ..empty(0) }, empty(1), empty(2)],
            "a sample that could not read one of the records",
        ),
        (vec![Sample { boot_id: None, ..empty(0) }, empty(1), empty(2)], "a sample without the boot's id"),
        (vec![before(), empty(4), empty(5)], "missed samples before the first"),
        (vec![before(), empty(1), empty(2), empty(6)], "missed samples"),
        (vec![before(), empty(1), sample(2, unlisted(), None), empty(3)], "a sample without a list"),
    ] {
        assert_eq!(state(samples), (AllocationState::Unknown, None), "{why}");
    }
}

#[test]
fn gpu_is_idle_after_use_and_its_time_starts_then() {
    let job = || process(Some("7"), State::Sleeping);
    let busy = || vec![before(), empty(1), holds(2, 50, job()), holds(3, 50, job())];
    assert_eq!(state(busy()), (AllocationState::InUse, None));
    assert_eq!(state([busy(), vec![empty(4)]].concat()), (AllocationState::Idle, Some(0)));
    assert_eq!(state([busy(), vec![empty(4), empty(5)]].concat()), (AllocationState::Idle, Some(10)));
    let waits = |n| holds(n, 0, job());
    assert_eq!(state([busy(), vec![waits(4), waits(5)]].concat()), (AllocationState::Idle, Some(10)));
    // The driver has listed its pid since before its start: whether the job has used the GPU is not known.
    let key = ProcessKey { pid: PID, start_ticks: 100_000 };
    let reused = |n| holds(n, 50, bailiff_snapshot::Facts { key, ..job() });
    let found = state(vec![before(), empty(1), reused(2), empty(3), empty(4)]);
    assert_eq!(found, (AllocationState::Unknown, None));
    let stops = |n| holds(n, 0, process(Some("7"), State::Stopped));
    assert_eq!(state([busy(), vec![stops(4), stops(5)]].concat()), (AllocationState::Unknown, None));
}

#[test]
fn only_processes_in_the_jobs_cgroup_count() {
    let other = |n| holds(n, 50, process(Some("8"), State::Sleeping));
    assert_eq!(state(vec![before(), empty(1), other(2), other(3)]), (AllocationState::NeverUsed, Some(20)));
    let owners = |n| holds(n, 50, process(None, State::Sleeping));
    assert_eq!(
        state(vec![before(), empty(1), owners(2), owners(3)]),
        (AllocationState::Unknown, None),
        "a process of the owner outside cgroups of jobs may belong to the job"
    );
    let container = Place { container: Some("c1".into()), ..Place::default() };
    let session =
        Place { cgroup: "/user.slice/user-1000.slice/user@1000.service/a".into(), ..Place::default() };
    let other = "/user.slice/user-1001.slice/user@1001.service/user-1000.slice/a";
    let other = Place { cgroup: other.into(), ..Place::default() };
    let cases = [
        (of(1001, other), AllocationState::NeverUsed, "a directory of another user with the name of a slice"),
        (of(0, container), AllocationState::Unknown, "a daemon may have started a container for the job"),
        (of(100_999, session), AllocationState::Unknown, "a subordinate uid in a session of the owner"),
        (of(0, Place::default()), AllocationState::NeverUsed, "a display server"),
    ];
    for (facts, expected, what) in cases {
        let found = state(vec![before(), empty(1), holds(2, 50, facts.clone()), holds(3, 50, facts)]);
        assert_eq!(found.0, expected, "{what}");
    }
}

#[test]
fn record_of_another_boot_is_ignored() {
    let mut sample = empty(1);
    sample.boot_id = Some(BootId("another".into()));
    assert_eq!(walk([sample]).slurm.expect("the hooks have run").allocations, []);
}

#[test]
fn memory_on_a_gpu_that_the_job_was_not_given_is_reported() {
    let second = gpu((1, "GPU-2"), vec![entry(PID, Some(1 << 30))]);
    let mut sample = sample(1, gpu_with(1, 0, vec![]), Some(process(Some("7"), State::Sleeping)));
    sample.gpus.push(GpuSample { entries_at: sample.at.boot, ..second });
    let slurm = walk([sample]).slurm.expect("the hooks have run");
    let found: Vec<(&str, u64)> =
        slurm.unallocated.iter().map(|held| (held.gpu.as_str(), held.bytes)).collect();
    assert_eq!(found, [("1", 1 << 30)]);
}

fn of(uid: u32, place: Place) -> Facts {
    Facts { uid: Some(uid), place, ..process(None, State::Sleeping) }
}

/// Returns the place of a process in a unit with the name of slurmd's.
fn in_slurmd(parent: &str) -> Place {
    let unit = "slurmd.service";
    Place { cgroup: format!("/{parent}/{unit}"), unit: Some(unit.into()), ..Place::default() }
}

#[test]
fn memory_of_processes_outside_slurm_on_its_gpus_is_reported() {
    let root = || Place { cgroup: "/".into(), ..Place::default() };
    let own_slice = "user.slice/user-1001.slice/user@1001.service/app.slice";
    let bob = || of(1001, root());
    let display = Facts { comm: "Xorg".into(), ..of(0, root()) };
    let held = Some(1 << 30);
    // Job 7 of uid 1000 has the GPU with minor number 0.
    let cases = [
        (0, bob(), vec![0, 1], held, "a user without a job"),
        (1, bob(), vec![0, 1], held, "a user on a GPU without a job"),
        (1, of(1001, Place::default()), vec![0, 1], None, "a process whose cgroup is unknown"),
        (1, of(1000, root()), vec![0, 1], held, "the job's owner on a GPU without a job"),
        (0, of(1000, root()), vec![0, 1], None, "the job's owner on its GPU: it may be the job"),
        (0, process(Some("8"), State::Sleeping), vec![0, 1], None, "a process of a job without a record"),
        (
            0,
            of(1001, in_slurmd("system.slice")),
            vec![0, 1],
            None,
            "jobs without cgroups run in that of slurmd",
        ),
        (0, of(1001, in_slurmd("system.slice/a.service")), vec![0, 1], held, "another service"),
        (0, of(1001, in_slurmd(own_slice)), vec![0, 1], held, "a user's own unit of this name"),
        (0, display, vec![0, 1], None, "a display server"),
        (1, bob(), vec![0], None, "a GPU that Slurm does not manage"),
    ];
    for (index, facts, minors, expected, what) in cases {
        let numbered = |number: u32, uuid| {
            let held = if number == index { vec![entry(PID, Some(1 << 30))] } else { vec![] };
            let mut gpu = gpu((number, uuid), held);
            gpu.about.minor = Some(number);
            gpu
        };
        let mut sample = sample(1, numbered(0, "GPU-1"), Some(facts));
        sample.gpus.push(GpuSample { entries_at: sample.at.boot, ..numbered(1, "GPU-2") });
        let managed = |boot: &str| Some(ManagedGpus { boot_id: boot.into(), minors: minors.clone() });
        let with = |managed| {
            let mut sample = sample.clone();
            sample.slurm.as_mut().expect("it has records").managed = managed;
            walk([sample]).slurm.expect("the hooks have run").unallocated
        };
        let found = with(managed("boot"));
        assert_eq!(found.iter().map(|row| row.bytes).next(), expected, "{what}");
        assert!(found.iter().all(|row| row.job.is_none() && row.gpu == index.to_string()), "{what}");
        assert_eq!(with(managed("another")), [], "the GPUs of another boot are not known");
        assert_eq!(with(None), []);
    }
}
